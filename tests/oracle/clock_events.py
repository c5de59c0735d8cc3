"""Event loops in plain Python for protocols that refuse, stop, wait, lose or count arrivals, in windows or rounds."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Duration = Callable[[int, int], float]
"""Seconds of a run: `duration(client, run)`."""


@dataclass
class Flying:
    """A run in flight."""

    client: int
    run: int
    number: int
    version: int
    started: float
    arrived: float


@dataclass
class Log:
    """Server steps as (time, [(client, run, number, version, started, arrived)], kinds), and counts after each."""

    steps: list[tuple[float, list[tuple[Any, ...]], int | list[int]]] = field(default_factory=list)
    counts: list[tuple[int, ...]] = field(default_factory=list)  # started, refused, stopped, lost, skipped


class Fleet:
    """M_c of N clients in training; O(N) per event. Stopped clients restart themselves; with M_c = N all do."""

    def __init__(
        self,
        num_clients: int,
        duration: Duration,
        in_flight: int | None = None,
        pick: Any = None,
        openings: Sequence[float] = (),
    ) -> None:
        self.openings, self.limit = list(openings), in_flight or num_clients
        self.duration, self.runs, self.pick = duration, [0] * num_clients, pick
        self.flying: dict[int, Flying] = {}
        self.draws = 0 if openings else in_flight or 0  # starts of drawn idle clients that are due
        self.due = set() if pick else set(range(num_clients))
        self.points: dict[int, int] = {}  # versions from which clients start that do not get the newest one
        self.held: list[int] = []  # clients that arrived, and wait for the server step
        self.now, self.version, self.started = 0.0, 0, 0
        self.refused = self.stopped = self.lost = self.skipped = 0
        self.log = Log()

    def start_due(self) -> None:
        for client in sorted(self.due):
            self.start(client)
        for _ in range(self.draws):
            idle = [client for client in range(len(self.runs)) if client not in self.flying]
            self.start(self.pick(self.started, idle))
        self.due, self.draws = set(), 0

    def start(self, client: int) -> None:
        run = self.runs[client]
        self.runs[client] += 1
        ends = self.now + self.duration(client, run)
        version = self.points.pop(client, self.version)
        self.flying[client] = Flying(client, run, self.started, version, self.now, ends)
        self.started += 1

    def restart(self, client: int) -> None:
        if self.openings:
            return
        if self.pick:
            self.draws += 1
        else:
            self.due.add(client)

    def hold(self, client: int) -> None:
        """Lets a start that is due wait for `release`."""
        self.draws -= bool(self.pick)
        self.due.discard(client)
        self.held.append(client)

    def release(self) -> None:
        for client in self.held:
            self.restart(client)
        self.held = []

    def stop_up_to(self, version: int) -> None:
        for client in [one for one, run in self.flying.items() if run.version <= version]:
            del self.flying[client]
            self.due.add(client)
            self.stopped += 1

    def step(self, taken: list[Flying], kind: int | list[int] = 0) -> None:
        arrivals = [(r.client, r.run, r.number, r.version, r.started, r.arrived) for r in taken]
        self.log.steps.append((self.now, arrivals, kind))
        self.log.counts.append((self.started, self.refused, self.stopped, self.lost, self.skipped))
        self.version += 1

    def instants(self, alarm: Callable[[], float], ring: Callable[[], None]) -> Any:
        """Yields the runs that arrive, in order; starts who is due when the clock leaves an instant."""
        while True:
            at_now = sorted(
                (r.client, r) for r in self.flying.values() if r.arrived == self.now and r.started < self.now
            )
            if at_now:
                run = self.flying.pop(at_now[0][0])
                self.restart(run.client)
                yield run
                continue
            if alarm() == self.now:
                ring()
                continue
            yield None  # the instant is over
            while self.openings and self.openings[0] == self.now:
                self.openings.pop(0)
                full = len(self.flying) + self.draws >= self.limit
                self.draws += not full
                self.skipped += full
            self.start_due()
            times = [r.arrived for r in self.flying.values()] + self.openings[:1]
            self.now = min(min(times, default=math.inf), alarm())


def bounded(
    num_clients: int,
    duration: Duration,
    server_steps: int,
    *,
    buffer: int | None = 1,
    bound: int | Callable[[int], int] | None = None,
    how: str = "refuse",
    period: float | Sequence[float] | None = None,
    is_lost: Callable[[int, int], bool] = lambda client, run: False,
    dispatch: str = "arrival",
    in_flight: int | None = None,
    pick: Callable[[int, list[int]], int] | None = None,
    openings: Sequence[float] = (),
) -> Log:
    """Steps by a buffer, by windows (of one length, or that end at given times) or both, with a bound on staleness.

    `pick(start, idle)` draws a client.
    """
    fleet, taken, windows = Fleet(num_clients, duration, in_flight, pick, openings), [], [1]
    at: Callable[[int], Any] = bound if callable(bound) else lambda version: bound

    def ring() -> None:
        fleet.step(list(taken))
        taken.clear()
        windows[0] += 1

    def alarm() -> float:
        if period is None:
            return math.inf
        return windows[0] * period if isinstance(period, float | int) else period[windows[0] - 1]

    for run in fleet.instants(alarm, ring):
        if len(fleet.log.steps) >= server_steps:
            return fleet.log
        if run is None:
            if how == "stop" and bound is not None:
                fleet.stop_up_to(fleet.version - at(fleet.version))
            continue
        if is_lost(run.client, run.run):
            fleet.lost += 1
        elif bound is not None and how != "wait" and fleet.version - run.version >= at(fleet.version):
            fleet.refused += 1
            continue
        else:
            taken.append(run)
            if dispatch == "step":
                fleet.hold(run.client)
        oldest = min((r.version for r in fleet.flying.values()), default=fleet.version)
        late = how == "wait" and bound is not None and fleet.version + 1 - oldest > at(fleet.version + 1)
        if buffer is not None and len(taken) >= buffer and not late:
            fleet.step(list(taken))
            taken.clear()
            fleet.release()
    raise AssertionError


def harmonic(num_clients: int, duration: Duration, server_steps: int, batch: float, stop: bool = True) -> Log:
    """Malenia SGD: steps when the harmonic mean of the counts exceeds S / n."""
    fleet, taken = Fleet(num_clients, duration), []
    for run in fleet.instants(lambda: math.inf, lambda: None):
        if len(fleet.log.steps) >= server_steps:
            return fleet.log
        if run is None:
            if stop:
                fleet.stop_up_to(fleet.version - 1)
            continue
        if run.version < fleet.version:
            fleet.refused += 1
            continue
        taken.append(run)
        counts = [sum(r.client == client for r in taken) for client in range(num_clients)]
        if all(counts) and 1 / (sum(1 / b for b in counts) / num_clients) > batch / num_clients + 1e-9:
            fleet.step(list(taken))
            taken.clear()
    raise AssertionError


def every_buffer(num_clients: int, duration: Duration, server_steps: int, buffers: int) -> Log:
    """BASGD: steps when the clients that have come fill all buffers."""
    fleet, taken = Fleet(num_clients, duration), []
    for run in fleet.instants(lambda: math.inf, lambda: None):
        if len(fleet.log.steps) >= server_steps:
            return fleet.log
        if run is None:
            continue
        taken.append(run)
        if {one.client % buffers for one in taken} == {*range(buffers)}:
            fleet.step(list(taken))
            taken.clear()
    raise AssertionError


def rounds_until_all(num_clients: int, duration: Duration, server_steps: int) -> Log:
    """THROTTLE: a step per arrival; the round ends, and all restart, when everybody has come."""
    fleet, heard, ended = Fleet(num_clients, duration), set(), [-1]
    for run in fleet.instants(lambda: math.inf, lambda: None):
        if len(fleet.log.steps) >= server_steps:
            return fleet.log
        if run is None:
            fleet.stop_up_to(ended[0])
            continue
        again = run.client in heard
        heard.add(run.client)
        ends = len(heard) == num_clients
        fleet.step([run], 2 if ends else int(again))
        if ends:
            heard.clear()
            ended[0] = fleet.version - 1
    raise AssertionError


def ringleader(num_clients: int, duration: Duration, server_steps: int, restart: str = "held") -> Log:
    """Ringleader ASGD with its tables as sets: collect one update of each, then a step for each; store the others."""
    fleet, taken, kinds = Fleet(num_clients, duration), [], []
    table, ahead, stepped, phase = set(), set(), set(), 1
    for run in fleet.instants(lambda: math.inf, lambda: None):
        if len(fleet.log.steps) >= server_steps:
            return fleet.log
        if run is None:
            continue
        client, steps = run.client, False
        if phase == 2 and client in stepped:
            ahead.add(client)
            kind = 2
        else:
            table.add(client)
            phase = 2 if len(table) == num_clients else phase
            steps = phase == 2
            kind = int(steps)
        taken.append(run)
        kinds.append(kind)
        if not steps:
            if restart == "held":
                fleet.points[client] = run.version
            continue
        fleet.step(list(taken), list(kinds))
        taken.clear()
        kinds.clear()
        stepped.add(client)
        if len(stepped) == num_clients:
            table, ahead, stepped, phase = ahead, set(), set(), 1
    raise AssertionError


def routed(
    num_clients: int, duration: Duration, server_steps: int, tasks: int, pick: Callable[[int, list[int]], int]
) -> Log:
    """Generalized AsyncSGD: every arrival is a step, after which a task is sent to a drawn client's queue."""
    log, now, version, sent, due = Log(), 0.0, 0, 0, tasks
    queues: list[deque[tuple[int, int]]] = [deque() for _ in range(num_clients)]  # (number, version)
    working: dict[int, Flying] = {}
    runs = [0] * num_clients
    while True:
        for _ in range(due):
            queues[pick(sent, list(range(num_clients)))].append((sent, version))
            sent += 1
        due = 0
        for client, queue in enumerate(queues):
            if queue and client not in working:
                number, sent_at = queue.popleft()
                ends = now + duration(client, runs[client])
                working[client] = Flying(client, runs[client], number, sent_at, now, ends)
                runs[client] += 1
        now = min(run.arrived for run in working.values())
        for client in sorted(working):
            if working[client].arrived == now:
                run = working.pop(client)
                log.steps.append((now, [(client, run.run, run.number, run.version, run.started, now)], 0))
                log.counts.append((sent, 0, 0, 0, 0))
                version, due = version + 1, due + 1
                if len(log.steps) == server_steps:
                    return log
