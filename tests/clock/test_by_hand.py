"""The schedules that are worked by hand (`tests/oracle/test_oracle_clock*`), made by the package's own clocks.

Left out are those whose arrivals the package lists in another order (cohorts, which the conformance tests compare by
client), whose sets change their size, and that list abandoned runs, which are no arrivals here.
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
from jaxafl import clock
from tests.oracle.clock import Arrival, ServerStep
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

RUNS = 40


def steps_of(protocol: Any, num_clients: int, rounds: int, local_steps: int = 1) -> list[ServerStep]:
    """The package's schedule in the oracle's words."""
    made = clock.schedule(protocol, num_clients, local_steps, rounds, check=False)
    found = []
    for t in range(rounds):
        arrivals = []
        for entry in np.flatnonzero(made.mask[t]).tolist():
            value = {name: getattr(made, name)[t, entry].item() for name in NAMES}
            kind = made.kinds[value["kind"]] if made.kinds else "arrival"
            arrivals.append(
                Arrival(
                    value["client"], value["run"], value["run_id"], value["reference"], value["version"],
                    value["staleness"], value["started"], value["arrived"], value["local_steps"],
                    value["multiplicity"], kind,
                )
            )  # fmt: skip
        found.append(ServerStep(t, made.time[t].item(), tuple(arrivals)))
    return found


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
    durations = clock.recorded(table(duration, num_clients))
    return steps_of(clock.semi_async(fraction=fraction, lag=lag, durations=durations), num_clients, rounds)


@pytest.fixture(autouse=True)
def clocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package's clocks in the place of the oracle's."""
    for module, constructors in {
        free: (free_running, synchronous),
        lossy: (bernoulli,),
        contacts: (interrupting,),
        drawn: (sampled,),
        quota: (semi_async,),
    }.items():
        for constructor in constructors:
            monkeypatch.setattr(module, constructor.__name__, constructor)
    yield
    monkeypatch.undo()
