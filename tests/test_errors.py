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

from jaxafl import models, results, server, upload
from jaxafl.client import Client
from jaxafl.clock import (
    compass,
    constant,
    free_running,
    interrupting,
    lognormal,
    suspension,
    synchronous,
    trace,
    uniform,
    warm_up,
)
from jaxafl.data import synthetic
from jaxafl.simulation import Simulation
from tests.problems import descent, observe_w, quadratic
from tests.variants import slow_but

NAN = float("nan")
PATHS = warm_up(compass(durations=constant(1.0)))
CONTACTS = interrupting(period=4.0, contacted=2, durations=uniform(1, 5))


def clock(**options: Any) -> Any:
    return free_running(**({"concurrency": 3, "durations": uniform(1, 5)} | options))


def client(**options: Any) -> Any:
    return Client(optax.sgd, **({"learning_rate": 0.1, "steps": 2, "batch_size": 2} | options))


def simulation(**parts: Any) -> Simulation:
    return descent(**{"clock": clock()} | parts)


def rounds(**options: Any) -> dict[str, Any]:
    return {"server": server.fedavg(), "clock": synchronous(**({"durations": constant(1)} | options))}


def recorded(durations: Any, steps: int) -> Callable[[], Any]:
    return lambda: simulation(clock=trace(clock(), durations=durations)).run(steps)


def with_client(**options: Any) -> Callable[[], Any]:
    return lambda: simulation(client=client(**options)).run(3)


def with_server(make: Callable[..., Any], *arguments: Any, **options: Any) -> Callable[[], Any]:
    return lambda: simulation(server=make(*arguments, **options)).run(3)


def with_clock(**options: Any) -> Callable[[], Any]:
    return lambda: simulation(clock=clock(**options)).run(3)


# what is done, and the option that the message names
CASES: list[tuple[Callable[[], Any], str]] = [
    (lambda: simulation(client=Client(optax.sgd, steps=2)).run(3), "learning_rate"),
    *((with_client(learning_rate=value), "learning_rate") for value in (NAN, -1.0, np.ones(4), np.ones(3), "0.1")),
    *((with_client(batch_size=value), "batch_size") for value in (0, 2.5, jnp.array(3), np.array([3]), 2**31)),
    *((with_client(steps=value), "steps") for value in (0, [1, 2, 3], [1.5] * 6)),
    *((with_client(weight_decay=value), "weight_decay") for value in (np.ones(3), -1)),
    (with_client(step_schedule=0.5), "step_schedule"),
    (with_client(step_schedule=lambda step: jnp.ones(10)), "must return one number"),
    *((with_server(server.fedbuff, value), "learning_rate") for value in (NAN, "a", [1.0, 2.0])),
    *((with_server(server.asyncfeded, base_rate=value), "base_rate") for value in (0, NAN)),
    (with_clock(durations=uniform(1, 2, per="round")), "'client'"),
    (with_clock(durations=uniform(1, 2) + suspension(1.5)), "probability"),
    (with_clock(durations=lognormal(0, 1e6)), "infinite"),
    (recorded(np.ones((6, 2)), 30), "run 2 of client"),
    (lambda: simulation(**rounds(cohort=9)).run(3), "cohort"),
    *((lambda steps=steps: simulation().run(steps), "server_steps") for steps in (0, 2**31)),
    *((lambda seed=seed: simulation().run(3, seed=seed), "seed") for seed in (-1, 1.5, "a")),
    (lambda: simulation().run(3, lanes=0), "lanes"),
    (lambda: simulation(server=server.asyncfeded()).run(3, lanes=0), "lanes"),
    (lambda: simulation().run(3, lanes=4, chunk=3), "chunk"),
    *((lambda path=path: simulation().run(3, save=path), path) for path in ("missing/result.nc", "/dev/null")),
    (lambda: simulation().run(3, save="."), "directory"),
    (lambda: simulation(model=models.cnn_small()).schedule(3), "cnn_small"),
    (lambda: simulation(data=synthetic(clients=4, max_size=60), model=models.logistic(7)).check(), "10 outputs"),
    (lambda: simulation(server=server.fedbuff), "server"),
    (with_server(server.fedbuff, aggregate=upload.sign()), "aggregate"),
    (lambda: simulation(client=client(sampling="epochs"), server=server.favano(), clock=CONTACTS).run(3), "sampling"),
    (lambda: simulation(client=client(sampling="epochs"), clock=PATHS).check(), "sampling"),
    (lambda: simulation(model=nn.Dense(3)), "model"),
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


DIVERGING = {"planned": server.fedbuff(1e4), "online": server.asyncfeded(base_rate=60.0, eps=0.01, kappa=0)}


@pytest.mark.parametrize("name", slow_but(DIVERGING, "planned"))
@pytest.mark.parametrize("eval_every", slow_but([3, 40], 3))
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
