"""Mistakes are answered before anything is compiled, in words that say what was given and what is allowed."""

from __future__ import annotations

import dataclasses
import re
import traceback
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
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
from jaxafl.engine import mesh
from jaxafl.engine.step import all_finite
from jaxafl.simulation import Simulation
from tests.problems import GD, observe_w, quadratic
from tests.variants import slow_but

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


# name: (what is done, the words that the message must contain)
CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "unknown option of the optimiser": (with_client(momentun=0.3), "no option momentun.*momentum"),
    "missing option of the optimiser": (lambda: Client(optax.sgd, steps=2), "needs learning_rate"),
    "number of a made optimiser": (lambda: Client(optax.sgd(0.1), momentum=0.5, steps=2), "made already.*momentum"),
    "learning rate NaN": (with_client(learning_rate=NAN), "learning_rate must be.*finite.*got nan"),
    "learning rate negative": (with_client(learning_rate=-1.0), "learning_rate must be >= 0, got -1"),
    "learning rate of several numbers": (with_client(learning_rate=np.ones(4)), r"learning_rate.*shape \(4,\)"),
    "learning rate per parameter": (with_client(learning_rate=np.ones(3)), r"learning_rate.*shape \(3,\)"),
    "learning rate a string": (with_client(learning_rate="0.1"), "learning_rate.*'0.1'"),
    "batch size 0": (with_client(batch_size=0), "batch_size must be at least 1, got 0"),
    "batch size 2.5": (with_client(batch_size=2.5), "batch_size must be a whole number, got 2.5"),
    "batch size an array": (
        with_client(batch_size=jnp.array(3)), r"batch_size must be a whole number \(an int\).*JAX array.*int\(\.\.\.\)"
    ),
    "batch size an array of one": (
        with_client(batch_size=np.array([3])), r"batch_size must be one number, or one per client \(6,\), got.*\(1,\)"
    ),
    "batch size above int32": (with_client(batch_size=2**31), "batch_size must be at most 2,147,483,647, got 2,147"),
    "steps 0": (with_client(steps=0), "steps must be at least 1, got 0"),
    "steps and epochs": (with_client(epochs=1), "either steps or epochs"),
    "steps of other clients": (with_client(steps=[1, 2, 3]), r"steps.*\(6,\).*\(3,\)"),
    "fractional steps": (with_client(steps=[1.5] * 6), "steps.*1.5"),
    "proximal a string": (with_client(proximal="a"), "proximal.*'?a'?"),
    "proximal NaN": (with_client(proximal=NAN), "proximal must be.*finite.*got nan"),
    "weight decay of several numbers": (with_client(weight_decay=np.ones(3)), "weight_decay"),
    "weight decay negative": (with_client(weight_decay=-1), "weight_decay must be.*>= 0, got -1"),
    "sampling unknown": (with_client(sampling="x"), "'replacement'.*'epochs', got 'x'"),
    "schedule not a function": (with_client(step_schedule=0.5), "step_schedule"),
    "server rate NaN": (with_server(server.fedbuff, NAN), "fedbuff: learning_rate must be a finite number, got nan"),
    "server rate negative": (with_server(server.fadas, -1), "fadas: learning_rate must be >= 0, got -1"),
    "server rate a string": (with_server(server.fedbuff, "a"), "fedbuff: learning_rate.*'?a'?"),
    "server rate of several numbers": (with_server(server.fedbuff, [1.0, 2.0]), r"must be one number.*\(2,\)"),
    "staleness unknown": (
        with_server(server.fedbuff, staleness="poly"),
        "'none', 'polynomial', 'hinge', 'exponential' or a function, got 'poly'",
    ),
    "staleness of another shape": (
        with_server(server.fedbuff, staleness=lambda tau: tau[:, None]),
        r"fedbuff: staleness=<lambda> is \[\[0.\]\s+\[1.\]\] for τ = 0 and 1; expected a function from τ",
    ),
    "staleness infinite": (with_server(server.fedopt, staleness=lambda tau: 1 / tau), r"is \[inf.*finite numbers"),
    "staleness by cases": (
        with_server(server.fedasync, staleness=lambda tau: 1.0 if tau < 1 else 0.5),
        "fedasync: staleness=<lambda> cannot be traced.*jax.numpy",
    ),
    "exponent negative": (with_server(server.fedopt, exponent=-1), "exponent must be >= 0, got -1"),
    "weights unknown": (with_server(server.fedbuff, weights="steps"), "'samples', 'local_steps', got 'steps'"),
    "server momentum 1": (with_server(server.fedbuff, momentum=1.0), r"momentum must be in \[0, 1\), got 1"),
    "alpha NaN": (with_server(server.fedasync, NAN), "alpha must be a finite number, got nan"),
    "lambda 0": (with_server(server.asyncfeded, base_rate=0), "base_rate must be > 0, got 0"),
    "lambda NaN": (with_server(server.asyncfeded, base_rate=NAN), "base_rate must be a finite number, got nan"),
    "epsilon 0": (with_server(server.asyncfeded, eps=0.0), "eps must be > 0, got 0"),
    "epsilon NaN": (with_server(server.asyncfeded, eps=NAN), "eps must be a finite number, got nan"),
    "kappa NaN": (with_server(server.asyncfeded, kappa=NAN), "kappa must be a finite number, got nan"),
    "target staleness NaN": (with_server(server.asyncfeded, target_staleness=NAN), "target_staleness must be.*finite"),
    "fewer steps than the first": (with_server(server.asyncfeded, max_steps=2), "steps=3, more than max_steps=2"),
    "a server that needs every arrival": (
        lambda: simulation(server=server.asyncfeded(), clock=clock(buffer=2)).run(3),
        "asyncfeded.*free_running.*buffer=1",
    ),
    "fedavg without rounds": (with_server(server.fedavg), "fedavg does not run on the clock free_running.*synchronous"),
    "asyncfeded in rounds": (
        lambda: simulation(**rounds() | {"server": server.asyncfeded()}).run(3), "asyncfeded.*synchronous.*free_running"
    ),
    "concurrency above N": (with_clock(concurrency=7), "concurrency=7 is more than the 6 clients"),
    "concurrency 0": (with_clock(concurrency=0), "concurrency must be at least 1, got 0"),
    "concurrency an array": (with_clock(concurrency=np.array(3)), r"got a NumPy array of shape \(\): use int"),
    "concurrency a string": (with_clock(concurrency="3"), "concurrency must be a whole number, got '3'"),
    "a buffer that never fills": (with_clock(buffer=4, dispatch="step"), "buffer of 4 can never fill.*concurrency=3"),
    "dispatch unknown": (with_clock(dispatch="now"), "'arrival'.*'step', got 'now'"),
    "before_step under step": (with_clock(before_step=True, dispatch="step"), "before_step.*'arrival'"),
    "start_skew under arrival": (with_clock(start_skew=True), "start_skew.*'step'"),
    "before_step a string": (with_clock(before_step="no"), "before_step.*'no'"),
    "durations a function": (with_clock(durations=lambda client, run: 1.0), "durations"),
    "durations None": (with_clock(durations=None), "durations"),
    "durations None in rounds": (lambda: simulation(**rounds(durations=None)).run(3), "durations"),
    "duration negative": (with_clock(durations=uniform(-1, 2)), "uniform: low must be >= 0, got -1"),
    "duration of a client": (
        with_clock(durations=uniform(np.array([1, 1, 7, 1, 8, 1]), 5)),
        r"low <= high is needed, got low=7, high=5 \(client 2, the first of 2\)$",
    ),
    "duration of a client NaN": (
        with_clock(durations=constant([1, 1, 1, 1, NAN, 1])), r"number, not NaN, got nan \(client 4, the first of 1\)$"
    ),
    "ragged durations": (lambda: uniform([[1], 2], 3), r"uniform: low must be.*rows have one length, got \[\[1\], 2\]"),
    "a trace of clients with fewer runs": (
        recorded([[1] * 50] * 5 + [[1, 2]], 60), r"run out: run 2 of client 5 \(start number \d+\)"
    ),
    "a trace of a client without runs": (recorded([[1] * 50] * 5 + [[]]), "at least one run of every client, client 5"),
    "a trace of words": (lambda: trace(clock(), durations=[[1], ["a"]]), r"array \[client, run\] of seconds"),
    "ragged starts": (lambda: trace(clock(), starts=[[1], 2]), "trace: starts must be.*rows have one length"),
    "trace a string": (recorded("abc"), r"recorded durations must be an array \[client, run\]"),
    "duration NaN": (with_clock(durations=uniform(1, NAN)), "uniform: high must be a finite number, got nan"),
    "duration a string": (with_clock(durations=uniform("a", 2)), "uniform: low must be a number, got 'a'"),
    "durations of other clients": (with_clock(durations=uniform(1, np.ones(5) * 2)), r"\(6,\), got shape \(5,\)"),
    "per unknown": (with_clock(durations=uniform(1, 2, per="round")), "one of 'client', 'run', 'step', got 'round'"),
    "suspension above 1": (with_clock(durations=uniform(1, 2) + suspension(1.5)), "probability must be.*1.*got 1.5"),
    "tier unknown": (with_clock(durations=three_tier("huge")), "'large', 'mild'.*'huge'"),
    "gamma 0": (with_clock(durations=three_tier(gamma=0)), "three_tier: gamma must be > 0, got 0"),
    "gamma a string": (with_clock(durations=three_tier(gamma="a")), "gamma.*'?a'?"),
    "speed 0": (with_clock(durations=transmission(1e6, 0)), "transmission: speed must be > 0, got 0"),
    "a duration that overflows": (with_clock(durations=lognormal(0, 1e6)), "infinite"),
    "trace negative": (recorded(-np.ones((6, 50))), "300 are not, the first.* is -1"),
    "trace NaN": (recorded(one_entry(NAN)), r"nan \(client 2, run 3\)"),
    "trace of the wrong rank": (recorded(np.ones(6)), r"\[client, run\].*shape \(6,\)"),
    "trace of other clients": (recorded(np.ones((5, 50))), r"6 clients.*\(5, 50\)"),
    "trace runs out": (recorded(np.ones((6, 2)), 30), r"run out: run 2 of client \d+ \(start number \d+\)"),
    "starts run out": (recorded(steps=10, starts=np.asarray([0, 1, 2, 3])), "starts run out at start number 4"),
    "a busy client starts": (recorded(starts=np.asarray([0, 1, 1, 2, 3])), "client 1 at start number 2, but.*busy"),
    "a start out of range": (recorded(starts=np.asarray([0, 1, 9, 2, 3])), r"clients 0\.\.5; start number 2 names 9"),
    "starts of numbers with a point": (recorded(starts=np.asarray([0.0, 1.0])), "client indices.*float64"),
    "a recording that is not drawn": (lambda: trace(clock(), sets=[[0]]), "draws no 'sets'.*starts"),
    "sets run out": (recorded_sets(np.asarray([[0, 1]])), "sets run out"),
    "a set names a client twice": (recorded_sets(np.asarray([[0, 1], [2, 2], [1, 0]])), "round 1.*twice"),
    "a set out of range": (recorded_sets(np.asarray([[0, 1], [2, 6], [1, 0]])), r"clients 0\.\.5; round 1 names 6"),
    "sets of another size": (recorded_sets(np.asarray([[0, 1, 2]])), r"n = 2 clients, got shape \(1, 3\)"),
    "cohort above N": (lambda: simulation(**rounds(cohort=9)).run(3), "cohort=9 is more than the 6 clients"),
    "server_steps 0": (lambda: simulation().run(0), "server_steps must be at least 1, got 0"),
    "server_steps above int32": (lambda: simulation().run(2**31), "server_steps must be at most 2,147,483,647"),
    "server_steps 1.5": (lambda: simulation().schedule(1.5), "server_steps must be a whole number.*1.5"),
    "eval_every 0": (lambda: simulation().run(3, eval_every=0), "eval_every must be.*at least 1, got 0"),
    "seed negative": (lambda: simulation().run(3, seed=-1), "seed must be.*got -1"),
    "seed 1.5": (lambda: simulation().run(3, seed=1.5), "seed.*1.5"),
    "seed a string": (lambda: simulation().run(3, seed="a"), "seed.*'a'"),
    "lanes 0": (lambda: simulation().run(3, lanes=0), "lanes must be.*at least 1, got 0"),
    "a class as durations": (lambda: simulation(clock=clock(durations=constant)).run(3), "must be a duration"),
    "chunk not a divisor": (lambda: simulation().run(3, lanes=4, chunk=3), "chunk must be a divisor of lanes=4, got 3"),
    "observe not a function": (lambda: simulation().run(3, observe=5), "observe"),
    "no such directory": (lambda: simulation().run(3, save="missing/result.nc"), "no directory missing"),
    "a device as result": (lambda: simulation().run(3, save="/dev/null"), "/dev/null is no regular file"),
    "a directory as result": (lambda: simulation().run(3, save="."), "is a directory"),
    "data None": (lambda: simulation(data=None), r"Simulation\(data=.*None"),
    "images of another shape": (
        lambda: simulation(model=models.cnn_small()).schedule(3),
        r"cnn_small cannot be made for the samples of .*needs images.*at least 16x16 pixels, got inputs of shape \[6\]",
    ),
    "fewer outputs than classes": (
        lambda: simulation(data=synthetic(clients=4, max_size=60), model=models.logistic(7)).check(),
        "logistic tells 7 classes apart, but synthetic.* has 10: make it with num_classes=10",
    ),
    "a constructor as server": (lambda: simulation(server=server.fedbuff), r"Simulation\(server="),
    "a module as model": (lambda: simulation(model=nn.Dense(3)), r"Simulation\(model="),
    "an optimiser as client": (lambda: simulation(client=optax.sgd(0.1)), r"Simulation\(client="),
}  # fmt: skip


RUN_OUT = {"a trace of clients with fewer runs", "starts run out", "a busy client starts"}  # tests of clocks prove it


@pytest.mark.parametrize("name", slow_but(CASES, *(CASES.keys() - RUN_OUT)))
def test_invalid_input_raises_before_compilation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("the training was compiled before the mistake was found")

    monkeypatch.setattr(mesh, "compiled", refuse)
    action, words = CASES[name]
    with pytest.raises((ValueError, TypeError, OSError)) as caught:
        action()
    assert re.search(words, str(caught.value)), f"{str(caught.value)!r} does not say {words!r}"
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


@pytest.mark.slow
def test_a_run_that_stays_finite_is_not_marked() -> None:
    result = simulation().run(3)
    assert result.attrs["failed_step"] == result.attrs["failed_client"] == -1
    assert result.sizes["step"] == 3 and np.isfinite(result.loss.values).all()


@pytest.mark.parametrize("quickly", [False, True])
def test_numbers_are_finite_though_their_sum_is_not(quickly: bool) -> None:
    large = np.full((3, 40), 3e38, "f4")
    for wrong in (None, np.inf, -np.inf, np.nan):
        for kind in (np.float32, np.float16):
            half = np.full(7, 6e4, kind)
            if wrong is not None:
                half[4] = wrong
            tree = {"a": jnp.asarray(large), "b": (jnp.asarray(half), jnp.arange(3)), "none": jnp.zeros(0)}
            assert bool(jax.jit(lambda tree: all_finite(tree, quickly))(tree)) == (wrong is None)
    both = jnp.asarray([np.inf, -np.inf], jnp.float32)
    assert not all_finite({"a": both}, quickly)
