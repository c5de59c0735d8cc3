"""Protocols whose first step takes an update of every client, against their own schedules without it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jaxafl as afl
from jaxafl import clock
from jaxafl.clock import Schedule
from jaxafl.clock import schedule as run_clock
from tests.problems import classifier
from tests.variants import slow_but

CLIENTS, STEPS = 6, 25
DURATIONS = clock.uniform(1, 8, per="client") * clock.uniform(0.8, 1.2)
PROTOCOLS: dict[str, Any] = {
    "free_running": clock.free_running(concurrency=CLIENTS, durations=DURATIONS),
    "free_running, ties": clock.free_running(concurrency=4, durations=clock.constant(1.0), buffer=3),
    "free_running, lost": clock.free_running(concurrency=CLIENTS, durations=DURATIONS, buffer=2, lost=0.3),
    "synchronous": clock.synchronous(cohort=2, durations=DURATIONS),
    "bernoulli": clock.bernoulli(0.3, 0.6),
}
COLUMNS = ("client", "run", "run_id", "version", "started", "arrived", "multiplicity")


def entries(schedule: Schedule, t: int, columns: tuple[str, ...] = COLUMNS) -> list[tuple[Any, ...]]:
    mask = schedule.mask[t]
    return list(zip(*(getattr(schedule, name)[t][mask].tolist() for name in columns), strict=True))


@pytest.mark.parametrize("first", slow_but(["complete", "next"], "next"))
@pytest.mark.parametrize("name", slow_but(PROTOCOLS, "free_running, ties"))
def test_the_first_step_takes_the_last_update_of_every_client(name: str, first: Any) -> None:
    for seed in range(3):
        plain = run_clock(PROTOCOLS[name], CLIENTS, 1, 120, seed)
        found = run_clock(clock.warm_up(PROTOCOLS[name], first=first), CLIENTS, 1, STEPS, seed)
        assert (
            found.staleness[found.mask].max() >= 0 and (found.reference[found.mask] == found.version[found.mask]).all()
        )
        assert not {*found.run_id[found.mask].tolist()} & {*found.unused.run_id.tolist()}
        last: dict[int, tuple[Any, ...]] = {}
        seen, steps = set[tuple[Any, ...]](), 0  # `bernoulli` may deliver a run again
        complete = False
        while not complete:
            complete = first == "next" and len(last) == CLIENTS
            last |= {one[0]: one for one in entries(plain, steps)}
            seen |= {one[:2] for one in entries(plain, steps)}
            steps += 1
            complete |= first == "complete" and len(last) == CLIENTS
        fresh = [(*one[:3], 0, *one[4:]) for one in last.values()]
        assert sorted(entries(found, 0)) == sorted(fresh)
        for t in range(1, STEPS):
            inner = steps + t - 1
            moved = [(*one[:3], max(one[3] - steps + 1, 0), *one[4:]) for one in entries(plain, inner)]
            assert entries(found, t) == moved, t
        window = slice(steps - 1, steps - 1 + STEPS)
        np.testing.assert_array_equal(found.time, plain.time[window])
        np.testing.assert_array_equal(found.runs_refused, plain.runs_refused[window] + len(seen) - CLIENTS)
        for count in ("runs_begun", "runs_lost"):
            np.testing.assert_array_equal(getattr(found, count), getattr(plain, count)[window])


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize("name", PROTOCOLS)
def test_all_clients_begin_with_a_run_that_takes_no_time(name: str) -> None:
    plain = run_clock(PROTOCOLS[name], CLIENTS, 1, STEPS, 1)
    found = run_clock(clock.warm_up(PROTOCOLS[name], first="all"), CLIENTS, 1, STEPS + 1, 1)
    assert (
        entries(found, 0) == [(client, 0, client, 0, 0.0, 0.0, 1) for client in range(CLIENTS)] and found.time[0] == 0
    )
    for t in range(STEPS):
        moved = [(c, run + 1, one + CLIENTS, version + 1, *more) for c, run, one, version, *more in entries(plain, t)]
        assert entries(found, t + 1) == moved
    np.testing.assert_array_equal(found.time[1:], plain.time)
    np.testing.assert_array_equal(found.runs_begun[1:], plain.runs_begun + CLIENTS)


@pytest.mark.slow
def test_local_steps_belong_to_the_runs() -> None:
    table = np.arange(1, 1 + 2 * 40).reshape(2, 40)  # [client, run]
    made = clock.warm_up(clock.free_running(concurrency=2, durations=clock.constant(0.1, per="step")), first="all")
    found = run_clock(made, 2, table, 20)
    mask = found.mask
    np.testing.assert_array_equal(found.local_steps[mask], table[found.client[mask], found.run[mask]])


def test_ia2sgd_needs_all_clients_in_training() -> None:
    some = clock.free_running(concurrency=2, durations=clock.constant(1.0))
    for made in (some, clock.free_running(3, begins=clock.grace(1.0), durations=clock.constant(1.0))):
        with pytest.raises(ValueError, match="all clients train all the time"):
            classifier(server=afl.server.ia2sgd(), clock=clock.warm_up(made)).run(3)
