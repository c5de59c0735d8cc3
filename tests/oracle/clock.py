"""Event-queue clocks in plain Python and float64: which runs arrive at each server step, and where they started."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Duration = Callable[..., float]
"""Seconds of a run: `duration(client, run)`, or `duration(client, run, local_steps)` where K is known."""


@dataclass(frozen=True)
class Arrival:
    """One finished run, as the server step that consumes it sees it.

    Attributes:
        client: Client index.
        run: Index of the run among this client's runs, in the order in which they START.
        dispatch: Index of the run among all runs of all clients, in the order in which they start.
        start_version: Version s that the run is stamped with and that its update is measured against.
        trained_from: Version whose parameters local training began at; differs from `start_version` only under
            `start_skew`.
        staleness: t - s, where t is the server step (= the version it acts on).
        start_time: Simulated seconds.
        arrival_time: Simulated seconds.
        local_steps: Number of local steps K, or None where the clock does not decide it.
        multiplicity: How many times the server counts the update.
        kind: "arrival"; the clock of semi-asynchronous rounds tells "picked", "undrafted" and "deprecated" apart.
    """

    client: int
    run: int
    dispatch: int
    start_version: int
    trained_from: int
    staleness: int
    start_time: float
    arrival_time: float
    local_steps: int | None
    multiplicity: int = 1
    kind: str = "arrival"


@dataclass(frozen=True)
class ServerStep:
    """Server step t: acts on version t and makes version t + 1 at `time`, the time of its last arrival."""

    step: int
    time: float
    arrivals: tuple[Arrival, ...]


OnStep = Callable[[int, tuple[Arrival, ...]], Mapping[int, int]]
"""`on_step(t, arrivals)` returns the next number of local steps of each client that the server answers."""


def synchronous(
    sets: Sequence[Sequence[int]], duration: Duration, *, local_steps: int | None = None
) -> list[ServerStep]:
    """Rounds: every client of the round starts from x_t at once; the round lasts as long as its slowest client.

    A client named k times in one set (drawing with replacement) trains once and is counted k times.

    Args:
        sets: The clients of each round, [rounds][n].
        duration: Seconds of a run.
        local_steps: Number of local steps K of every run; if given it is passed to `duration`.

    Returns:
        One step per round; its arrivals in order of arrival time, ties in client order.

    Raises:
        ValueError: If a round is empty or a duration is not positive and finite.
    """
    steps: list[ServerStep] = []
    runs: dict[int, int] = {}
    time, dispatched = 0.0, 0
    for t, members in enumerate(sets):
        if not members:
            raise ValueError(f"round {t} has no clients: every round needs at least one")
        arrivals = []
        for client in dict.fromkeys(members):
            run = runs.get(client, 0)
            runs[client] = run + 1
            arrivals.append(
                Arrival(
                    client=client,
                    run=run,
                    dispatch=dispatched,
                    start_version=t,
                    trained_from=t,
                    staleness=0,
                    start_time=time,
                    arrival_time=time + checked_duration(duration, client, run, local_steps),
                    local_steps=local_steps,
                    multiplicity=list(members).count(client),
                )
            )
            dispatched += 1
        arrivals.sort(key=lambda arrival: (arrival.arrival_time, arrival.client))
        time = arrivals[-1].arrival_time
        steps.append(ServerStep(t, time, tuple(arrivals)))
    return steps


def free_running(
    *,
    num_clients: int,
    concurrency: int,
    buffer: int,
    duration: Duration,
    server_steps: int,
    dispatch: str = "arrival",
    before_step: bool = False,
    start_skew: bool = False,
    starts: Sequence[int] | None = None,
    initial_steps: int | None = None,
    on_step: OnStep | None = None,
) -> list[ServerStep]:
    """Clients that never wait for each other: the earliest finisher arrives, and `buffer` arrivals make a server step.

    All arrivals of one instant are delivered in client order, and the server steps they complete are taken, before
    anyone restarts; then the vacated places are refilled in the order of delivery.

    Args:
        num_clients: N.
        concurrency: M_c, clients in flight.
        buffer: M, arrivals per server step.
        duration: Seconds of a run; gets the number of local steps as third argument if `initial_steps` is given.
        server_steps: Number of server steps to record.
        dispatch: "arrival": every arrival is replaced at its own instant, by a run from the newest version. "step": the
            M replacements of a buffer start together at its server step, from the newest version.
        before_step: Only with "arrival". The replacement of an arrival gets the version current just before THAT
            arrival was delivered, so the arrival completing buffer t hands out x_t (FADAS, Algorithm 1 read literally).
            If several buffers are completed at one instant, each arrival hands out the version that its own buffer was
            applied to.
        start_skew: Only with "step" (FADAS's released code). Of each M newcomers the first M - 1 train from the version
            before the newest, but are stamped with the newest, which their update is also measured against. Several
            buffers completed at one instant make as many such groups of M, all stamped with the newest version.
        starts: Client started at each dispatch index; the first `concurrency` are those in flight at the start. None,
            with concurrency = num_clients: 0 .. N-1, and then the arrived client itself.
        initial_steps: K_0, the number of local steps of each client until a reply changes it.
        on_step: Called after every server step; its replies hold from the client's next start.

    Returns:
        `server_steps` steps; their arrivals in order of delivery.

    Raises:
        ValueError: If the arguments contradict each other, a start names a client that is busy or does not exist, the
            starts run out, a duration is not positive and finite, or a reply is not a positive number of steps.
    """
    _check_free_running(num_clients, concurrency, buffer, dispatch, before_step, start_skew, starts)
    fleet = _Fleet(num_clients, duration, starts, initial_steps)
    for client in range(concurrency):
        fleet.start(arrived=client, time=0.0, start_version=0, trained_from=0)

    steps: list[ServerStep] = []
    in_buffer: list[Run] = []
    vacancies: list[tuple[int, int]] = []  # (arrived client, version just before its delivery)
    while len(steps) < server_steps:
        time, delivered = fleet.next_instant()
        for run in delivered:
            vacancies.append((run.client, len(steps)))
            in_buffer.append(run)
            if len(in_buffer) == buffer:
                step = ServerStep(len(steps), time, tuple(arrival(run, len(steps)) for run in in_buffer))
                steps.append(step)
                in_buffer = []
                if on_step is not None:
                    fleet.receive(on_step(step.step, step.arrivals))
                if len(steps) == server_steps:
                    return steps
        newest = len(steps)
        # Under "step", whoever sits in an incomplete buffer is replaced only when it completes.
        refilled = len(vacancies) if dispatch == "arrival" else len(vacancies) - len(in_buffer)
        for position, (client, version_before) in enumerate(vacancies[:refilled]):
            start_version = version_before if before_step else newest
            skewed = start_skew and position % buffer < buffer - 1
            fleet.start(
                arrived=client,
                time=time,
                start_version=start_version,
                trained_from=start_version - 1 if skewed else start_version,
            )
        vacancies = vacancies[refilled:]
    return steps


@dataclass(frozen=True)
class Run:
    """A run in flight; fields as in `Arrival`."""

    client: int
    run: int
    dispatch: int
    start_version: int
    trained_from: int
    start_time: float
    arrival_time: float
    local_steps: int | None


class _Fleet:
    """The clients: who is busy until when, how many runs each has started, how many local steps each does next."""

    def __init__(
        self, num_clients: int, duration: Duration, starts: Sequence[int] | None, initial_steps: int | None
    ) -> None:
        self._duration = duration
        self._starts = starts
        self._local_steps = [initial_steps] * num_clients
        self._runs = [0] * num_clients
        self._busy = [False] * num_clients
        self._dispatched = 0
        self._queue: Queue = []

    def start(self, *, arrived: int, time: float, start_version: int, trained_from: int) -> None:
        """Starts the next recorded client, or without a record the one that has just arrived."""
        client = arrived if self._starts is None else self._recorded(self._starts)
        if not 0 <= client < len(self._busy):
            raise ValueError(f"start {self._dispatched} names client {client}; there are {len(self._busy)} clients")
        if self._busy[client]:
            raise ValueError(f"start {self._dispatched} names client {client}, which is still busy at time {time}")
        run, local_steps = self._runs[client], self._local_steps[client]
        arrival_time = time + checked_duration(self._duration, client, run, local_steps)
        started = Run(client, run, self._dispatched, start_version, trained_from, time, arrival_time, local_steps)
        self._busy[client] = True
        self._runs[client] += 1
        self._dispatched += 1
        heapq.heappush(self._queue, (arrival_time, client, started))

    def next_instant(self) -> tuple[float, list[Run]]:
        """The next time at which anything arrives, and all that arrives then, in client order."""
        time, delivered = pop_instant(self._queue)
        for run in delivered:
            self._busy[run.client] = False
        return time, delivered

    def receive(self, replies: Mapping[int, int]) -> None:
        """Notes the server's answers: the numbers of local steps from each client's next start on."""
        for client, local_steps in replies.items():
            if self._local_steps[client] is None:
                raise ValueError("on_step replied numbers of local steps, but no initial_steps were given")
            if local_steps < 1:
                raise ValueError(f"client {client} was told to do {local_steps} local steps; at least 1 is needed")
            self._local_steps[client] = local_steps

    def _recorded(self, starts: Sequence[int]) -> int:
        if self._dispatched >= len(starts):
            raise ValueError(f"only {len(starts)} starts are recorded, but start {self._dispatched} is needed")
        return int(starts[self._dispatched])


Queue = list[tuple[float, int, Run]]
"""A heap of (arrival time, client, run)."""


def pop_instant(queue: Queue) -> tuple[float, list[Run]]:
    """Removes all runs that arrive at the next instant; returns that time and the runs in client order."""
    time = queue[0][0]
    delivered = []
    while queue and queue[0][0] == time:
        delivered.append(heapq.heappop(queue)[2])
    return time, delivered


def arrival(run: Run, t: int, **changes: Any) -> Arrival:
    """The run as server step t sees it; `changes` sets or replaces fields of the `Arrival`."""
    fields = {
        "client": run.client,
        "run": run.run,
        "dispatch": run.dispatch,
        "start_version": run.start_version,
        "trained_from": run.trained_from,
        "staleness": t - run.start_version,
        "start_time": run.start_time,
        "arrival_time": run.arrival_time,
        "local_steps": run.local_steps,
    }
    return Arrival(**{**fields, **changes})


def checked_duration(duration: Duration, client: int, run: int, local_steps: int | None = None) -> float:
    """The seconds of a run, after a check that they are positive and finite."""
    seconds = float(duration(client, run) if local_steps is None else duration(client, run, local_steps))
    if not (seconds > 0 and math.isfinite(seconds)):
        raise ValueError(f"run {run} of client {client} lasts {seconds} s; durations must be positive and finite")
    return seconds


def _check_free_running(
    num_clients: int,
    concurrency: int,
    buffer: int,
    dispatch: str,
    before_step: bool,
    start_skew: bool,
    starts: Sequence[int] | None,
) -> None:
    if not 1 <= concurrency <= num_clients:
        raise ValueError(f"concurrency must be between 1 and num_clients = {num_clients}, got {concurrency}")
    if buffer < 1:
        raise ValueError(f"buffer must be at least 1, got {buffer}")
    if dispatch not in ("arrival", "step"):
        raise ValueError(f'dispatch must be "arrival" or "step", got {dispatch!r}')
    if dispatch == "step" and buffer > concurrency:
        raise ValueError(f'with dispatch="step" a buffer of {buffer} never fills from {concurrency} clients in flight')
    if before_step and dispatch != "arrival":
        raise ValueError('before_step needs dispatch="arrival"')
    if start_skew and dispatch != "step":
        raise ValueError('start_skew needs dispatch="step"')
    if starts is None and concurrency != num_clients:
        raise ValueError("starts may be omitted only if concurrency = num_clients: record which clients start")
