"""Mistakes are answered before anything is compiled, by an error that names the option."""

from __future__ import annotations

import dataclasses
import re
import traceback
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxafl import models, results, server
from jaxafl.client import Client
from jaxafl.clock import (
    constant,
    free_running,
    lognormal,
    suspension,
    synchronous,
    three_tier,
    trace,
    transmission,
    uniform,
)
from jaxafl.data import synthetic
from jaxafl.simulation import Simulation
from tests.problems import GD, observe_w, quadratic

NAN = float("nan")


def clock(**options: Any) -> Any:
    return free_running(**({"concurrency": 3, "durations": uniform(1, 5)} | options))


def client(**options: Any) -> Any:
    return Client(optax.sgd, **({"learning_rate": 0.1, "steps": 2, "batch_size": 2} | options))


def simulation(**parts: Any) -> Simulation:
    problem = quadratic()
    whole = {"data": problem.data, "model": problem.model, "client": GD, "server": server.fedbuff(), "clock": clock()}
    return Simulation(**(whole | parts))


def rounds(**options: Any) -> dict[str, Any]:
    return {"server": server.fedavg(), "clock": synchronous(**({"durations": constant(1)} | options))}


def recorded(durations: Any = None, steps: int = 3, **recordings: Any) -> Callable[[], Any]:
    times = np.ones((6, 50)) if durations is None else durations
    return lambda: simulation(clock=trace(clock(), durations=times, **recordings)).run(steps)


def recorded_sets(sets: Any) -> Callable[[], Any]:
    protocol = synchronous(cohort=2, durations=constant(1))
    return lambda: simulation(server=server.fedavg(), clock=trace(protocol, sets=sets)).run(3)


def with_client(**options: Any) -> Callable[[], Any]:
    return lambda: simulation(client=client(**options)).run(3)


def with_server(make: Callable[..., Any], *arguments: Any, **options: Any) -> Callable[[], Any]:
    return lambda: simulation(server=make(*arguments, **options)).run(3)


def with_clock(**options: Any) -> Callable[[], Any]:
    return lambda: simulation(clock=clock(**options)).run(3)


def one_entry(value: float) -> np.ndarray:
    times = np.ones((6, 50))
    times[2, 3] = value
    return times


BIG = with_clock(durations=lognormal(0, 1e6))
# what is done, and the option that the message names
CASES: list[tuple[Callable[[], Any], str]] = [
    (with_client(momentun=0.3), "momentun.*momentum"),
    (lambda: Client(optax.sgd, steps=2), "learning_rate"),
    (lambda: Client(optax.sgd(0.1), momentum=0.5, steps=2), "momentum"),
    *((with_client(learning_rate=value), "learning_rate") for value in (NAN, -1.0, np.ones(4), np.ones(3), "0.1")),
    *((with_client(batch_size=value), "batch_size") for value in (0, 2.5, jnp.array(3), np.array([3]), 2**31)),
    *((with_client(steps=value), "steps") for value in (0, [1, 2, 3], [1.5] * 6)),
    (with_client(epochs=1), "epochs"),
    *((with_client(proximal=value), "proximal") for value in ("a", NAN)),
    *((with_client(weight_decay=value), "weight_decay") for value in (np.ones(3), -1)),
    (with_client(sampling="x"), "sampling|'replacement'"),
    (with_client(step_schedule=0.5), "step_schedule"),
    *((with_server(server.fedbuff, value), "learning_rate") for value in (NAN, "a", [1.0, 2.0])),
    (with_server(server.fedbuff, staleness="poly"), "staleness"),
    (with_server(server.fedopt, exponent=-1), "exponent"),
    (with_server(server.fedbuff, weights="steps"), "'samples'"),
    (with_server(server.fedbuff, momentum=1.0), "momentum"),
    *((with_server(server.asyncfeded, base_rate=value), "base_rate") for value in (0, NAN)),
    (with_server(server.asyncfeded, target_staleness=NAN), "target_staleness"),
    (lambda: simulation(**rounds() | {"server": server.asyncfeded()}).run(3), "synchronous"),
    *((with_clock(concurrency=value), "concurrency") for value in (7, 0, np.array(3), "3")),
    (with_clock(buffer=4, dispatch="step"), "buffer"),
    (with_clock(dispatch="now"), "'arrival'"),
    (with_clock(before_step=True, dispatch="step"), "before_step"),
    (with_clock(start_skew=True), "start_skew"),
    (with_clock(before_step="no"), "before_step"),
    *((with_clock(durations=value), "duration") for value in (lambda client, run: 1.0, None, constant)),
    *(
        (with_clock(durations=uniform(*ends)), "low|high")
        for ends in ((-1, 2), (1, NAN), ("a", 2), (1, np.ones(5) * 2), (np.array([1, 1, 7, 1, 8, 1]), 5))
    ),
    (lambda: uniform([[1], 2], 3), "low"),
    (with_clock(durations=constant([1, 1, 1, 1, NAN, 1])), "client 4"),
    (with_clock(durations=uniform(1, 2, per="round")), "'client'"),
    (with_clock(durations=uniform(1, 2) + suspension(1.5)), "probability"),
    (with_clock(durations=three_tier("huge")), "'large'"),
    (with_clock(durations=three_tier(gamma=0)), "gamma"),
    (with_clock(durations=transmission(1e6, 0)), "speed"),
    (BIG, "infinite"),
    (recorded([[1] * 50] * 5 + [[1, 2]], 60), "run 2 of client 5"),
    (recorded([[1] * 50] * 5 + [[]]), "client 5"),
    (lambda: trace(clock(), durations=[[1], ["a"]]), "durations|seconds"),
    (lambda: trace(clock(), starts=[[1], 2]), "starts"),
    *(
        (recorded(value), "durations")
        for value in ("abc", -np.ones((6, 50)), one_entry(NAN), np.ones(6), np.ones((5, 50)))
    ),
    (recorded(np.ones((6, 2)), 30), "run 2 of client"),
    *(
        (recorded(steps=10, starts=np.asarray(starts)), "start")
        for starts in ([0, 1, 2, 3], [0, 1, 1, 2, 3], [0, 1, 9, 2, 3], [0.0, 1.0])
    ),
    (lambda: trace(clock(), sets=[[0]]), "sets"),
    *(
        (recorded_sets(np.asarray(sets)), "sets|set|clients")
        for sets in ([[0, 1]], [[0, 1], [2, 2], [1, 0]], [[0, 1], [2, 6], [1, 0]], [[0, 1, 2]])
    ),
    (lambda: simulation(**rounds(cohort=9)).run(3), "cohort"),
    *((lambda steps=steps: simulation().run(steps), "server_steps") for steps in (0, 2**31)),
    (lambda: simulation().schedule(1.5), "server_steps"),
    (lambda: simulation().run(3, eval_every=0), "eval_every"),
    *((lambda seed=seed: simulation().run(3, seed=seed), "seed") for seed in (-1, 1.5, "a")),
    (lambda: simulation().run(3, lanes=0), "lanes"),
    (lambda: simulation().run(3, lanes=4, chunk=3), "chunk"),
    (lambda: simulation().run(3, observe=5), "observe"),
    *((lambda path=path: simulation().run(3, save=path), path) for path in ("missing/result.nc", "/dev/null")),
    (lambda: simulation().run(3, save="."), "directory"),
    (lambda: simulation(model=models.cnn_small()).schedule(3), "cnn_small"),
    (lambda: simulation(data=synthetic(clients=4, max_size=60), model=models.logistic(7)).check(), "10 outputs"),
    (lambda: simulation(data=None), "data"),
    (lambda: simulation(server=server.fedbuff), "server"),
    (lambda: simulation(model=nn.Dense(3)), "model"),
    (lambda: simulation(client=optax.sgd(0.1)), "client"),
]


@pytest.mark.parametrize(("action", "option"), CASES)
def test_invalid_input_raises_before_compilation(action: Callable[[], Any], option: str) -> None:
    with pytest.raises((ValueError, TypeError, OSError), match=option) as caught:
        action()
    where = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert not any(re.search(r"site-packages.(jax|jaxlib|optax|flax).", filename) for filename in where)


def test_a_schedule_that_depends_on_the_training_cannot_be_computed_alone() -> None:
    with pytest.raises(ValueError, match=r"depends on the training.*run\(\)"):
        simulation(server=server.asyncfeded()).schedule(3)


@pytest.mark.slow
def test_a_trace_that_runs_out_beside_the_training_is_an_error() -> None:
    replayed = trace(clock(), durations=np.ones((6, 2)))
    with pytest.raises(ValueError, match=r"durations run out: run 2 of client \d+ \(start number \d+\)"):
        simulation(server=server.asyncfeded(), clock=replayed).run(40)


def test_an_existing_result_is_left_alone_until_the_run_has_ended(tmp_path: Any) -> None:
    path = tmp_path / "result.nc"
    path.write_bytes(earlier := results.BEGINS + b"earlier")
    with pytest.raises(ValueError, match="server_steps"):
        simulation().run(0, save=path)
    assert path.read_bytes() == earlier
    with pytest.raises(ValueError, match="server_steps"):
        simulation().run(0, save=tmp_path / "new.nc")
    assert not (tmp_path / "new.nc").exists()


DIVERGING = {"planned": server.fedbuff(1e4), "online": server.asyncfeded(base_rate=60.0, eps=0.01, kappa=0)}


@pytest.mark.parametrize(
    ("name", "eval_every"),
    [
        ("planned", 3),
        pytest.param("planned", 40, marks=pytest.mark.slow),
        pytest.param("online", 3, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_diverges_stops_there(name: str, eval_every: int) -> None:
    result = simulation(server=DIVERGING[name]).run(40, eval_every=eval_every, observe=observe_w)
    step, culprit = result.attrs["failed_step"], result.attrs["failed_client"]
    assert 0 < step < 39
    assert result.sizes["step"] == step + 1
    assert np.isfinite(result.observe_w.values[: step + 1]).all()
    assert not np.isfinite(result.observe_w.values[step + 1]).all()
    assert culprit in result.client_id.values[step]
    kept = 1 + step // eval_every
    assert result.sizes["evaluation"] == kept and (result.eval_step.values <= step).all()


def test_the_client_whose_update_is_not_finite_is_named() -> None:
    """Client 4 alone trains at a rate that overflows in its first run."""
    data = quadratic().data
    x = data.arrays["x"].copy()
    x[np.repeat(np.arange(6), data.counts) == 4, :3] = 1e30
    broken = dataclasses.replace(data, arrays={**data.arrays, "x": x})
    result = simulation(data=broken, **rounds()).run(5, eval_every=1)
    assert (result.attrs["failed_step"], result.attrs["failed_client"]) == (0, 4)
    assert result.sizes["step"] == 1 and result.sizes["evaluation"] == 1
