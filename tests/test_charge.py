"""Simulated time may be charged for the epochs that a run really made."""

from __future__ import annotations

import dataclasses

import numpy as np
import optax
import pytest

import jaxafl as afl
from tests.problems import classifier, points

SECONDS = 0.5


def simulation(charge: str, clock: afl.clock.Clock) -> afl.Simulation:
    client = afl.Client(optax.adam, learning_rate=0.03, epochs=6, batch_size=16, patience=1, charge=charge)
    server = afl.server.afl() if clock.name == "stale_rounds" else afl.server.fedavg()
    return classifier(data=points(8, 80), client=client, server=server, clock=clock)


@pytest.mark.slow
@pytest.mark.parametrize(
    "clock",
    [
        afl.clock.stale_rounds(participants=3, max_staleness=2, durations=afl.clock.constant(SECONDS, per="step")),
        afl.clock.synchronous(cohort=4, durations=afl.clock.constant(SECONDS, per="step")),
    ],
    ids=["stale_rounds", "synchronous"],
)
def test_time_is_that_of_the_steps_made(clock: afl.clock.Clock) -> None:
    planned = simulation("planned", clock).run(10, eval_every=5, seed=2)
    executed = simulation("executed", clock).run(10, eval_every=5, seed=2)
    made = planned.executed_local_steps.values
    assert (made < planned.local_steps.values).any()  # some runs stopped early
    slowest = SECONDS * planned.local_steps.values.max(axis=1)
    np.testing.assert_allclose(np.diff(planned.time.values, prepend=0), slowest)
    np.testing.assert_allclose(np.diff(executed.time.values, prepend=0), SECONDS * made.max(axis=1))
    np.testing.assert_array_equal(executed.local_steps.values, made)
    for name in ("client_id", "run_index", "staleness", "executed_local_steps"):
        np.testing.assert_array_equal(executed[name].values, planned[name].values)
    np.testing.assert_array_equal(executed.loss.values, planned.loss.values)
    whole = [dataclasses.replace(simulation(charge, clock).client, patience=None) for charge in ("planned", "executed")]
    runs = [dataclasses.replace(simulation("planned", clock), client=one).run(3) for one in whole]
    np.testing.assert_array_equal(runs[0].time, runs[1].time)  # without patience all steps are executed


def test_a_clock_that_cannot_charge_raises() -> None:
    semi = afl.clock.semi_async(fraction=0.5, lag=2, durations=afl.clock.uniform(1, 2))
    sim = dataclasses.replace(simulation("executed", semi), server=afl.server.safa())
    with pytest.raises(ValueError, match="semi_async"):
        sim.check()
    with pytest.raises(ValueError, match="planned times"):
        simulation("executed", afl.clock.synchronous(durations=afl.clock.constant(1.0))).run(until={"time": 5})


class says_so(afl.clock.free_running):
    """Says that durations do not change who arrives."""

    order_free = True


@pytest.mark.slow
def test_a_clock_whose_arrivals_depend_on_durations_cannot_say_otherwise() -> None:
    clock = says_so(concurrency=8, buffer=3, durations=afl.clock.constant(SECONDS, per="step"))
    sim = dataclasses.replace(simulation("executed", clock), server=afl.server.fedbuff())
    with pytest.raises(ValueError, match="order_free = False"):
        sim.run(10)


@pytest.mark.slow
def test_a_run_that_fails_is_charged_up_to_there() -> None:
    clock = afl.clock.synchronous(cohort=4, durations=afl.clock.constant(SECONDS, per="step"))
    sim = simulation("executed", clock)
    failing = afl.Client(optax.sgd, learning_rate=3.4e38, epochs=3, batch_size=16, patience=1, charge="executed")
    result = dataclasses.replace(sim, client=failing).run(20, eval_every=4)
    assert result.attrs["failed_step"] == 0
    assert result.time.values == SECONDS * result.executed_local_steps.values.max()
    found = afl.sweep(sim, {"client": [sim.client, failing]}, 20, eval_every=4)
    assert found.failed_step.values.tolist() == [-1, 0]
    assert np.isfinite(found.loss.values[0]).all()
