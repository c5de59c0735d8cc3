"""`Fleet`, the clients of a simulation as a clock sees them: simulated time, runs in flight, idle clients, versions.

A *run* is one local training of one client. A clock is a generator over a fleet: it takes runs as they arrive, and
yields server steps (`jaxafl.clock.Clock.steps`).
"""

from __future__ import annotations

import math
import operator
from bisect import insort
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from jaxafl.clock import draws
from jaxafl.clock.delivery import Delivery
from jaxafl.device.keys import Purpose
from jaxafl.options import UserError

NEVER = math.inf
REASONS = ("refused", "stopped", "lost")
"""Reasons for which the schedule counts runs that no server step takes."""
_PATIENCE = 1000  # arrivals per client, after which a missing server step is examined


class LocalRun(NamedTuple):
    """One run. Runs compare in the order in which they arrive, with ties in client order.

    Attributes:
        arrived: end in simulated seconds; NaN before it if the clock has no durations, or runs share a link.
        client: index of the client.
        run: index among the client's runs, in start order.
        run_id: index among all runs, in start order.
        version: version of the start model.
        reference: version that the update is relative to.
        started: start in simulated seconds.
        local_steps: its local steps.
        work: seconds in which the client works.
    """

    arrived: float
    client: int
    run: int
    run_id: int
    version: int
    reference: int
    started: float
    local_steps: int
    work: float


class Dropped(NamedTuple):
    """A run that no server step takes."""

    run: LocalRun
    reason: str  # see `Fleet.discard`
    ended: float  # simulated seconds


class Gone(UserError):
    """No client will ever arrive again."""


class ServerStep(NamedTuple):
    """One server step, which acts on a version and makes the next one."""

    version: int  # index of the step
    time: float  # simulated seconds
    runs: Sequence[LocalRun]  # its arrivals, in order
    kinds: Sequence[int]  # indices into the clock's `kinds`
    counts: Sequence[int]  # number of times that each update counts
    totals: tuple[int, ...]  # runs started, refused, stopped, lost, and starts skipped, so far
    dropped: Sequence[Dropped]  # since the last step
    columns: Mapping[str, Any]  # the clock's own values, per step or per run


Steps: TypeAlias = Generator[ServerStep, Mapping[int, int] | None, None]


class Fleet:
    """Clients with runs in flight.

    Attributes:
        num_clients: N.
        seed: seed of the schedule.
        now: simulated seconds.
        version: index of the newest version, which is also that of the next server step.
        started: number of runs that the clock has started.
        clock: the clock.
        taken: arrivals of the last server step.
        due: places of ended runs (`None`: new places) in which clients start when time moves on.
        refills: True if every arrival makes a start due; a rule of starts sets it to False and fills `due`.
        next_starts: time of starts that no arrival makes due. Then `begin_starts(time of the next arrival)` is called,
            which makes them due.
        idle: idle clients if they are drawn, with `add(client)`.
        share: function index -> draw of the stream for the choice of clients, in [0, 1).
    """

    def __init__(self, clock: Any, num_clients: int, local_steps: Any = 1, seed: int = 0) -> None:
        """Takes the arguments of `jaxafl.clock.schedule` but `server_steps`."""
        self.clock = clock
        self.num_clients, self.seed = num_clients, seed
        self.now = 0.0
        self.version = self.started = self.ended = self.skipped = 0
        self.totals = dict.fromkeys(REASONS, 0)
        self.dropped: list[Dropped] = []  # since the last server step
        self.known: dict[int, LocalRun] = {}  # by run_id, those that a server step may still take
        self.flight: list[LocalRun] = []  # a heap, also of runs that were stopped
        self.arrived: deque[LocalRun] = deque()  # that `arrivals` has not yielded yet
        self.runs = [0] * num_clients  # that each client has started
        self.longest = 0.0  # most seconds of work of a run so far
        self.since = 0  # arrivals since the last server step
        self.stepped = 0.0  # time of the last server step
        self.taken: Sequence[LocalRun] = []  # arrivals of the last server step
        self.alarm = NEVER  # next time at which the clock steps whatever arrives
        self.keeps = 0  # versions before the newest that later runs may start from
        self.early = self.before = 0  # runs of every client, and of all, before those of the protocol, see `warm_up`
        self.completes: Callable[[Sequence[LocalRun]], bool] | None = None  # says if a step makes the first version
        # ---- starts
        self.refills = True  # every arrival makes a start due
        self.due: list[LocalRun | None] = []  # ended runs whose places (None: new ones) are filled when time moves on
        self.waiting: list[LocalRun] = []  # runs that have ended, whose clients start together later
        self.restarting: list[int] = []  # clients of stopped runs, which restart before idle ones are drawn
        self.origins: dict[int, tuple[int, ...]] = {}  # run_id of an ended run -> version, reference of the next run
        self.choose: Callable[[LocalRun | None], int | None] = _restarts
        self.idle: Any = None  # idle clients, if they are drawn
        self.next_starts = NEVER  # time of the next starts that no arrival makes due
        self.begin_starts: Callable[[float], None]  # makes them due, given the time of the next arrival or alarm
        self.wakes = NEVER  # time at which a client can start for a place that is due, if none can now
        # ---- replies
        self.hear: Callable[[], None] | None = None  # asks for all replies that are missing; None: they come by `reply`
        self.unheard: dict[int, int] = {}  # client -> the newest server step whose reply to it is missing
        # run_id -> a run whose local steps are not known yet, which is in flight with the duration of one local step,
        # and the server step whose reply will tell them
        self.open_ended: dict[int, tuple[LocalRun, int]] = {}
        # ---- draws
        self.share = draws.shares(draws.stream(seed, Purpose.START))
        rows = np.atleast_2d(np.asarray(local_steps, np.int32).T).T  # of every client or of all
        table = np.broadcast_to(rows, (num_clients, rows.shape[1]))
        self.local_steps: list[list[int]] = rows.tolist() * (num_clients // len(rows))  # the last holds from then on
        durations = getattr(clock, "durations", None)
        self.seconds = None if durations is None else draws.Seconds(durations, table, seed)
        self.waits = durations is not None and durations.waits
        self.transport = None if durations is None else durations.transport()  # over a link that runs share
        self.size = clock.arrivals(num_clients)
        self.repeats = Delivery.REPEATED in clock.delivers
        self.latest = [-1] * num_clients  # run_id of the last run of each client

    # ---- what a clock calls

    def arrivals(self) -> Iterator[LocalRun]:
        """Yields runs as they arrive. The clients that are due start when time moves on.

        A loop that is left within an instant, by `break`, leaves the rest of its arrivals to the next loop.
        """
        instants = self.instants()
        while True:
            while self.arrived:
                yield self.arrived.popleft()
            self.arrived.extend(next(instants))

    def instants(self) -> Iterator[list[LocalRun]]:
        """Yields the runs that arrive at one instant, in client order.

        At first every client starts, unless the clock has started runs. Clients that are due, by default those whose
        runs have ended, start when the loop asks for the next instant. At `alarm` an empty list comes, after the
        arrivals of that instant. Runs that have ended before `now`, since the clock has moved it, come at `now`.
        """
        flight, due, known = self.flight, self.due, self.known
        if not (self.started or due) and self.next_starts == NEVER:
            for client in range(self.num_clients):
                self.start(client)
        self.start_due()
        while True:
            while flight and flight[0].run_id not in known:
                heappop(flight)
            if flight and flight[0].run_id in self.open_ended:  # it ends now or later
                self.hear_all()
                continue
            first = min(flight[0].arrived, self.alarm) if flight else self.alarm
            phase = NEVER if self.transport is None else self.transport.time(self.now)
            opens = min(self.next_starts, self.wakes)
            if opens < min(first, phase):  # clients start before anything ends
                self.now, self.wakes = max(self.now, opens), NEVER
                if opens == self.next_starts:
                    self.next_starts = NEVER
                    self.begin_starts(min(first, phase))
                self.start_due()
                continue
            if phase <= first and phase < NEVER:  # a phase of a run on a shared link ends
                ended = self.transport.advance(self.now)  # type: ignore[union-attr]
                self.now = max(self.now, phase)
                if ended is not None:  # else a transfer, or the work between two, that is not the last of its run
                    known[ended.run_id] = ended
                    heappush(flight, ended)
                continue
            if first == NEVER:
                self.gone()
            self.now, runs = first if first > self.now else self.now, []
            while flight and flight[0].arrived == first:
                if flight[0].run_id in self.open_ended:
                    self.hear_all()
                    continue
                run = heappop(flight)
                if run.run_id not in known:
                    continue
                runs.append(run)
                self.ended += 1
                if self.idle is not None:
                    self.idle.add(run.client)
            if self.refills:
                due += runs
            self.since += len(runs)
            if self.since > _PATIENCE * self.num_clients:
                self._check_endless()
            yield runs
            if self.alarm != first:
                self.start_due()

    def step(
        self,
        runs: Sequence[LocalRun],
        *,
        kinds: Sequence[int] | None = None,
        counts: Sequence[int] | None = None,
        time: float | None = None,
        **columns: Any,
    ) -> ServerStep:
        """Makes the next version from the updates of runs; the clock yields the result.

        Clients that keep something from run to run need each run taken or discarded before their later ones.

        Args:
            runs: the arrivals, in order.
            kinds: index into the clock's `kinds` of each, or of every client [N] by `Delivery.BY_CLIENT`.
            counts: number of times that each counts.
            time: time of the step in simulated seconds; `None` is now.
            **columns: further values, one for the step or one per run, for `Schedule.columns`.
        """
        before, self.now = self.now, self.now if time is None else time
        if not self.now >= before or self.now < self.stepped:
            self._fail(f"is at {self.now} s, and the time is {max(before, self.stepped)} s", "times that do not fall")
        if self.now == NEVER:
            self._fail(
                f"waits for {self._endless() or 'runs'} for ever: its duration is infinite",
                "finite durations, or a clock that goes on with the other clients, such as free_running, interrupting, "
                "semi_async and synchronous(deadline=...)",
            )
        if self.size is not None and len(runs) != self.size and (runs or Delivery.EMPTY not in self.clock.delivers):
            self._fail(f"has {len(runs)} arrivals", f"the {self.size} that `arrivals` promises")
        if self.seconds is None:
            runs = [run._replace(arrived=self.now) for run in runs]
        find = self.known.get if self.repeats else self.known.pop
        for run in runs:
            if find(run.run_id, None) is None:
                self._fail(
                    f"takes run {run.run} of client {run.client}, which has not started or is over",
                    "each run once, or with Delivery.REPEATED in `delivers` until its client starts again",
                )
        if self.repeats:
            self.known |= {run.run_id: run for run in runs}
        if kinds is not None or counts is not None:
            by_client = Delivery.BY_CLIENT in self.clock.delivers
            self._check_listed(kinds, self.num_clients if by_client else len(runs))
            self._check_listed(counts, len(runs))
        makes = self.completes is None or self.completes(runs)
        totals = (self.started + self.before, *self.totals.values(), self.skipped)
        kinds = [0] * len(runs) if kinds is None else kinds
        counts = [1] * len(runs) if counts is None else counts
        made = ServerStep(self.version, self.now, runs, kinds, counts, totals, self.dropped, columns)
        self.since = 0
        self.stepped = self.now
        self.taken = runs
        if self.hear is not None:
            self.unheard |= {run.client: self.version for run in runs}
            self._follow_replies()
        if makes:
            self.version, self.dropped = self.version + 1, []
        return made

    def start(
        self,
        client: int,
        version: int | None = None,
        reference: int | None = None,
        *,
        now: float | None = None,
        flies: bool = True,
        timed: bool = True,
        open_ended: bool = False,
    ) -> LocalRun:
        """Starts a run of a client.

        Args:
            client: its index.
            version: version of the start model; `None` is the newest.
            reference: version that the update is relative to; `None` is `version`.
            now: start in simulated seconds; `None` is now.
            flies: False for a run that the clock itself waits for: `arrivals` does not yield it.
            timed: False for a run that the clock itself ends: its duration is not drawn.
            open_ended: True if the run may fly as if with one local step until the reply to its client is heard.
        """
        if version is None:
            version = self.version
        elif not 0 <= version <= self.version:
            self._fail(f"starts client {client} from version {version}", f"0 to {self.version}")
        if now is None:
            now = self.now
        if flies:
            self._check_idle(client, now)
        index, run_id = self.runs[client], self.started + self.before
        run = index + self.early  # durations are drawn by `index`, all else counts `run`
        if self.open_ended and self.seconds is not None and self.seconds.depends(client, index):
            self.hear_all()  # earlier runs may be the longest
        if unknown := (client in self.unheard and open_ended and self._bounded(client, index)):
            steps = 1
        else:
            steps = self.planned_steps(client, run)
        reference = version if reference is None else reference
        seconds = work = math.nan
        if self.seconds is None or not timed:
            flies = False
        else:
            seconds, work = self.seconds.of(client, index, steps, now, self.longest)
            if not seconds >= 0:
                self.valid(seconds, client, run, run_id)
        if self.transport is not None and not flies:
            raise UserError(
                "link: with shared=... the time of a transfer depends on the other transfers; expected free_running, a "
                "clock of its kind, or rounds. Run one of them, or give up=... instead"
            )
        begun = LocalRun(now + seconds, client, run, run_id, version, reference, now, steps, work)
        if work > self.longest and work < NEVER:
            self.longest = work
        if self.transport is not None:
            begun = self.transport.begin(now, begun, seconds)
        self.runs[client], self.started = index + 1, self.started + 1
        self.ended += not flies  # `instants` never yields it
        self.known[run_id] = begun
        if unknown:
            self.open_ended[run_id] = begun, self.unheard[client]
        if self.repeats:
            self.known.pop(self.latest[client], None)
        self.latest[client] = run_id
        if flies and self.transport is None:
            heappush(self.flight, begun)
        return begun

    def start_round(self, clients: Sequence[int], versions: Sequence[int] | None = None) -> list[LocalRun]:
        """Starts runs for which the clock itself waits, while no others are in flight; none of their clients restarts.

        The runs are in the order of the clients, and `arrived` of each is its end.

        Args:
            clients: the clients.
            versions: versions of their start models; `None` is the newest.
        """
        (transport, self.transport), now = (self.transport, None), self.now
        begins = now if transport is None else 0.0
        for client in clients:
            self._check_idle(client, now)
        origins: Sequence[int | None] = versions or [None] * len(clients)
        runs = [self.start(client, one, now=begins, flies=False) for client, one in zip(clients, origins, strict=True)]
        self.transport = transport
        if transport is not None:
            ends = transport.together([run.arrived for run in runs])
            for place, (run, end) in enumerate(zip(runs, ends, strict=True)):
                work = run.work if end == NEVER else end - (run.arrived - run.work)  # transfers are work
                runs[place] = run._replace(started=now, arrived=now + end, work=work)
            self.known |= {run.run_id: run for run in runs}
        return runs

    def stop(self, run: LocalRun) -> None:
        """Stops a run in flight; its client restarts when time moves on, before idle clients are drawn."""
        self.hear_all()
        run = self.known.get(run.run_id, run)
        if run.arrived <= self.now:
            self._fail(f"stops run {run.run} of client {run.client}, which has ended", "`discard` for runs that arrive")
        self.discard(run, "stopped")
        self.ended += 1
        if self.transport is not None:
            self.transport.stop(self.now, run)
        if self.choose is _restarts:
            insort(self.due, run, key=lambda ended: ended.client)  # type: ignore[union-attr]
        else:
            insort(self.restarting, run.client)

    def stop_up_to(self, version: int) -> None:
        """Stops the runs in flight, but those that never arrive, that have started from a version or an earlier one."""
        while (run := self.oldest()) and run.version <= version:
            self.stop(run)

    def oldest(self) -> LocalRun | None:
        """Returns the run in flight that has started first, without those that never arrive."""
        return next((run for run in self.flying() if run.arrived != NEVER), None)

    def discard(self, run: LocalRun, reason: str = "refused") -> None:
        """Gives up a run, which no server step takes.

        It ends at `now` if it is stopped or abandoned, and at its arrival otherwise. So a clock first sets `now` to the
        end of the round, and then stops the runs that are too late for it.

        Args:
            run: the run.
            reason: `"refused"`, `"stopped"` or `"lost"`, which the schedule counts; `"late"` for a completed run
                whose client sends another one, `"abandoned"` for one that its client gives up.
        """
        if reason in self.totals:
            self.totals[reason] += 1
        elif reason not in ("late", "abandoned"):
            self._fail(f"discards a run as {reason!r}", f"{', '.join(self.totals)}, late or abandoned")
        if self.known.pop(run.run_id, None) is None:
            given = f"discards run {run.run} of client {run.client}, which was taken or discarded before"
            self._fail(given, "each run once")
        ended = self.now if reason in ("stopped", "abandoned") else run.arrived
        self.dropped.append(Dropped(run, reason, ended))

    def drawn(self, name: str, index: int, draw: Callable[[], Any] = lambda: None) -> Any:
        """Returns entry `index` of the recording `name` of the clock, or `draw()` if there is none."""
        table = getattr(self.clock, name, None)
        if table is None:
            return draw()
        if index >= len(table):
            raise UserError(
                f"{self.clock.name}: the recorded {name} end at {index}, at server step {self.version}; expected "
                f"further entries. Record more {name}, or give fewer server steps"
            )
        return np.asarray(table)[index].tolist()

    def valid(self, seconds: float, client: int, run: int, run_id: int) -> float:
        """Returns the seconds of a run; raises `UserError` if they are NaN or negative."""
        if not seconds >= 0:
            what = "NaN, or the recorded durations run out" if math.isnan(seconds) else "negative"
            raise UserError(f"a duration is {what}: run {run} of client {client} (start number {run_id})")
        return seconds

    def recounted(self, step: ServerStep) -> ServerStep:
        """Returns a server step with the runs that have started since `step` made it."""
        return step._replace(totals=(self.started + self.before, *step.totals[1:]))

    # ---- what the engine calls

    def reply(self, replies: Mapping[int, int], version: int | None = None) -> None:
        """Takes the answers to a server step: client -> local steps of its runs that start after it.

        Args:
            replies: the answers.
            version: index of the server step; `None` is the last one.
        """
        at = self.version - 1 if version is None else version
        for client, steps in replies.items():
            if steps < 1:
                raise UserError(
                    f"the server replied at server step {at} with {steps} local steps for client "
                    f"{client}; expected 1 or more"
                )
            self.local_steps[client] = [int(steps)]
            if version in (None, self.unheard.get(client)):
                self.unheard.pop(client, None)
            run, asked = self.open_ended.get(self.latest[client], (None, -1))
            if run is not None and asked == version:  # later answers are to steps after its start
                self.open_ended[run.run_id] = run._replace(local_steps=int(steps)), asked
        self._follow_replies()

    def hear_all(self) -> None:
        """Hears the replies on which the ends of runs in flight depend."""
        if not self.open_ended:
            return
        self.hear()  # type: ignore[misc]
        for run_id, (run, _) in self.open_ended.items():
            index, steps = run.run - self.early, run.local_steps
            seconds, work = self.seconds.of(run.client, index, steps, run.started, self.longest)  # type: ignore[union-attr]
            self.longest = max(self.longest, work) if work < NEVER else self.longest
            if run_id in self.known:
                self.known[run_id] = run._replace(arrived=run.started + seconds, work=work)
        self.flight[:] = [self.known[run.run_id] for run in self.flight if run.run_id in self.known]
        heapify(self.flight)
        self.open_ended.clear()

    def _bounded(self, client: int, index: int) -> bool:
        """Returns True if a run of a client cannot end earlier than with one local step."""
        seconds = self.seconds
        if seconds is None or seconds.by_start or seconds.depends(client, index) or self.transport is not None:
            return False
        return not seconds.by_steps or operator.le(*seconds.of_steps(client, index, self.now, self.longest))

    def _follow_replies(self) -> None:
        if self.seconds is not None:
            self.seconds.follow_replies()

    def flying(self) -> Iterator[LocalRun]:
        """Yields the runs that have not ended yet, in start order."""
        self.hear_all()
        yield from (run for run in self.known.values() if not run.arrived <= self.now)

    def held(self) -> list[int]:
        """Returns the versions that later server steps may still need."""
        versions = {*range(max(self.version - self.keeps, 0), self.version)}.union(*self.origins.values())
        for run in self.known.values():
            versions |= {run.version, run.reference}
        return sorted(versions)

    # ---- starts

    def start_due(self) -> None:
        """Starts a client for every place that is due."""
        for one in self.restarting:
            self.start(one)
        self.restarting.clear()
        due, origins, choose = self.due, self.origins, self.choose
        for place, ended in enumerate(due):
            if (client := choose(ended)) is None:  # nobody can start yet
                del due[:place]
                return
            origin = origins.pop(ended.run_id, ()) if origins and ended else ()
            self.start(client, *origin, open_ended=True)
        due.clear()

    def comes(self) -> bool:
        """Returns True if a run in flight will arrive, or a start is due."""
        phase = NEVER if self.transport is None else self.transport.time(self.now)
        first = self.flight[0].arrived if self.flight else NEVER
        return bool(self.due) or min(self.next_starts, self.wakes, phase, first) < NEVER

    def losses(self, odds: Any, hours: Any = None) -> Callable[[LocalRun], bool] | None:
        """Returns the function that says if the upload of a run fails, or `None` if none does.

        Args:
            odds: probability that it fails, a number or one per client; `None` if it never does.
            hours: hours outside which it fails if they lose updates (`activity`), or `None`.
        """
        if getattr(hours, "loses", False):
            waiting = hours.hours_of(self.seed, self.num_clients)
            fails = self.losses(odds)
            return lambda run: waiting(run.arrived)[run.client] > 0 or (fails is not None and fails(run))
        if odds is None:
            return None
        key = draws.stream(self.seed, Purpose.LOST)
        drawn = draws.PerRun(self.num_clients, lambda client, run: draws.uniform(draws.threefry(key, client, run)))
        most = np.broadcast_to(odds, self.num_clients).tolist()
        return lambda run: drawn(run.client, run.run - self.early) < most[run.client]

    def planned_steps(self, client: int, run: int) -> int:
        """Returns the local steps of a run, after the server steps whose reply to its client is missing."""
        if client in self.unheard:
            self.hear()  # type: ignore[misc]
        steps = self.local_steps[client]
        return steps[run] if run < len(steps) else steps[-1]

    def in_flight(self) -> int:
        """Returns the number of runs that `arrivals` or `instants` will yet yield, those that never arrive included."""
        return self.started - self.ended

    def _check_endless(self) -> None:
        """Raises `UserError` if a server step that never comes would take more and more arrivals."""
        late = self._endless() if self.alarm == NEVER else ""
        if late or self.now == self.stepped:
            why = f"{late} never arrives" if late else "no time passes"
            self._fail(f"has not come after {self.since:,} arrivals, and {why}", "finite durations above 0")

    def _endless(self) -> str:
        """Returns the first run that never arrives; empty if there is none."""
        late = (run for run in self.known.values() if run.arrived == NEVER)
        return next((f"run {run.run} of client {run.client}" for run in late), "")

    def gone(self) -> None:
        """Raises `Gone`, or an error of a clock whose runs have no durations."""
        if self.seconds is None:
            self._fail("waits for arrivals, but no run has a duration", "a field `durations: Duration` of the clock")
        raise Gone(
            f"all clients that are at work are gone (infinite durations, or a clock that restarts nobody) at "
            f"{self.now:,.6g} simulated seconds, and server step {self.version} needs arrivals; give fewer server "
            "steps, or finite durations"
        )

    def _check_idle(self, client: int, now: float) -> None:
        """Raises `UserError` if a run of a client that starts is in flight."""
        last = self.known.get(self.latest[client])
        if last is not None and last.arrived > max(now, self.now):
            given = f"starts client {client}, whose run {last.run} lasts until {last.arrived:.6g} s"
            known = "The fleet restarts those whose runs end, unless `refills` is False"
            self._fail(given, f"a client that is idle. {known}. A round discards the runs that no step takes")

    def _check_listed(self, given: Sequence[int] | None, size: int) -> None:
        """Raises `UserError` for kinds or counts that are not as many whole numbers as expected."""
        if given is not None and (len(given) != size or any(one != int(one) for one in given)):
            self._fail(f"has the kinds or counts {[*given]}", f"{size} whole numbers")

    def _fail(self, given: str, expected: str) -> None:
        name = self.clock.name
        raise UserError(f"the clock {name} makes no schedule: server step {self.version} {given}; expected {expected}")


def _restarts(ended: LocalRun | None) -> int:
    """Chooses the client whose run has ended."""
    return ended.client  # type: ignore[union-attr]
