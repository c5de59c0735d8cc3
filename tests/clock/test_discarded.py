"""Refused, stopped and lost runs: with the others, they fill the time of all clients without a gap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxafl import clock

CLIENTS, STEPS = 5, 40


def discarded(schedule: clock.Schedule) -> Any:
    return schedule.unused.where(np.isin(schedule.unused.reason, ("refused", "stopped", "lost")))


TIMES = clock.uniform(0.5, 4.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "made",
    [
        clock.free_running(concurrency=CLIENTS, durations=TIMES, max_staleness=3, on_bound="stop", lost=0.2),
        clock.free_running(concurrency=CLIENTS, durations=TIMES, buffer=4, max_staleness=1),
        clock.harmonic(durations=TIMES, batch=12),
        clock.rounds_until_all(durations=TIMES),
        clock.synchronous(cohort=3, extra=2, durations=TIMES, deadline=3.0),
    ],
    ids=lambda made: made.name,
)
def test_discarded_and_other_runs_fill_the_time_of_all_clients(made: clock.Clock) -> None:
    """All clients train all the time; in rounds until they arrive or are stopped."""
    schedule = clock.schedule(made, CLIENTS, 1, STEPS, seed=3)
    found, (flying, since) = discarded(schedule), schedule.under_way()
    counts = [getattr(schedule, f"runs_{name}")[-1] for name in ("refused", "stopped", "lost")]
    assert len(found.client) == sum(counts) > 0
    mask = schedule.mask
    client = np.concatenate([schedule.client[mask], found.client, flying])
    started = np.concatenate([schedule.started[mask], found.started, since])
    ended = np.concatenate([schedule.arrived[mask], found.ended, np.full(len(flying), np.inf)])
    for one in range(CLIENTS):
        order = np.argsort(started[client == one])
        begun, over = started[client == one][order], ended[client == one][order]
        assert begun[0] == 0
        if isinstance(made, clock.synchronous):
            assert (begun[1:] >= over[:-1]).all()
        else:
            np.testing.assert_array_equal(begun[1:], over[:-1])


def test_nothing_is_discarded_without_a_bound() -> None:
    schedule = clock.schedule(clock.synchronous(durations=clock.constant(1.0)), 2, 1, 3)
    assert not len(discarded(schedule).client)
