"""Clients that are not drawn outside their hours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jaxafl as afl
from jaxafl.clock import Schedule, at_arrival, available, constant, free_running, open_slots, synchronous, uniform
from jaxafl.clock import schedule as run_clock
from tests.variants import slow_but

HOUR, CLIENTS = 3600.0, 7
BEGIN = np.asarray([22.0, 8.0, 0.0, 12.0, 6.0, 20.0, 3.0])
END = np.asarray([6.0, 16.0, 24.0, 18.0, 7.5, 23.0, 3.5])
HOURS = available(BEGIN, END)


def opens(client: int, now: float) -> float:
    """The first time from `now` on within the client's hours, found by walking from day to day."""
    last = END[client] + 24 * (END[client] <= BEGIN[client])
    day = now // (24 * HOUR) - 2
    while (day * 24 + last) * HOUR <= now + 1e-6:
        day += 1
    return max(now, (day * 24 + BEGIN[client]) * HOUR)


def check_starts(schedule: Schedule, concurrency: int) -> None:
    """Every start happens as soon as a place is free and an idle client is within its hours."""
    columns = (schedule.run_id, schedule.started, schedule.arrived, schedule.client)
    run_id, started, arrived, client = (column[schedule.mask] for column in columns)
    order = np.argsort(run_id)
    order = order[run_id[order] == np.arange(order.size)]  # the runs before the first that is in flight at the end
    assert order.size > 250
    flight: dict[int, float] = {}  # client -> its arrival
    now = 0.0
    for one in order:
        while True:
            idle = [client for client in range(CLIENTS) if flight.get(client, now) <= now]
            if CLIENTS - len(idle) < concurrency and any(opens(client, now) == now for client in idle):
                break
            ends = [time for time in flight.values() if time > now]
            full = CLIENTS - len(idle) >= concurrency
            now = min(ends if full else ends + [opens(client, now) for client in idle])
        assert started[one] == pytest.approx(now, abs=1e-3) and client[one] in idle
        assert opens(int(client[one]), now) == now
        flight[int(client[one])] = float(arrived[one])


class first_half(afl.clock.Hours):
    """Of every ten seconds."""

    def prepare(self, keys: Any, num_clients: int) -> Any:
        return np.zeros(num_clients)

    def until(self, numpy: Any, prepared: Any, now: Any) -> Any:
        return numpy.where(now % 10 < 5, 0, 10 - now % 10) + prepared


def test_nobody_starts_outside_hours_of_ones_own() -> None:
    found = run_clock(free_running(concurrency=2, durations=uniform(1, 4), hours=first_half()), 3, 1, 20)
    assert (found.started % 10 < 5).all() and (np.diff(found.time) > 4).any()


@pytest.mark.parametrize("begins", [at_arrival(), open_slots(1)])
@pytest.mark.parametrize("concurrency", slow_but([1, 3, 7], 3))
def test_clients_start_as_soon_as_hours_and_places_allow(concurrency: int, begins: Any) -> None:
    durations = uniform(0.2 * HOUR, 9 * HOUR)
    clock = free_running(concurrency=concurrency, durations=durations, hours=HOURS, begins=begins)
    check_starts(run_clock(clock, CLIENTS, 1, 300, 5), concurrency)


@pytest.mark.slow
def test_without_a_client_within_its_hours_time_advances_to_the_first() -> None:
    hours = available([0.1, 12], [6, 18])
    step = {"buffer": 2, "dispatch": "step"}
    for clock, expected in (
        (free_running(concurrency=2, durations=constant(5 * HOUR), hours=hours), [5.1, 10.1, 17, 22, 29.1, 34.1]),
        (free_running(concurrency=2, durations=constant(5 * HOUR), hours=hours, **step), [10.1, 22, 34.1, 46]),
        (synchronous(durations=constant(5 * HOUR), hours=hours), [5.1, 10.1, 17, 22, 29.1, 34.1]),
    ):
        time = run_clock(clock, 2, 1, len(expected)).time / HOUR
        np.testing.assert_allclose(time, expected)


@pytest.mark.slow
def test_periods_and_bounds_of_staleness_go_on_while_clients_are_away() -> None:
    hours = available([0, 12], [6, 18])
    common: dict[str, Any] = {"concurrency": 2, "durations": constant(5 * HOUR), "hours": hours}
    schedule = run_clock(free_running(**common, period=4 * HOUR), 2, 1, 12)
    np.testing.assert_allclose(schedule.time, 4 * HOUR * np.arange(1, 13))
    assert schedule.mask.sum(axis=1).tolist() == [0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1]
    waiting = run_clock(free_running(**common, max_staleness=1, on_bound="wait"), 2, 1, 8)
    assert waiting.staleness[waiting.mask].max() <= 1
