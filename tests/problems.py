"""Small problems whose every step can be checked: quadratic clients, recorded schedules, the oracle's run of them."""

from __future__ import annotations

import dataclasses
import functools
import types
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import xarray as xr

from jaxafl.client import Client, batches
from jaxafl.clock import free_running, trace, uniform
from jaxafl.data import FederatedData, from_arrays, synthetic
from jaxafl.models import BatchNorm, from_functions, logistic
from jaxafl.models.model import Batch, Model
from jaxafl.server import fedbuff
from jaxafl.simulation import Simulation
from tests.oracle import simulate as oracle_simulate
from tests.oracle.client import LocalTraining as OracleTraining
from tests.oracle.client import Quadratic
from tests.oracle.clock import ServerStep, steps_of
from tests.problems_protocols import durations

START = (0.5, -1.0, 2.0)
"""x_0 of every problem."""


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """The same clients for the engine and for the oracle; f_i(w) = 1/2 Σ_j mean_b a_bj (w_j - c_bj)²."""

    data: FederatedData
    model: Model
    clients: list[Quadratic]

    @property
    def num_clients(self) -> int:
        return len(self.clients)


@functools.cache
def quadratic(num_clients: int = 6, sizes: tuple[int, ...] = (4, 1, 7, 3, 5, 2), flat: int | None = None) -> Problem:
    """Clients with random curvatures and centres (multiples of 1/64, so that float32 stores them exactly).

    Args:
        num_clients: N.
        sizes: samples of each client, repeated as needed.
        flat: a client without curvature, whose gradient is zero everywhere.
    """
    rng = np.random.default_rng(num_clients)
    clients = []
    for client in range(num_clients):
        shape = (sizes[client % len(sizes)], len(START))
        curvature = np.round(64 * rng.uniform(0.25, 2, shape)) / 64
        clients.append(
            Quadratic(a=0 * curvature if client == flat else curvature, c=np.round(64 * rng.normal(size=shape)) / 64)
        )
    samples = np.concatenate([np.concatenate([client.a, client.c], axis=1) for client in clients])
    owners = np.repeat(np.arange(num_clients), [client.num_samples for client in clients])
    data = from_arrays(
        samples,
        np.zeros(len(samples), np.int32),
        owners,
        x_test=samples[:3],
        y_test=np.zeros(3, np.int32),
        name="quadratic",
    )
    return Problem(data, from_functions(lambda *_: {"w": jnp.asarray(START)}, quadratic_loss, "quadratic"), clients)


def quadratic_loss(params: Any, batch: Batch, key: jax.Array) -> jax.Array:
    """1/2 Σ_j a_bj (w_j - c_bj)² of each sample b."""
    curvature, centre = jnp.split(batch.x, 2, axis=1)
    return 0.5 * jnp.sum(curvature * (params["w"] - centre) ** 2, axis=1)


def observe_w(params: Any) -> dict[str, jax.Array]:
    """What the tests record at every server step: the parameters."""
    return {"w": params["w"]}


GD = Client(optax.sgd, learning_rate=0.2, momentum=0.5, steps=3, batch_size=None)
"""Full-batch local gradient descent with momentum ..."""
ORACLE_GD = OracleTraining(learning_rate=0.2, momentum=0.5, steps=3)
"""... and the same for the oracle."""


def descent(**parts: Any) -> Simulation:
    """Gradient descent of the quadratic clients by FedBuff; `parts` take the place of its own."""
    clock = free_running(concurrency=4, buffer=2, durations=uniform(1, 5))
    own: dict[str, Any] = {
        "data": quadratic().data,
        "model": quadratic().model,
        "client": GD,
        "server": fedbuff(),
        "clock": clock,
    }
    return Simulation(**own | parts)


@functools.cache
def points(clients: int = 4, max_size: int = 40) -> FederatedData:
    """Synthetic samples of 60 numbers with one of ten labels."""
    return synthetic(1.0, 1.0, clients=clients, max_size=max_size)


class Normalised(nn.Module):
    """Batch normalisation that leaves padding out, and a dense layer."""

    outputs: int = 10

    @nn.compact
    def __call__(self, x: Any, train: bool, mask: Any = None) -> Any:
        return nn.Dense(self.outputs)(BatchNorm()(x.reshape(len(x), -1), train, mask))


LOGISTIC = logistic(10)
"""One model, so that tests of equal simulations share programs."""


def classifier(**parts: Any) -> Simulation:
    """Logistic regression on synthetic samples by FedBuff; `parts` take the place of its own."""
    own: dict[str, Any] = {
        "data": points(),
        "model": LOGISTIC,
        "client": Client(learning_rate=0.1, steps=2, batch_size=8),
        "server": fedbuff(),
        "clock": free_running(concurrency=2, durations=uniform(1, 2)),
    }
    return Simulation(**own | parts)


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A free-running clock with recorded durations [client, run]."""

    durations: np.ndarray
    options: dict[str, Any]

    def clock(self) -> Any:
        """The engine's clock that replays it."""
        return trace(free_running, durations=self.durations, **self.options)

    def oracle(self, server_steps: int) -> list[ServerStep]:
        """Its schedule in the oracle's words."""
        return steps_of(self.clock(), len(self.durations), server_steps)


def record(seed: int, num_clients: int, server_steps: int, kind: str = "real", **options: Any) -> Recorded:
    """Random durations for a free-running clock.

    Args:
        seed: of the randomness.
        num_clients: N.
        server_steps: T.
        kind: durations: `"real"` (no ties), `"ties"` (small integers), `"late"` (client 0 takes ten times as long).
        **options: of `free_running`.
    """
    rng = np.random.default_rng(seed)
    runs = 2 * options.get("buffer", 1) * server_steps + 2 * num_clients
    return Recorded(durations(rng, num_clients, runs, kind), options)


def simulate(
    problem: Problem, server: Any, clock: Any, server_steps: int, client: Client = GD, **options: Any
) -> xr.Dataset:
    """The engine's run, with the parameters after every server step in `observe_w`."""
    simulation = Simulation(problem.data, problem.model, client, server, clock)
    return simulation.run(server_steps, eval_every=server_steps, observe=observe_w, **options)


def reference(
    problem: Problem, server: Any, steps: Any, training: OracleTraining = ORACLE_GD, **options: Any
) -> oracle_simulate.Simulation:
    """The oracle's run."""
    return oracle_simulate.simulate(steps, training, server, np.asarray(START), problem.clients, **options)


def assert_same(
    result: xr.Dataset, expected: oracle_simulate.Simulation, tolerance: float, ordered: bool = True
) -> None:
    """The engine's run is the oracle's: parameters to the tolerance, who arrived exactly, times to 1e-9.

    Args:
        result: the engine's run.
        expected: the oracle's.
        tolerance: relative, of the parameters.
        ordered: compare the order of arrivals within a step too (else by client).
    """
    versions = np.asarray(expected.versions)
    found = result.observe_w.values
    assert found.shape == versions.shape
    np.testing.assert_allclose(found, versions, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(result.time.values, expected.times, rtol=1e-9)
    made = "executed_local_steps" if "executed_local_steps" in result else "local_steps"
    for step, recorded in enumerate(expected.records):
        mask = result.client_id.values[step] >= 0
        names = ("client_id", "run_index", "staleness", "multiplicity", made)
        columns = {name: result[name].values[step][mask] for name in names}
        order = np.arange(mask.sum()) if ordered else np.argsort(columns["client_id"])
        oracle = (
            range(len(recorded.arrivals)) if ordered else np.argsort([arrival.client for arrival in recorded.arrivals])
        )
        assert len(order) == len(recorded.arrivals)
        for mine, theirs in zip(order, oracle, strict=True):
            arrival, update = recorded.arrivals[theirs], recorded.updates[theirs]
            assert {name: int(column[mine]) for name, column in columns.items()} == {
                "client_id": arrival.client, "run_index": arrival.run, "staleness": arrival.staleness,
                "multiplicity": arrival.multiplicity, made: update.local_steps,
            }, f"server step {step}"  # fmt: skip
            where = np.flatnonzero(mask)[mine]
            np.testing.assert_allclose(result.started_at.values[step, where], arrival.start_time, rtol=1e-9)
            np.testing.assert_allclose(result.arrived_at.values[step, where], arrival.arrival_time, rtol=1e-9)
            np.testing.assert_allclose(
                result.delta_norm.values[step, where], recorded.norms[theirs], rtol=10 * tolerance, atol=tolerance
            )
            if update.local_steps:
                loss = result.local_loss.values[step, where]
                np.testing.assert_allclose(loss, recorded.losses[theirs], rtol=10 * tolerance, atol=tolerance)


def drawn(key: Any, step: Any, size: int, count: Any) -> jax.Array:
    """The samples that a client of `count` takes in local step `step` of the run with this key, with replacement."""
    client = Client(optax.sgd, learning_rate=1.0, steps=1, batch_size=size)
    at: Any = types.SimpleNamespace(key=key, step=step)
    return batches.positions(client, jnp.asarray(count), jnp.asarray(size), at, jnp.arange(size))[0]
