"""Servers that apply gradients, and averaging servers over whoever gets through, against their slow references."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import xarray as xr

from jaxafl import Simulation, data, models, server, sweep
from jaxafl.client import Client
from jaxafl.clock import bernoulli, trace
from jaxafl.device.keys import Purpose, per_run, purpose_key, seed_key
from tests.oracle import server as oracle
from tests.oracle.client import LocalTraining as OracleTraining
from tests.oracle.clock_bernoulli import bernoulli as oracle_bernoulli
from tests.oracle.server_gradient import AUDG, PSURDG, AsySG
from tests.problems import GD, ORACLE_GD, assert_same, drawn, quadratic, record, reference, simulate
from tests.variants import slow_but

CLIENTS, TICKS = 6, 20
PRECISIONS = {"float64": (True, 1e-9), "float32": (False, 1e-5)}
SAMPLES = [client.num_samples for client in quadratic().clients]
GRADIENT = Client(optax.sgd, learning_rate=1.0, steps=1, batch_size=None)
ORACLE_GRADIENT = OracleTraining(learning_rate=1.0, steps=1)


def masks(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Nobody arrives at ticks 0, 7 and 8; client 5 never does, client 4 only at the last tick."""
    rng = np.random.default_rng(seed)
    uploads, downloads = rng.random((TICKS, CLIENTS)) < 0.35, rng.random((TICKS, CLIENTS)) < 0.6
    uploads[:, 4:] = uploads[[0, 7, 8]] = False
    uploads[-1, 4] = True
    return uploads, downloads


def check(mine: Any, theirs: Any, precision: str, seed: int = 0, averaging: bool = False) -> xr.Dataset:
    """The engine's run over recorded ticks with failing downloads is the reference's."""
    wide, tolerance = PRECISIONS[precision]
    uploads, downloads = masks(seed)
    client, training = (GD, ORACLE_GD) if averaging else (GRADIENT, ORACLE_GRADIENT)
    steps = oracle_bernoulli(uploads.tolist(), downloads.tolist())
    clock = trace(bernoulli(0.5), uploads=uploads, downloads=downloads)
    with jax.enable_x64(wide):
        result = simulate(quadratic(), mine, clock, TICKS, client)
    assert_same(result, reference(quadratic(), theirs, steps, training), tolerance)
    return result


def steps_made(result: xr.Dataset) -> np.ndarray:
    """‖x_{t+1} - x_t‖ of every tick."""
    versions = result.observe_w.values
    return np.linalg.norm(np.diff(versions, axis=0), axis=1)


@pytest.mark.parametrize("precision", slow_but(PRECISIONS, "float64"))
def test_audg(precision: str) -> None:
    result = check(server.audg(0.3), AUDG(eta=0.3, num_samples=SAMPLES), precision)
    made = steps_made(result)
    assert (made[[0, 7, 8]] == 0).all() and made[-1] > 0


@pytest.mark.parametrize("precision", slow_but(PRECISIONS, "float64"))
def test_psurdg(precision: str) -> None:
    result = check(server.psurdg(0.1), PSURDG(eta=0.1, num_samples=SAMPLES, dim=3), precision)
    made = steps_made(result)
    assert made[0] == 0 and (made[[7, 8]] > 0).all()  # nobody at first; later it goes on with what it has


AVERAGING: dict[str, tuple[Any, Callable[[], Any]]] = {
    "fedavg": (server.fedavg(0.8), lambda: oracle.FedAvg(eta=0.8)),
    "fedavg uniform": (server.fedavg(0.8, weights="uniform"), lambda: oracle.FedAvg(eta=0.8, weights="uniform")),
    "fedbuff": (
        server.fedbuff(0.5, staleness="polynomial", momentum=0.5),
        lambda: oracle.FedBuff(eta=0.5, scaling="sqrt", momentum=0.5),
    ),
    "fedbuff sum": (server.fedbuff(0.2, "none", reduce="sum"), lambda: oracle.FedBuff(eta=0.2, reduce="sum")),
    "fadas": (server.fadas(0.1), lambda: oracle.FADAS(eta=0.1)),
    "fadas corrected": (
        server.fadas(0.3, bias_correction="authors", delay_scaling="eq4", tau_c=2),
        lambda: oracle.FADAS(eta=0.3, bias_correction="authors", delay_scaling="eq4", tau_c=2),
    ),
}


# all of them run in the slow test below
@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedbuff", "fadas corrected"])
def test_averaging_servers_over_whoever_arrives(name: str) -> None:
    """An empty tick changes neither the parameters nor momentum, moments or counts."""
    mine, theirs = AVERAGING[name]
    result = check(mine, theirs(), "float64", averaging=True)
    assert (steps_made(result)[[0, 7, 8]] == 0).all()


@pytest.mark.slow
def test_many_recorded_ticks() -> None:
    for seed in range(1, 15):
        check(server.audg(0.3), AUDG(eta=0.3, num_samples=SAMPLES), "float64", seed)
        check(server.psurdg(0.1), PSURDG(eta=0.1, num_samples=SAMPLES, dim=3), "float64", seed)
        for mine, theirs in AVERAGING.values():
            check(mine, theirs(), "float64", seed, averaging=True)


def test_asysg_on_full_gradients() -> None:
    recorded = record(0, CLIENTS, 15, "late", concurrency=4, buffer=3)
    expected = reference(quadratic(), AsySG(eta=0.2), recorded.oracle(15), ORACLE_GRADIENT)
    with jax.enable_x64(True):
        result = simulate(quadratic(), server.asysg(0.2), recorded.clock(), 15, GRADIENT)
    assert_same(result, expected, 1e-9)


@pytest.mark.slow
def test_asysg_on_mini_batches() -> None:
    """One mini-batch gradient per run, of the samples that the run's key draws."""
    seed, size = 3, 2
    recorded = record(1, CLIENTS, 15, "ties", concurrency=6, buffer=2)

    def batches(client: int, run: int, local_steps: int) -> list[list[int]]:
        key = per_run(purpose_key(seed_key(seed), Purpose.BATCH), jnp.int32(client), jnp.int32(run))
        return [np.asarray(drawn(key, jnp.int32(0), size, jnp.int32(SAMPLES[client]))).tolist()]

    client = Client(optax.sgd, learning_rate=1.0, steps=1, batch_size=size)
    with jax.enable_x64(True):
        result = simulate(quadratic(), server.asysg(0.2), recorded.clock(), 15, client, seed=seed)
        expected = reference(quadratic(), AsySG(eta=0.2), recorded.oracle(15), ORACLE_GRADIENT, batches=batches)
    assert_same(result, expected, 1e-9)


@pytest.mark.data
@pytest.mark.slow
def test_reusing_gradients_is_worse_when_one_of_equal_clients_is_slow(data_dir: pathlib.Path) -> None:
    """The sign of Table III at its largest delay, on a fiftieth of its pool: every client holds the same samples."""
    mnist = data.mnist(data_dir)
    mnist = dataclasses.replace(mnist, x_test=mnist.x_test[:2000], y_test=mnist.y_test[:2000])
    pool, clock = mnist.partition(data.iid_shared(4, samples=500)), bernoulli(np.asarray([0.1, 0.5, 0.5, 0.5]))
    accuracy = {}
    for one in (server.audg(0.2), server.psurdg(0.2)):
        sim = Simulation(pool, models.cnn_small(10), GRADIENT, one, clock)
        result = sweep(sim, {"seed": range(6)}, 50, eval_every=50)
        accuracy[one.name] = result.accuracy.isel(evaluation=-1).values.mean()
    assert accuracy["audg"] > 0.5  # both have learned something
    assert accuracy["psurdg"] < accuracy["audg"]
