"""Simulated time may be charged for the epochs that a run really made."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl.callbacks.hooks import Hook
from jaxafl.clock.schedules import recharged
from jaxafl.engine.loop import run_to_end
from jaxafl.engine.planned import planned
from jaxafl.engine.problem import Speed

SECONDS = 0.5


def simulation(charge: str, clock: afl.clock.Clock) -> afl.Simulation:
    return afl.Simulation(
        afl.data.synthetic(1.0, 1.0, clients=8, max_size=80),
        afl.models.logistic(10),
        afl.Client(optax.adam, learning_rate=0.03, epochs=6, batch_size=16, patience=1, charge=charge),
        afl.server.afl() if clock.name == "stale_rounds" else afl.server.fedavg(),
        clock,
    )


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


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"concurrency": 8}, marks=pytest.mark.slow),
        pytest.param({"concurrency": 3, "buffer": 2}, marks=pytest.mark.slow),
        pytest.param({"concurrency": 4, "buffer": 2, "dispatch": "step"}, marks=pytest.mark.slow),
        pytest.param({"concurrency": 4, "buffer": 2, "before_step": True}, marks=pytest.mark.slow),
        pytest.param({"concurrency": 4, "buffer": 2, "dispatch": "step", "start_skew": True}, marks=pytest.mark.slow),
    ],
    ids=["all in flight", "arrival", "step", "before_step", "start_skew"],
)
def test_free_running_is_the_fixed_point_of_schedule_and_training(options: dict[str, Any]) -> None:
    """Beside: charge and schedule in one pass. Here: execute a schedule, charge what was made, and so on until nothing
    changes."""
    steps, more = 10, 24
    durations = afl.clock.uniform(0.5, 1.5, per="client") * afl.clock.constant(SECONDS, per="step")
    clock = afl.clock.free_running(durations=durations, **options)
    beside = dataclasses.replace(simulation("executed", clock), server=afl.server.fedbuff(0.5))
    result = beside.run(steps, eval_every=5, seed=2)

    ahead = dataclasses.replace(simulation("planned", clock), server=afl.server.fedbuff(0.5))
    schedule, most = ahead.compute_schedule(more, 2), ahead.client.local_steps(ahead.data.counts)
    for _ in range(more):
        schedule = dataclasses.replace(schedule, local_steps=most[schedule.client])  # what a run may make
        execution = planned([ahead.problem(2)], schedule, more, Speed())
        (trained,) = run_to_end(execution, more, more, Hook(), 0.0)
        late = recharged(schedule, clock, most, trained.records["executed_local_steps"], 2)
        settled = np.array_equal(late.time, schedule.time)
        schedule = late
        if settled:
            break
    assert settled
    made = trained.records["executed_local_steps"][:steps]
    assert (made < most[schedule.client[:steps]]).any()  # some runs stopped early
    for name in ("client_id", "run_index", "staleness", "arrived_at", "started_at", "time"):
        expected = getattr(schedule, name.removesuffix("_at").removesuffix("_index").removesuffix("_id"))[:steps]
        np.testing.assert_allclose(result[name].values, expected, rtol=1e-12, err_msg=name)
    np.testing.assert_array_equal(result.executed_local_steps.values, made)
    np.testing.assert_array_equal(result.local_steps.values, made)
    np.testing.assert_allclose(result.delta_norm.values, trained.records["delta_norm"][:steps], rtol=1e-5)


def test_a_clock_that_cannot_charge_raises() -> None:
    clock = afl.clock.free_running(concurrency=3, buffer=2, durations=afl.clock.uniform(1, 2))
    sim = dataclasses.replace(simulation("executed", clock), server=afl.server.fedbuff())
    with pytest.raises(ValueError, match=r"the schedule of fedbuff depends on the training, because Client\(charge="):
        sim.schedule(3)
    semi = afl.clock.semi_async(fraction=0.5, lag=2, durations=afl.clock.uniform(1, 2))
    with pytest.raises(ValueError, match=r"semi_async cannot be advanced during training, .* free_running"):
        dataclasses.replace(sim, clock=semi, server=afl.server.safa()).check()
    with pytest.raises(ValueError, match="rate_schedule needs the staleness"):
        scheduled = dataclasses.replace(sim.client, rate_schedule=lambda moment: 1.0 * moment.staleness)
        dataclasses.replace(sim, client=scheduled).check()
    with pytest.raises(ValueError, match="give patience"):
        afl.Client(optax.sgd, learning_rate=0.1, epochs=2, charge="executed").check(8)


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize("lanes", [None, 8])
@pytest.mark.parametrize(
    "options",
    [
        {"buffer": 3, "dispatch": "step", "start_skew": True},
        {"buffer": 2, "dispatch": "step", "start_skew": True},
        {"buffer": 4, "before_step": True},
    ],
    ids=["skew of 3", "skew of 2", "before_step"],
)
def test_where_nobody_stops_early_both_charges_are_one_run(options: dict[str, Any], lanes: int | None) -> None:
    """Long enough that every slot of the ring is written many times, with runs much later than others."""
    results = []
    for charge in ("planned", "executed"):
        clock = afl.clock.free_running(concurrency=6, durations=afl.clock.uniform(0.5, 6), **options)
        client = afl.Client(optax.sgd, learning_rate=0.1, epochs=2, batch_size=16, patience=1000, charge=charge)
        sim = dataclasses.replace(simulation(charge, clock), client=client, server=afl.server.fedbuff(0.5))
        results.append(sim.run(40, eval_every=10, seed=2, lanes=lanes))
    planned, executed = results
    for name in ("client_id", "run_index", "staleness", "time", "started_at", "arrived_at"):
        np.testing.assert_array_equal(executed[name].values, planned[name].values)
    for name in ("loss", "delta_norm"):
        np.testing.assert_allclose(executed[name].values, planned[name].values, rtol=2e-5)
    for name in ("runs_started", "runs_never_consumed"):
        assert executed.attrs[name] == planned.attrs[name]


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
