"""The schedules that are worked by hand (`tests/oracle/test_oracle_clock*`), made by the package's own clocks.

Two are written out again: cohorts, whose runs the package numbers by client, and contacts, whose sets have one size
here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import tests.oracle.test_oracle_clock as free
import tests.oracle.test_oracle_clock_bernoulli as lossy
import tests.oracle.test_oracle_clock_interrupting as contacts
import tests.oracle.test_oracle_clock_sampled as drawn
import tests.oracle.test_oracle_clock_semi_async as quota
import tests.oracle.test_oracle_clock_stale_rounds as aged
from jaxafl import clock
from jaxafl.clock.protocols.rounds import RESYNCHRONISED
from tests.oracle.clock import Arrival, ServerStep
from tests.oracle.small_cases import per_client, rows
from tests.oracle.test_oracle_clock import (  # noqa: F401 (collected here too, with the clocks below)
    test_durations_see_the_run_index,
    test_free_running_before_step_by_hand,
    test_free_running_dispatch_arrival_by_hand,
    test_free_running_dispatch_step_and_start_skew_by_hand,
    test_free_running_everyone_in_flight_by_hand,
    test_free_running_several_buffers_in_one_instant,
    test_synchronous_with_replacement_trains_once_and_counts_twice,
)
from tests.oracle.test_oracle_clock_bernoulli import test_bernoulli_by_hand  # noqa: F401
from tests.oracle.test_oracle_clock_interrupting import (  # noqa: F401
    test_steps_that_fill_the_period_count_at_every_contact,
)
from tests.oracle.test_oracle_clock_sampled import (  # noqa: F401
    test_a_newer_result_of_the_instant_of_a_step_is_the_one_read,
    test_sampled_by_hand,
    test_sampled_consume_by_hand,
    test_sampled_hold_by_hand,
)
from tests.oracle.test_oracle_clock_semi_async import (  # noqa: F401
    test_semi_async_filling_up_by_hand,
    test_whoever_arrives_at_the_instant_of_the_close_is_undrafted,
)
from tests.oracle.test_oracle_clock_stale_rounds import test_stale_rounds_by_hand  # noqa: F401

RUNS = 40
pytestmark = pytest.mark.slow  # the references pass these tests in `tests/oracle`, and the clocks follow them


def steps_of(protocol: Any, num_clients: int, rounds: int, local_steps: int = 1) -> list[ServerStep]:
    """The package's schedule in the oracle's words."""
    made = clock.schedule(protocol, num_clients, local_steps, rounds)
    found = []
    for t in range(rounds):
        arrivals = [arrival(made, t, entry) for entry in np.flatnonzero(made.mask[t]).tolist()]
        found.append(ServerStep(t, made.time[t].item(), tuple(arrivals)))
    return found


def arrival(made: Any, t: int, entry: int) -> Arrival:
    value = {name: getattr(made, name)[t, entry].item() for name in NAMES}
    kind = made.kinds[value["kind"]] if made.kinds else "arrival"
    return Arrival(
        value["client"], value["run"], value["run_id"], value["reference"], value["version"], value["staleness"],
        value["started"], value["arrived"], value["local_steps"], value["multiplicity"], kind,
    )  # fmt: skip


NAMES = (
    "client", "run", "run_id", "reference", "version", "staleness", "started", "arrived", "local_steps", "multiplicity",
    "kind",
)  # fmt: skip


def table(duration: Callable[[int, int], float], num_clients: int) -> np.ndarray:
    return np.asarray([[duration(client, run) for run in range(RUNS)] for client in range(num_clients)], float)


def free_running(*, num_clients: int, duration: Any, server_steps: int, starts: Any = None, **options: Any) -> Any:
    recordings = {} if starts is None else {"starts": starts}
    protocol = clock.trace(clock.free_running, durations=table(duration, num_clients), **recordings, **options)
    return steps_of(protocol, num_clients, server_steps)


def synchronous(sets: Sequence[Sequence[int]], duration: Any, *, local_steps: int = 1) -> Any:
    clients, size = max(max(one) for one in sets) + 1, len(sets[0])
    repeats = any(len(set(one)) < size for one in sets)
    protocol = clock.trace(
        clock.synchronous(cohort=size, replacement=repeats), durations=table(duration, clients), sets=sets
    )
    return steps_of(protocol, clients, len(sets), local_steps)


def bernoulli(uploads: Any, downloads: Any = None) -> Any:
    downloads = np.ones_like(uploads) if downloads is None else downloads
    protocol = clock.trace(clock.bernoulli(0.5, 0.5), uploads=np.asarray(uploads), downloads=np.asarray(downloads))
    return steps_of(protocol, len(uploads[0]), len(uploads))


def sampled(sets: Any, duration: Any, *, num_clients: int, **buffers: Any) -> Any:
    """A smaller set is filled up with its last client, who is then counted as it was drawn."""
    size = max(map(len, sets))
    protocol = clock.sampled(drawn=size, durations=clock.recorded(table(duration, num_clients)), **buffers)
    filled = [[*one, *[one[-1]] * (size - len(one))] for one in sets]
    found = steps_of(clock.trace(protocol, sets=filled), num_clients, len(sets))
    return [
        dataclasses.replace(
            step,
            arrivals=tuple(dataclasses.replace(one, multiplicity=chosen.count(one.client)) for one in step.arrivals),
        )
        for step, chosen in zip(found, sets, strict=True)
    ]


def interrupting(sets: Any, duration: Any, *, num_clients: int, period: float, max_steps: int) -> Any:
    durations = clock.recorded(table(duration, num_clients), per="step")
    protocol = clock.interrupting(period=period, contacted=len(sets[0]), durations=durations)
    return steps_of(clock.trace(protocol, sets=sets), num_clients, len(sets), max_steps)


def semi_async(*, num_clients: int, fraction: float, lag: int, duration: Any, rounds: int) -> Any:
    """With the abandoned runs, which are no arrivals in the package, in front: those that the round before left."""
    protocol = clock.semi_async(fraction=fraction, lag=lag, durations=clock.recorded(table(duration, num_clients)))
    made = clock.schedule(protocol, num_clients, 1, rounds)
    found = steps_of(protocol, num_clients, rounds)
    for t, step in enumerate(found):
        given_up = [
            dataclasses.replace(
                arrival(made, t - 1, client), staleness=t - int(made.version[t - 1, client]),
                arrival_time=made.time[t - 1].item(), kind="deprecated",
            )
            for client in np.flatnonzero(made.kind[t] >= RESYNCHRONISED)
        ]  # fmt: skip
        named = [dataclasses.replace(one, kind=one.kind.partition(",")[0]) for one in step.arrivals]
        found[t] = dataclasses.replace(step, arrivals=(*given_up, *named))
    return found


def stale_rounds(sets: Any, stale: Any, duration: Any, *, num_clients: int) -> Any:
    """By arrival time, then client, then slot, as the oracle lists them."""
    durations = clock.recorded(table(duration, num_clients))
    protocol = clock.stale_rounds(
        participants=len(sets[0]), max_staleness=int(np.max(stale)), durations=durations, replacement=True
    )
    found = steps_of(clock.trace(protocol, sets=sets, stale=stale), num_clients, len(sets))
    in_order = [sorted(step.arrivals, key=lambda one: (one.arrival_time, one.client)) for step in found]
    return [dataclasses.replace(step, arrivals=tuple(one)) for step, one in zip(found, in_order, strict=True)]


def test_cohorts_by_hand() -> None:
    # Runs of 1, 2, 3 s. Round 0: clients 0 and 2, 3 s. Round 1: 1 arrives at 5 s, 2 at 6 s.
    steps = synchronous([[2, 0], [2, 1]], per_client([1.0, 2.0, 3.0]))
    assert [step.time for step in steps] == [3, 6]
    assert rows(steps, "client", "run", "dispatch", "start_version", "staleness", "arrival_time") == [
        [(0, 0, 0, 0, 0, 1.0), (2, 0, 1, 0, 0, 3.0)],
        [(1, 0, 2, 1, 0, 5.0), (2, 1, 3, 1, 0, 6.0)],
    ]


def test_contacts_by_hand() -> None:
    # The oracle's case; at the last contact client 0 is there too, 2 s and so four steps of .5 s after the one before.
    sets = [[2, 0], [1, 2], [0, 1], [2, 0]]
    steps = interrupting(sets, per_client([0.5, 1.0, 3.0]), num_clients=3, period=2.0, max_steps=5)
    assert [step.time for step in steps] == [2, 4, 6, 8]
    fields = ("client", "run", "dispatch", "start_version", "staleness", "start_time", "local_steps")
    assert [sorted(row) for row in rows(steps, *fields)] == [
        [(0, 0, 0, 0, 0, 0.0, 4), (2, 0, 2, 0, 0, 0.0, 0)],
        [(1, 0, 1, 0, 1, 0.0, 4), (2, 1, 4, 1, 0, 2.0, 0)],
        [(0, 1, 3, 1, 1, 2.0, 5), (1, 1, 5, 2, 0, 4.0, 2)],
        [(0, 2, 7, 3, 0, 6.0, 4), (2, 2, 6, 2, 1, 4.0, 1)],
    ]


@pytest.fixture(autouse=True)
def clocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package's clocks in the place of the oracle's."""
    for module, constructors in {
        free: (free_running, synchronous),
        lossy: (bernoulli,),
        contacts: (interrupting,),
        drawn: (sampled,),
        quota: (semi_async,),
        aged: (stale_rounds,),
    }.items():
        for constructor in constructors:
            monkeypatch.setattr(module, constructor.__name__, constructor)
    yield
    monkeypatch.undo()
