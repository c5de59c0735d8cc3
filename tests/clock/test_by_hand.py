"""Schedules that are worked by hand."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from jaxafl import clock as c
from jaxafl.clock.protocols.rounds import RESYNCHRONISED

Rows = list[list[tuple[Any, ...]]]


class Case(NamedTuple):
    """A clock, its clients, the seconds of its server steps, and the named columns of every arrival of every step."""

    clock: c.Clock
    clients: int
    times: list[float]
    columns: str
    rows: Rows
    local_steps: int = 1


def lasting(*seconds: float) -> c.Duration:
    return c.constant(np.array(seconds))


def free(seconds: list[float], starts: Any = None, **options: Any) -> c.Clock:
    recordings = {} if starts is None else {"starts": starts}
    return c.trace(c.free_running, durations=np.tile(np.array(seconds)[:, None], (1, 40)), **recordings, **options)


def four(**options: Any) -> c.Clock:
    """Runs of 1, 2, 4 and 1 s, three in flight, buffers of two."""
    return free([1.0, 2.0, 4.0, 1.0], concurrency=3, buffer=2, **options)


def cohorts(sets: Any, *seconds: float, replacement: bool = False) -> c.Clock:
    made = c.synchronous(cohort=len(sets[0]), replacement=replacement, durations=lasting(*seconds))
    return c.trace(made, sets=sets)


def send_buffers(sets: Any, *seconds: float, **buffers: Any) -> c.Clock:
    return c.trace(c.sampled(drawn=len(sets[0]), durations=lasting(*seconds), **buffers), sets=sets)


def contacts(sets: Any, seconds: list[float], period: float) -> c.Clock:
    durations = c.constant(np.array(seconds), per="step")
    return c.trace(c.interrupting(period=period, contacted=len(sets[0]), durations=durations), sets=sets)


SETS = [[0, 1], [0, 0], [2, 1], [0, 0]]
EQUAL = {"concurrency": 4, "buffer": 3}
PLACES = "client run_id reference staleness"
TIMED = "client run run_id reference staleness arrived"
READ = TIMED + " multiplicity"
SKEWED: Rows = [[(0, 0, 0, 0), (1, 1, 0, 0)], [(0, 4, 1, 0), (3, 3, 1, 0)], [(2, 2, 0, 2), (3, 6, 2, 0)]]
CASES: dict[str, Case] = {
    # Runs of 2 s (client 0) and 3 s (client 1), a step per arrival. At 6 s both arrive: both steps (3 and 4) are taken,
    # in client order, before both restart from version 5.
    "everyone in flight": Case(
        free([2.0, 3.0], concurrency=2), 2, [2, 3, 4, 6, 6, 8, 9], "client run run_id reference staleness started",
        [
            [(0, 0, 0, 0, 0, 0)],
            [(1, 0, 1, 0, 1, 0)],
            [(0, 1, 2, 1, 1, 2)],
            [(0, 2, 4, 3, 0, 4)],
            [(1, 1, 3, 2, 2, 3)],
            [(0, 3, 5, 5, 0, 6)],
            [(1, 2, 6, 5, 1, 6)],
        ],
    ),
    # 1 s: 0 arrives, 3 starts from v0. 2 s: 1 then 3 arrive; 0 and 1 complete step 0, then 0 and 1 start from v1.
    # 3 s: 0 joins 3 in step 1; 3 starts from v2. 4 s: 1, 2, 3 arrive; 1 and 2 make step 2.
    "starts at arrivals": Case(
        four(starts=[0, 1, 2, 3, 0, 1, 3, 0, 1, 2]), 4, [2, 3, 4], PLACES,
        [[(0, 0, 0, 0), (1, 1, 0, 0)], [(3, 3, 0, 1), (0, 4, 1, 0)], [(1, 5, 1, 1), (2, 2, 0, 2)]],
    ),
    # As above, but at 2 s client 1 (delivered at version 0) hands v0 to its replacement 0, while client 3 (delivered
    # at version 1, after step 0) hands v1 to its replacement 1; at 3 s client 0 hands v1 on instead of v2.
    # 4 s: 3 (d6) is left in the buffer; 0 (d7, v2), 1 (d8, v2) and 2 (d9, v3) start. 5 s: 0 arrives.
    "before the step": Case(
        four(starts=[0, 1, 2, 3, 0, 1, 3, 0, 1, 2], before_step=True), 4, [2, 3, 4, 5], PLACES,
        [
            [(0, 0, 0, 0), (1, 1, 0, 0)],
            [(3, 3, 0, 1), (0, 4, 0, 1)],
            [(1, 5, 1, 1), (2, 2, 0, 2)],
            [(3, 6, 1, 2), (0, 7, 2, 1)],
        ],
    ),
    # 2 s: 0 and 1 make step 0; 3 and 0 start from v1. 3 s: 0, 3 make step 1; 1 and 3 start from v2.
    # 4 s: 2 and 3 make step 2.
    "starts at steps": Case(four(starts=[0, 1, 2, 3, 0, 1, 3], dispatch="step"), 4, [2, 3, 4], PLACES, SKEWED),
    # The FIRST of each two newcomers (dispatch 3, then 5) trains from the version before; stamps stay.
    "skew": Case(
        four(starts=[0, 1, 2, 3, 0, 1, 3], dispatch="step", start_skew=True), 4, [2, 3, 4], PLACES + " version",
        [
            [(*one, version) for one, version in zip(row, versions, strict=True)]
            for row, versions in zip(SKEWED, [(0, 0), (1, 0), (0, 2)], strict=True)
        ],
    ),
    # Four equal clients, buffers of three: at 1 s step 0 takes 0, 1, 2 and client 3 waits. "step": 0, 1, 2 restart from
    # v1; at 2 s they are 0, 1 (completing step 1 with 3) and 2; so 3, 0, 1 restart.
    "several buffers at one instant, at steps": Case(
        free([1.0] * 4, dispatch="step", **EQUAL), 4, [1, 2, 3], "client reference",
        [[(0, 0), (1, 0), (2, 0)], [(3, 0), (0, 1), (1, 1)], [(2, 1), (0, 2), (1, 2)]],
    ),
    # "arrival": all four restart at 1 s from v1. At 2 s: 3 (left over), 0, 1 make step 1 and 2, 3 wait; 3 s: 2, 3, 0.
    "several buffers at one instant": Case(
        free([1.0] * 4, **EQUAL), 4, [1, 2, 3], "client reference",
        [[(0, 0), (1, 0), (2, 0)], [(3, 0), (0, 1), (1, 1)], [(2, 1), (3, 1), (0, 2)]],
    ),
    "durations by run": Case(
        c.trace(c.free_running, durations=[[1.0, 2.0, 3.0, 4.0]], concurrency=1), 1, [1, 3, 6], "run",
        [[(0,)], [(1,)], [(2,)]],
    ),
    # Runs of 1, 2, 3 s. Round 0: clients 0 and 2, 3 s. Round 1: 1 arrives at 5 s, 2 at 6 s.
    "cohorts": Case(
        cohorts([[2, 0], [2, 1]], 1.0, 2.0, 3.0), 3, [3, 6], TIMED,
        [[(0, 0, 0, 0, 0, 1), (2, 0, 1, 0, 0, 3)], [(1, 0, 2, 1, 0, 5), (2, 1, 3, 1, 0, 6)]],
    ),
    "drawn twice": Case(
        cohorts([[1, 0, 1]], 1.0, 2.0, replacement=True), 2, [2], "client multiplicity", [[(0, 1), (1, 2)]]
    ),
    # Tick 0: client 0 gets through, but not its download: run 0 again at tick 1, then run 1 from v2. Client 1 arrives
    # first at tick 1. Tick 2 is empty. Tick 3: both arrive; client 1's download fails, so its run 1 comes again.
    "bernoulli": Case(
        c.trace(
            c.bernoulli(0.5, 0.5),
            uploads=np.array([[1, 0], [1, 1], [0, 0], [1, 1], [1, 1]], bool),
            downloads=np.array([[0, 1], [1, 1], [1, 1], [1, 0], [1, 1]], bool),
        ),
        2, [1, 2, 3, 4, 5], "client run run_id reference staleness started arrived",
        [
            [(0, 0, 0, 0, 0, 0, 1)],
            [(0, 0, 0, 0, 1, 0, 2), (1, 0, 1, 0, 1, 0, 2)],
            [],
            [(0, 1, 2, 2, 1, 2, 4), (1, 1, 3, 2, 1, 2, 4)],
            [(0, 2, 4, 4, 0, 4, 5), (1, 1, 3, 2, 2, 2, 5)],
        ],
    ),
    # 1 s: c0. 2 s: c0 (overwrites) and c1: step 0. 3 s: c0 from v1: step 1, counted twice. 4 s: c0 from v2, c1 from v1.
    # 5 s: c0 again (from v2) and c2 (from v0): step 2 reads c1 and c2, and step 3 finds c0's buffer full at once.
    "sampled": Case(
        send_buffers(SETS, 1.0, 2.0, 5.0), 3, [2, 3, 5, 5], READ,
        [
            [(0, 1, 3, 0, 0, 2, 1), (1, 0, 1, 0, 0, 2, 1)],
            [(0, 2, 4, 1, 0, 3, 2)],
            [(1, 1, 5, 1, 1, 4, 1), (2, 0, 2, 0, 2, 5, 1)],
            [(0, 4, 7, 2, 1, 5, 2)],
        ],
    ),
    # The first of client 0's two results stays in the buffer each time: run 0 of 1 s, and run 3 of 4 s.
    "sampled, hold": Case(
        send_buffers(SETS, 1.0, 2.0, 5.0, send_buffer="hold"), 3, [2, 3, 5, 5], READ,
        [
            [(0, 0, 0, 0, 0, 1, 1), (1, 0, 1, 0, 0, 2, 1)],
            [(0, 2, 4, 1, 0, 3, 2)],
            [(1, 1, 5, 1, 1, 4, 1), (2, 0, 2, 0, 2, 5, 1)],
            [(0, 3, 6, 2, 1, 4, 2)],
        ],
    ),
    # Client 0 idles from 1 s to 2 s and from 4 s on. Client 1, arrived at 4 s, may start: it has not used v2.
    "sampled, consume": Case(
        send_buffers(SETS, 1.0, 2.0, 5.0, receive_buffer="consume"), 3, [2, 3, 5, 5], READ,
        [
            [(0, 0, 0, 0, 0, 1, 1), (1, 0, 1, 0, 0, 2, 1)],
            [(0, 1, 3, 1, 0, 3, 2)],
            [(1, 1, 4, 1, 1, 4, 1), (2, 0, 2, 0, 2, 5, 1)],
            [(0, 2, 5, 2, 1, 4, 2)],
        ],
    ),
    # 2 s: client 1 completes round 0 and client 2 renews its buffer: the renewed result is read, although client 1
    # comes first.
    "sampled, a newer result": Case(send_buffers([[1, 2]], 9.0, 2.0, 1.0), 3, [2], "client run", [[(1, 0), (2, 1)]]),
    # Steps of .5, 1 and 3 s, contacts at 2, 4, 6, 8 s. Client 1 at 4 s: its fourth step ends exactly then. Client 2
    # makes nothing in 2 s, and one step in the 4 s up to the last contact. Client 0 has 4 s before 6 s: K = 5 of 8, and
    # then 2 s.
    "contacts": Case(
        contacts([[2, 0], [1, 2], [0, 1], [2, 0]], [0.5, 1.0, 3.0], 2.0), 3, [2, 4, 6, 8],
        "client run run_id reference staleness started local_steps",
        [
            [(0, 0, 0, 0, 0, 0, 4), (2, 0, 2, 0, 0, 0, 0)],
            [(1, 0, 1, 0, 1, 0, 4), (2, 1, 4, 1, 0, 2, 0)],
            [(0, 1, 3, 1, 1, 2, 5), (1, 1, 5, 2, 0, 4, 2)],
            [(0, 2, 7, 3, 0, 6, 4), (2, 2, 6, 2, 1, 4, 1)],
        ],
        5,
    ),
    # Runs of 1, 2, 3 s. Round 0 clamps at v0 and lasts 3 s. Round 1 starts at 3 s and lasts 2 s. Round 2 draws client 1
    # twice: two runs, from v0 and v1.
    "stale rounds": Case(
        c.trace(
            c.stale_rounds(participants=2, max_staleness=3, durations=lasting(1.0, 2.0, 3.0), replacement=True),
            sets=[[2, 0], [0, 1], [1, 1]],
            stale=[[0, 3], [1, 0], [2, 1]],
        ),
        3, [3, 5, 7], "client run run_id reference staleness started arrived",
        [
            [(2, 0, 0, 0, 0, 0, 3), (0, 0, 1, 0, 0, 0, 1)],
            [(0, 1, 2, 0, 1, 3, 4), (1, 0, 3, 1, 0, 3, 5)],
            [(1, 1, 4, 0, 2, 5, 7), (1, 2, 5, 1, 1, 5, 7)],
        ],
    ),
    # Quota 1, lag 1. Round 0 picks c0 at 1 s. Round 1: c0 and c1 arrive at 2 s; c0 was picked before, so c1 is picked.
    # Round 2, from 2 s: c2 and c3 still train on v0, two behind: abandoned; c0 arrives at 3 s. Round 3: c1, c2, c3 go
    # on from v2; c0 and c1 arrive at 4 s. Round 4: c2 and c3 are abandoned again.
    "stragglers": Case(
        c.semi_async(fraction=0.25, lag=1, durations=lasting(1.0, 2.0, 5.0, 20.0)), 4, [1, 2, 3, 4, 5],
        "kind client run run_id reference staleness arrived",
        [
            [("picked", 0, 0, 0, 0, 0, 1)],
            [("undrafted", 0, 1, 4, 1, 0, 2), ("picked", 1, 0, 1, 0, 1, 2)],
            [("picked", 0, 2, 5, 2, 0, 3)],
            [("undrafted", 0, 3, 9, 3, 0, 4), ("picked", 1, 1, 6, 2, 1, 4)],
            [("picked", 0, 4, 10, 4, 0, 5)],
        ],
    ),
    # Quota 2 of 3: from round 1 on only one client was not picked before, so the round lasts until nobody trains (4 s:
    # c0 3 s, c1 and c2 4 s; 8 s: c0 5 s, c1 6 s, c2 8 s) and the earliest other, c0, fills up.
    "quota": Case(
        c.semi_async(fraction=2 / 3, lag=9, durations=lasting(1.0, 2.0, 4.0)), 3, [2, 4, 8],
        "kind client reference staleness arrived",
        [
            [("picked", 0, 0, 0, 1), ("picked", 1, 0, 0, 2)],
            [("picked", 0, 1, 0, 3), ("undrafted", 1, 1, 0, 4), ("picked", 2, 0, 1, 4)],
            [("picked", 0, 2, 0, 5), ("picked", 1, 2, 0, 6), ("undrafted", 2, 2, 0, 8)],
        ],
    ),
    # All four at 1 s, quota 1: c0, then the others compensate: c1 (first of 1, 2, 3), then c0 again.
    "quota at one instant": Case(
        c.semi_async(fraction=0.25, lag=1, durations=c.constant(1.0)), 4, [1, 2, 3], "kind",
        [[("picked" if client == picked else "undrafted",) for client in range(4)] for picked in (0, 1, 0)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_schedules_by_hand(name: str) -> None:
    case = CASES[name]
    made = c.schedule(case.clock, case.clients, case.local_steps, len(case.times))
    assert made.time.tolist() == case.times
    columns = {one: getattr(made, one).tolist() for one in case.columns.split()}
    if "kind" in columns:
        columns["kind"] = [[made.kinds[kind].partition(",")[0] for kind in row] for row in columns["kind"]]
    found = [
        [tuple(column[t][place] for column in columns.values()) for place in np.flatnonzero(made.mask[t])]
        for t in range(len(case.times))
    ]
    assert found == case.rows


def test_deprecated_clients_by_hand() -> None:
    case = CASES["stragglers"]
    abandoned = c.schedule(case.clock, 4, 1, 5).kind >= RESYNCHRONISED
    assert [np.flatnonzero(row).tolist() for row in abandoned] == [[], [], [2, 3], [], [2, 3]]
