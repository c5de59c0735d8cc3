"""What all clocks have in common: options as fields, schedules, replay, clocks of one's own."""

from __future__ import annotations

import numpy as np
import pytest

import jaxafl.clock as clocks
from jaxafl.clock import Clock, Delivery, uniform
from jaxafl.clock import schedule as run_clock
from tests.variants import slow_but

DURATIONS = uniform(1, 5)
MADE: dict[str, Clock] = {
    "bernoulli": clocks.bernoulli(0.5, 0.7),
    "free_running": clocks.free_running(concurrency=3, durations=DURATIONS, buffer=2),
    "interrupting": clocks.interrupting(period=2.0, contacted=2, durations=uniform(0.1, 1, per="step")),
    "sampled": clocks.sampled(drawn=2, durations=DURATIONS),
    "semi_async": clocks.semi_async(fraction=0.4, lag=1, durations=DURATIONS),
    "stale_rounds": clocks.stale_rounds(participants=2, max_staleness=2, durations=DURATIONS),
    "synchronous": clocks.synchronous(cohort=2, durations=DURATIONS),
}


@pytest.mark.parametrize("name", slow_but(MADE, "semi_async", "bernoulli"))
def test_arrivals_are_what_the_clock_delivers(name: str) -> None:
    clock = MADE[name]
    schedule = run_clock(clock, 5, 4, 60)
    delivers, mask = clock.delivers, schedule.mask
    assert schedule.protocol == clock.name == name and schedule.kinds == clock.kinds
    assert (schedule.staleness[mask] > 0).any() == (Delivery.STALE in delivers)
    assert mask.any(axis=1).all() or Delivery.EMPTY in delivers
    if Delivery.BY_CLIENT in delivers:
        assert (schedule.client == np.arange(5)).all()
    if Delivery.MULTIPLE not in delivers:
        assert (schedule.multiplicity[mask] == 1).all()
    if Delivery.PARTIAL not in delivers:
        assert (schedule.local_steps[mask] == 4).all()
    taken = schedule.run_id[mask]
    assert (len(set(taken.tolist())) < len(taken)) == (Delivery.REPEATED in delivers)
    assert (schedule.kind[mask] > 0).any() == (Delivery.KINDS in delivers)
    assert schedule.runs_started > taken.max()
    assert repr(schedule).startswith(f"Schedule(protocol={name}, clients=5, server_steps=60, arrivals={mask.sum()}, ")


def test_one_row_of_local_steps_is_that_of_every_client() -> None:
    clock = clocks.free_running(concurrency=3, durations=uniform(1, 5, per="step"))
    rows = [[2, 1, 3]], [[2, 1, 3]] * 5
    one, all_alike = (run_clock(clock, 5, np.array(each), 30) for each in rows)
    np.testing.assert_array_equal(one.of_arrivals("local_steps"), all_alike.of_arrivals("local_steps"))
    np.testing.assert_array_equal(one.time, all_alike.time)
