"""Clients that are not drawn outside their hours."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import jaxafl as afl
from jaxafl.clock import Schedule, available, constant, free_running, synchronous, uniform
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


@pytest.mark.parametrize("concurrency", slow_but([1, 3, 7], 3))
def test_clients_start_as_soon_as_hours_and_places_allow(concurrency: int) -> None:
    clock = free_running(concurrency=concurrency, durations=uniform(0.2 * HOUR, 9 * HOUR), hours=HOURS)
    check_starts(run_clock(clock, CLIENTS, 1, 300, 5), concurrency)


@pytest.mark.slow
def test_draws_are_uniform_among_the_idle_clients_within_their_hours() -> None:
    hours = available([0, 0, 12, 12], [12, 12, 24, 24])
    clock = free_running(concurrency=1, durations=constant(HOUR), hours=hours)
    client = run_clock(clock, 4, 1, 2400, 0).client.ravel().reshape(-1, 2, 12)
    assert (client[:, 0] < 2).all() and (client[:, 1] >= 2).all()
    assert np.abs(np.bincount(client.ravel()) - 600).max() < 4 * np.sqrt(1200 * 0.25)
    rounds = run_clock(synchronous(cohort=1, durations=constant(HOUR), hours=hours), 4, 1, 2400, 0).client.ravel()
    assert np.abs(np.bincount(rounds) - 600).max() < 4 * np.sqrt(1200 * 0.25)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"cohort": 2}, {"cohort": 3, "replacement": True}])
def test_a_cohort_is_drawn_from_the_clients_within_their_hours(options: dict[str, Any]) -> None:
    schedule = run_clock(synchronous(durations=uniform(HOUR, 5 * HOUR), hours=HOURS, **options), CLIENTS, 1, 60, 1)
    now = 0.0
    size = options.get("cohort", CLIENTS)
    for t in range(60):
        begin = min(opens(client, now) for client in range(CLIENTS))
        awake = [client for client in range(CLIENTS) if opens(client, begin) == begin]
        mask = schedule.mask[t]
        assert set(schedule.client[t][mask]) <= set(awake)
        np.testing.assert_allclose(schedule.started[t][mask], begin)
        counted = schedule.multiplicity[t][mask].sum() if options.get("replacement") else mask.sum()
        assert counted == (size if options.get("replacement") else min(size, len(awake)))
        now = float(schedule.time[t])
        np.testing.assert_allclose(now, schedule.arrived[t][mask].max())


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


@pytest.mark.slow
def test_the_whole_day_changes_no_draw_of_the_durations() -> None:
    plain = free_running(concurrency=3, durations=uniform(1, 5))
    always = free_running(concurrency=3, durations=uniform(1, 5), hours=available(0, 24))
    for name in ("time", "client", "run"):
        np.testing.assert_array_equal(
            getattr(run_clock(plain, 9, 1, 50), name), getattr(run_clock(always, 9, 1, 50), name)
        )
    assert run_clock(free_running(concurrency=1, durations=1 + available(0, 24)), 2, 1, 9).time[-1] == 9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hours": uniform(1, 5)}, "hours=uniform(low=1, high=5) is not a client's hours; expected"),
        ({"hours": (22, 6)}, "is not a client's hours; expected jaxafl.clock.available"),
        ({"hours": available(22, 25)}, "available: end must be"),
        ({"hours": available([22, 3], 6)}, "available: begin"),
        ({"hours": HOURS, "max_staleness": 2, "on_bound": "stop"}, "on_bound='stop' chooses clients, too"),
        ({"hours": HOURS, "before_step": True}, "before_step=True"),
    ],
)
def test_other_hours_raise(options: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(words)):
        run_clock(free_running(concurrency=2, durations=constant(1), **options), CLIENTS, 1, 2)


@pytest.mark.slow
@pytest.mark.parametrize("server", [afl.server.fedavg(), afl.server.fedbuff(), afl.server.asyncfeded()])
def test_a_simulation_trains_by_hours(server: afl.server.Server) -> None:
    data = afl.data.synthetic(1.0, 1.0, clients=CLIENTS, max_size=30)
    durations = uniform(HOUR, 5 * HOUR)
    clock = (
        synchronous(cohort=3, durations=durations, hours=HOURS)
        if server.name == "fedavg"
        else free_running(concurrency=3, durations=durations, hours=HOURS)
    )
    sim = afl.Simulation(
        data, afl.models.logistic(10), afl.Client(learning_rate=0.03, steps=4, batch_size=10), server, clock
    )
    result = sim.run(server_steps=60, eval_every=60)
    schedule = run_clock(clock, CLIENTS, 4, 60)
    if server.name != "asyncfeded":  # its clients are told other numbers of local steps
        np.testing.assert_allclose(result.time, schedule.time)
        np.testing.assert_array_equal(result.participation, np.bincount(schedule.client[schedule.mask], minlength=7))
    assert result.final_accuracy > 0.2
