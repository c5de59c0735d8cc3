"""AFL and its local training: epochs, rates by delay, the optimiser's reset, early stopping on the training loss."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import xarray as xr

from jaxafl import server
from jaxafl.client import Client
from jaxafl.clock import constant, stale_rounds, trace
from jaxafl.device.keys import Purpose, per_run, purpose_key, seed_key
from tests.oracle.client import EpochTraining
from tests.oracle.clock import ServerStep, steps_of
from tests.oracle.server import AFL
from tests.problems import GD, assert_same, descent, quadratic, reference, simulate
from tests.problems_protocols import durations, in_client_order, sets_without_repeats
from tests.test_client import SIZES, cut, shuffle

CLIENTS, ROUNDS, DRAWN, SEED = 6, 10, 3, 4


def rounds() -> tuple[Any, list[ServerStep]]:
    """Recorded stale rounds."""
    rng = np.random.default_rng(0)
    sets = np.sort(sets_without_repeats(rng, ROUNDS, DRAWN, CLIENTS))
    ages = rng.integers(0, 4, (ROUNDS, DRAWN))
    # durations are told to the clients in single precision: these are exact
    times = np.round(64 * durations(rng, CLIENTS, DRAWN * ROUNDS, "real")) / 64
    protocol = stale_rounds(participants=DRAWN, max_staleness=3, durations=constant(0))
    recorded = trace(protocol, sets=sets, stale=ages, durations=times)
    return recorded, in_client_order(steps_of(recorded, CLIENTS, ROUNDS))


@dataclasses.dataclass(frozen=True)
class Local:
    """Local epochs for the package and for the reference."""

    learning_rate: float = 0.3
    epochs: int = 4
    alpha: float = 0.1
    patience: int | None = None
    reset: str = "run"
    batch_size: int | None = None

    def client(self) -> Any:
        return Client(
            optax.adam, learning_rate=self.learning_rate, epochs=self.epochs, batch_size=self.batch_size,
            rate_schedule=server.afl_rate(self.alpha, "staleness"), patience=self.patience, reset=self.reset,
        )  # fmt: skip

    def reference(self) -> EpochTraining:
        return EpochTraining(
            learning_rate=self.learning_rate, epochs=self.epochs, delay_weight=self.alpha, patience=self.patience,
            adam_reset=self.reset,
        )  # fmt: skip

    def batches(self) -> Any:
        """The samples of every local step, by the package's shuffles."""
        if self.batch_size is None:
            return None

        def batches(client: int, run: int) -> list[list[list[int]]]:
            key = per_run(purpose_key(seed_key(SEED), Purpose.BATCH), jnp.int32(client), jnp.int32(run))
            return [cut(shuffle(key, epoch, SIZES[client]), self.batch_size) for epoch in range(self.epochs)]

        return batches


def check(local: Local, mine: Any = None, lanes: int = 1) -> xr.Dataset:
    """The package's AFL is the reference's; returns its result."""
    clock, steps = rounds()
    expected = reference(quadratic(), AFL(), steps, local.reference(), batches=local.batches())
    with jax.enable_x64(True):
        result = simulate(
            quadratic(), mine or server.afl(), clock, ROUNDS, local.client(), seed=SEED, lanes=lanes, chunk=lanes
        )
    assert_same(result, expected, 1e-9, ordered=False)
    return result


@pytest.mark.slow
def test_a_penalty_on_delay_changes_the_result() -> None:
    one, other = (check(Local(alpha=alpha)).observe_w.values[-1] for alpha in (0.0, 1.0))
    assert np.abs(one - other).max() > 1e-3


@pytest.mark.slow
def test_the_optimiser_starts_afresh_in_every_epoch() -> None:
    run, epoch = (check(Local(reset=reset, batch_size=2)).observe_w.values[-1] for reset in ("run", "epoch"))
    assert np.abs(run - epoch).max() > 1e-4


STOPPING = Local(learning_rate=1.5, epochs=12, patience=2)


@pytest.mark.parametrize("batch_size", [None, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("lanes", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_a_run_stops_when_its_loss_no_longer_falls(lanes: int, batch_size: int | None) -> None:
    """And hands in its last parameters. Runs that advance together stop each for itself."""
    result = check(dataclasses.replace(STOPPING, batch_size=batch_size), lanes=lanes)
    executed, planned = result.executed_local_steps.values, result.local_steps.values
    assert (executed < planned).any() and (executed == planned).any()


BAD: list[tuple[Any, str]] = [
    (lambda: server.afl_rate(0.1, "minutes"), "'staleness', 'seconds'"),
    (lambda: check(Local(), server.afl(staleness_exponent=-1)), "staleness_exponent"),
    (lambda: check(Local(), server.afl(broadcast=False)), "max_staleness=0"),
    (lambda: check(Local(patience=0)), "patience"),
    (lambda: descent(client=dataclasses.replace(GD, patience=2)).check(), "epochs"),
    (lambda: descent(client=dataclasses.replace(GD, reset="epoch")).check(), "epochs"),
]


@pytest.mark.parametrize(("act", "option"), BAD)
def test_invalid_options_raise(act: Any, option: str) -> None:
    with pytest.raises(ValueError, match=option):
        act()
