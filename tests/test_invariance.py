"""What changes speed changes no result: lanes, chunks, micro-batches, evaluations; and a seed fixes every bit."""

from __future__ import annotations

import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import xarray as xr

from jaxafl import attack, correction, server, sweep, upload
from jaxafl.client import Client, dp_sgd
from jaxafl.clock import constant, free_running, interrupting, suspension, synchronous, uniform
from jaxafl.data import Preprocessing, from_arrays
from jaxafl.models import Batch, from_functions
from jaxafl.simulation import Simulation
from tests.problems import descent, observe_w
from tests.variants import slow_but

STEPS = 24
DURATIONS = uniform(1, 5) + suspension(0.2)
RAGGED = Client(optax.sgd, learning_rate=0.1, momentum=0.5, epochs=2, batch_size=2)

CASES: dict[str, tuple[Any, Any, Any]] = {
    "fedavg": (server.fedavg(), synchronous(cohort=4, durations=DURATIONS), RAGGED),
    "fedasync": (server.fedasync(0.5, "polynomial"), free_running(concurrency=4, durations=DURATIONS), RAGGED),
    "fadas": (
        server.fadas(0.05), free_running(concurrency=5, buffer=2, dispatch="step", durations=DURATIONS), RAGGED
    ),
    "asyncfeded": (
        server.asyncfeded(base_rate=0.5, kappa=0.5, max_steps=8),
        free_running(
            concurrency=4, durations=uniform(1, 5, per="client") * constant(0.1, per="step") + suspension(0.2)
        ),
        Client(optax.sgd, learning_rate=0.1, steps=3, batch_size=2),
    ),
}  # fmt: skip


def run(name: str, eval_every: int = STEPS, **options: Any) -> xr.Dataset:
    the_server, clock, client = CASES[name]
    simulation = descent(client=client, server=the_server, clock=clock)
    return simulation.run(STEPS, eval_every=eval_every, observe=observe_w, seed=3, **options)


@functools.cache
def usual(name: str) -> xr.Dataset:
    """The run that the others are compared with."""
    return run(name)


def assert_close(result: xr.Dataset, other: xr.Dataset) -> None:
    for name in ("client_id", "run_index", "staleness", "local_steps", "time", "started_at", "arrived_at"):
        np.testing.assert_array_equal(result[name], other[name], err_msg=name)
    for name in ("observe_w", "delta_norm", "local_loss"):
        np.testing.assert_allclose(result[name], other[name], rtol=1e-4, atol=1e-5, err_msg=name)


def assert_identical(result: xr.Dataset, other: xr.Dataset) -> None:
    for name in set(result.data_vars) & set(other.data_vars):
        if "evaluation" not in result[name].dims:
            np.testing.assert_array_equal(result[name], other[name], err_msg=name)


MANY = [pytest.param(name, *how, marks=pytest.mark.slow) for name in CASES for how in ((3, 3), (6, 3), (16, 1))]


@pytest.mark.parametrize(("name", "lanes", "chunk"), [("fadas", 4, 2), *MANY])
def test_lanes_and_chunks_change_no_result(name: str, lanes: int, chunk: int) -> None:
    assert_close(run(name, lanes=lanes, chunk=chunk), usual(name))


PRIVATE = {"learning_rate": 0.1, "max_norm": 0.7, "noise_multiplier": 2.0}
LOCAL: dict[str, dict[str, Any]] = {
    "noise": {"upload": upload.chain(upload.clip_by_global_norm(0.4), upload.add_noise(1.0))},
    "scaffold": {"correction": correction.scaffold(), "step_schedule": lambda step: 1 / (1 + step)},
    "feddyn": {"correction": correction.feddyn(0.5)},
    "private": {"optimizer": dp_sgd} | PRIVATE,
    "rates": {"learning_rate": np.linspace(0.05, 0.3, 6), "rate_schedule": lambda now: 1 / (1 + 0.2 * now.version)},
}
ATTACKS: dict[str, attack.Attack] = {
    "delivered": attack.alie(knowledge="delivered", clients=[1, 4]),
    "gaussian": attack.gaussian(2.0, added=True, clients=[1, 4]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LOCAL, *ATTACKS])
def test_no_way_of_running_changes_a_result(name: str, tmp_path: pathlib.Path) -> None:
    """Lanes, chunks, members of a sweep, runs that are resumed, and single steps."""
    client = Client(**{"learning_rate": 0.1, "steps": 3, "batch_size": 2} | LOCAL.get(name, {}))
    parts = {"attack": ATTACKS[name]} if name in ATTACKS else {}
    sim, how = descent(client=client, **parts), {"observe": observe_w, "eval_every": 5}
    alone = sim.run(STEPS, seed=3, **how)
    for lanes, chunk in ((16, 1), (4, 4)):
        assert_close(sim.run(STEPS, seed=3, lanes=lanes, chunk=chunk, **how), alone)
    assert_close(sweep(sim, {"seed": [5, 3]}, STEPS, **how).isel(seed=1), alone)
    sim.run(5, seed=3, folder=tmp_path, **how)
    assert_identical(sim.run(STEPS, seed=3, folder=tmp_path, **how), alone)
    _, records = sim.step(sim.init(3, STEPS), STEPS)
    np.testing.assert_allclose(records["delta_norm"], alone.delta_norm, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_runs_without_local_steps_beside_others_that_make_some() -> None:
    """In one vmapped group, none of whose runs is masked where all make the same number of steps."""
    clock = interrupting(period=2.0, contacted=3, durations=uniform(1, 5))
    client = Client(optax.sgd, learning_rate=0.1, steps=3, batch_size=2)
    sim = descent(client=client, server=server.quafl(), clock=clock)
    alone, grouped = (sim.run(8, observe=observe_w, **how) for how in ({}, {"lanes": 6, "chunk": 6}))
    assert {0, 3} == set(np.unique(alone.local_steps))
    np.testing.assert_allclose(alone.step_loss, alone.local_loss.mean("arrival"), rtol=1e-5)
    np.testing.assert_allclose(grouped.observe_w, alone.observe_w, rtol=1e-5)


def test_the_evaluation_interval_changes_no_result() -> None:
    assert_close(run("fadas", eval_every=5), usual("fadas"))


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize("name", CASES)
def test_the_evaluation_interval_changes_no_bit(name: str) -> None:
    seldom, often = run(name), run(name, eval_every=5)
    assert_identical(often, seldom)
    assert often.eval_step.values.tolist() == [0, 5, 10, 15, 20, 24]
    np.testing.assert_allclose(often.loss[[0, -1]], seldom.loss[[0, -1]], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["replacement", "epochs"])
def test_lanes_draw_the_same_samples_and_numbers(sampling: Any) -> None:
    """The samples, their augmentation and the numbers of the model belong to the run, not to the lane."""

    def loss(params: Any, batch: Batch, key: jax.Array) -> jax.Array:
        return jnp.square(batch.x @ params["w"] - batch.y - jax.random.normal(key, batch.y.shape))

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 3)).astype(np.float32), rng.integers(0, 2, 60)
    noisy = Preprocessing(lambda x: x, augment=lambda x, key: x + jax.random.normal(key, x.shape))
    owners = rng.permutation(np.r_[np.arange(3), rng.integers(0, 3, 57)])
    data = from_arrays(x, y, owners, x_test=x[:6], y_test=y[:6], preprocessing=noisy)
    model = from_functions(lambda key, batch: {"w": jnp.zeros(3)}, loss)
    steps = np.array([8, 4, 4])  # of two lanes one makes a run in two segments, the other two runs
    client = Client(optax.sgd, learning_rate=0.05, momentum=0.5, steps=steps, batch_size=3, sampling=sampling)
    simulation = Simulation(data, model, client, server.fedbuff(), synchronous(cohort=3, durations=uniform(1, 5)))
    alone, beside = (simulation.run(STEPS, lanes=lanes, chunk=lanes, observe=observe_w) for lanes in (1, 2))
    assert_close(beside, alone)
    assert np.ptp(alone.observe_w.values[-1]) > 0.01


@pytest.mark.optimised
@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(CASES, "fadas"))
def test_a_repeated_run_has_the_same_bits(name: str) -> None:
    assert_identical(run(name), run(name))
