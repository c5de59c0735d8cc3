"""`Live`, a clock that is advanced step by step, and `schedule`, which computes a schedule without training."""

from __future__ import annotations

import dataclasses
import gc
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxafl.clock.contract import Clock, Delivery
from jaxafl.clock.durations.duration import reads
from jaxafl.clock.fleet import Dropped, Fleet, LocalRun, ServerStep
from jaxafl.clock.schedule import FLYING, PER_ARRIVAL, PER_STEP, WAITING, Schedule, Source, Unused
from jaxafl.device.compilation import check_untraced
from jaxafl.device.hardware import host_bytes
from jaxafl.options import UserError, check_number, check_options, check_whole, shown

_STEP_BYTES, _RUN_BYTES = 200, 300  # of a server step and of an arrival, while a schedule is collected
_TYPES = [np.float64 if name in ("arrived", "started", "work") else np.int32 for name in LocalRun._fields]
_TOTALS = PER_STEP[1:]
_NAMES = {*PER_STEP, *PER_ARRIVAL, *vars(Schedule)}


def schedule(clock: Clock, num_clients: int, local_steps: Any, server_steps: int, seed: int = 0) -> Schedule:
    """Runs a clock for `server_steps` steps, without training.

    Args:
        clock: the clock; its options are checked first.
        num_clients: N.
        local_steps: local steps per run: a number, [N] per client or [N, R] per client and run ([1, R] for all
            clients alike); runs after the last column use its value.
        server_steps: T.
        seed: seed of the schedule.

    Raises:
        ValueError: options are invalid; a recording ends or names a busy client; all clients are gone; or the clock
            makes an invalid server step (time runs backwards, a version does not exist yet ...).
    """
    check_whole("schedule", "server_steps", server_steps)
    return Live(clock, num_clients, local_steps, seed).complete(int(server_steps))


def check_clock(clock: Any, num_clients: int) -> None:
    """Raises `ValueError` or `TypeError` for options of a clock that cannot work."""
    check_options(clock, num_clients)
    durations = getattr(clock, "durations", None)
    if durations is not None:
        durations.check(num_clients)
        shifts = durations.pause or durations.transport() is not None
        if shifts and "now" in reads(durations, num_clients):
            raise UserError(
                f"{clock.name}: durations={durations!r:.100}: link(shared=...) and transfers that stop everyone shift "
                "the time at which the work of a run begins, on which another term depends (as availability of "
                "device_trace); expected terms that do not: give mac_network(freeze=False), or link(up=...)"
            )
    clock.check(num_clients)
    check_number(clock.name, "pause", clock.pause, least=0)


class Replies(Mapping[int, int]):
    """The replies to a server step, client -> local steps, which the server is asked for when a clock reads them."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.clients = fleet, {run.client: run.run for run in fleet.taken}

    def __getitem__(self, client: int) -> int:
        return self.fleet.planned_steps(client, self.clients[client])

    def __iter__(self) -> Iterator[int]:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.clients)


class Live:
    """A clock that is advanced any number of server steps at a time, with the server's replies if there are any."""

    def __init__(self, clock: Clock, num_clients: int, local_steps: Any = 1, seed: int = 0) -> None:
        """Checks the options; see `schedule` for the arguments and the errors."""
        check_untraced()
        check_clock(clock, num_clients)
        check_whole("schedule", "seed", seed, least=0, most=2**64 - 1)
        self.clock, self.num_clients = clock, num_clients
        self.local_steps, self.seed = local_steps, int(seed)
        self.fleet = Fleet(clock, num_clients, local_steps, self.seed)
        self.steps = clock.steps(self.fleet)
        self.columns: dict[str, bool] = {}  # those of the clock's own, and if they have a value per arrival
        self.replies: Replies | None = None  # to the last server step, if `Fleet.hear` asks for them
        self.times = np.zeros(0)  # of the server steps so far, without pauses
        self.error: Exception | None = None  # of the step after those that a call of `advance` has returned

    def next(self, replies: Mapping[int, int] | None = None) -> ServerStep:
        """Returns the next server step.

        Args:
            replies: the server's answers to the step before, if there is one: client -> local steps from its next start
                on. `None` if `Fleet.hear` asks for them.
        """
        if replies:
            self.fleet.reply(replies)
        try:
            step = self.steps.send(replies or self.replies)
        except StopIteration:
            raise UserError(
                f"the clock {self.clock.name}: steps(fleet) ends before server step {self.fleet.version}; expected "
                "server steps without end. Write a loop that does not end"
            ) from None
        if not isinstance(step, ServerStep):
            given = f"yields {shown(step)}; expected what fleet.step(runs) returns"
            raise UserError(f"the clock {self.clock.name}: steps(fleet) {given}. Write yield fleet.step([run])")
        if self.fleet.hear is not None:
            self.replies = Replies(self.fleet)
        return step

    def advance(self, count: int, early: bool = False) -> Schedule:
        """Returns the schedule of the next `count` server steps of a server that does not reply.

        Args:
            count: number of server steps.
            early: return fewer if the clock fails after at least one of them. Then the next call raises its error.
        """
        if self.error is not None:
            raise self.error
        steps: list[ServerStep] = []
        collects = gc.isenabled()
        gc.disable()  # Python's collector would look through the runs again and again, which have no cycles
        try:
            while len(steps) < count and self.error is None:
                try:
                    steps.append(self.next())
                except UserError as error:
                    if not (early and steps):
                        raise
                    self.error = error
            return self.collect(steps)
        finally:
            if collects:
                gc.enable()

    def complete(self, count: int) -> Schedule:
        """Returns a schedule of `count` server steps with the runs in flight after the last.

        Raises:
            MemoryError: the schedule does not fit into the memory of the host.
        """
        needed, available = count * (_STEP_BYTES + _RUN_BYTES * (self.fleet.size or 1)), host_bytes()
        if needed > available:
            raise MemoryError(
                f"a schedule of {count:,} server steps needs {needed / 2**30:.0f} GiB, and there are "
                f"{available / 2**30:.0f} GiB; ask for fewer server steps, or end the run by until={{...}}"
            )
        found = self.advance(count)
        self.fleet.hear_all()
        taken = {*found.per_arrival["run_id"].tolist()}
        left = [run for run in self.fleet.known.values() if run.run_id not in taken]  # else it may be taken again
        rest = [Dropped(run, WAITING if run.arrived <= self.fleet.now else FLYING, run.arrived) for run in left]
        table = self._unused(rest, np.full(len(rest), len(self.times)))
        unused = Unused(*map(np.concatenate, zip(found.unused, table, strict=True)))
        return dataclasses.replace(found, unused=unused, source=Source(self.clock, self.seed, self.local_steps))

    def collect(self, steps: Sequence[ServerStep]) -> Schedule:
        """Returns the schedule of server steps that follow those collected before.

        Every server step delays all later times by `Clock.pause`, in which no client computes.
        """
        clock = self.clock
        start = len(self.times)
        each = zip(*steps, strict=True) if steps else [()] * len(ServerStep._fields)
        _, times, runs, kinds, counts, totals, dropped, columns = each
        number, time = start + np.arange(len(steps)), np.array(times, np.float64)
        self.times = np.concatenate([self.times, time])
        taken = np.array([*map(len, runs)], np.int64)
        step = np.repeat(number, taken)
        per_arrival = self._columns([*itertools.chain(*runs)], step)
        per_arrival["multiplicity"] = np.fromiter(itertools.chain(*counts), np.int32)
        of_totals = np.array(totals, np.int32).reshape(-1, len(_TOTALS)).T
        per_step = {"time": time + clock.pause * (number + 1)} | dict(zip(_TOTALS, of_totals, strict=True))
        by_client = Delivery.BY_CLIENT in clock.delivers
        if by_client and Delivery.KINDS in clock.delivers:
            per_step["kind"] = np.array(kinds, np.int32)
            per_arrival["kind"] = per_step["kind"][step - start, per_arrival["client"]]
        else:
            per_arrival["kind"] = np.fromiter(itertools.chain(*kinds), np.int32)
        if self.columns or any(columns):
            self._check_columns(steps, start)
        for name, of_arrivals in self.columns.items() if columns else ():
            values = [one[name] for one in columns]
            if of_arrivals:
                per_arrival[name] = np.concatenate(values)
            else:
                per_step[name] = np.array(values)
        made = Schedule(
            protocol=clock.name,
            num_clients=self.num_clients,
            in_flight=clock.in_flight(self.num_clients),
            taken=taken,
            per_step=per_step,
            per_arrival=per_arrival,
            unused=self._unused([*itertools.chain(*dropped)], np.repeat(number, [*map(len, dropped)])),
            kinds=clock.kinds,
            by_client=by_client,
            held=tuple(self.fleet.held()),
            start=start,
            waits=self.fleet.waits,
        )
        check_arrivals(clock, made)
        return made

    def _check_columns(self, steps: Sequence[ServerStep], start: int) -> None:
        """Raises `UserError` for a step whose own columns are not those of the first step, or have another length."""
        if not start:
            self.columns = {name: np.ndim(values) > 0 for name, values in steps[0].columns.items()}
        names = self.columns  # without columns so far there are none at the first step
        listed = [name for name, of_arrivals in names.items() if of_arrivals]
        if known := names.keys() & _NAMES:
            raise UserError(f"the clock {self.clock.name}: schedules have {sorted(known)} already; rename the column")
        for step in steps:
            own = step.columns
            if own.keys() != names.keys() or any(np.size(own[one]) != len(step.runs) for one in listed):
                sizes = {name: np.size(values) for name, values in own.items()}
                raise UserError(
                    f"the clock {self.clock.name}: server step {step.version} has columns of the sizes {sizes}; "
                    f"expected those of the first step: {[*names]}, and {listed} with a list of {len(step.runs)}, one "
                    "value per arrival"
                )

    def _columns(self, runs: Sequence[LocalRun], step: np.ndarray) -> dict[str, Any]:
        """Returns the columns of runs that server steps take or drop, with the pauses of the steps before.

        A run that waits in a client's buffer may end before the step that takes it. It is delayed only by the steps
        before its end.
        """
        fields = zip(*runs, strict=True) if runs else [()] * len(LocalRun._fields)
        found: dict[str, Any] = dict(zip(LocalRun._fields, map(np.array, fields, _TYPES), strict=True))
        # `begun`: server steps before the start. A run from the newest version has it as reference, also if a step and
        # the start are at one time; where models may be older than the newest, only the time tells
        side: Any = "right" if self.clock.delivers & (Delivery.AGED | Delivery.HELD) else "left"
        begun = np.clip(np.searchsorted(self.times, found["started"], side), found["reference"], step)
        before = np.clip(np.searchsorted(self.times, found["arrived"]), begun, step)
        found["started"] += self.clock.pause * begun
        found["arrived"] += self.clock.pause * before
        return found

    def _unused(self, dropped: Sequence[Dropped], step: np.ndarray) -> Unused:
        """Returns the table of runs that no server step takes; `step`: the next one after each."""
        runs = []
        for run, why, ended in dropped:
            work = self._worked(run, self.fleet.now if why == FLYING else ended)
            runs.append(run._replace(arrived=ended, work=work))
        found = self._columns(runs, step)
        reason = np.array([one.reason for one in dropped], "U9")
        return Unused(ended=found.pop("arrived"), **found, step=step.astype(np.int32), reason=reason)

    def _worked(self, run: LocalRun, until: float) -> float:
        """Returns the seconds of work of a run up to a time."""
        if until >= run.arrived or self.fleet.seconds is None:
            return run.work
        if self.fleet.transport is not None:  # transfers are work
            return until - run.started
        worked = run.work - (run.arrived - until) if self.fleet.waits else min(run.work, until - run.started)
        return max(worked, 0.0)  # NaN stays


def check_arrivals(clock: Clock, found: Schedule) -> None:
    """Raises `UserError` for the first arrival or server step that contradicts what a clock says of its arrivals."""
    of, taken = found.per_arrival, found.taken
    step = np.repeat(found.start + np.arange(len(taken)), taken)
    has = clock.delivers.__contains__
    kinds = max(1, len(clock.kinds))
    backwards = (np.diff(step) == 0) & (np.diff(of["client"]) <= 0)
    rules = (
        ((not has(Delivery.STALE)) & (of["version"] < step), "version", "newer ones, or Delivery.STALE in `delivers`"),
        (of["local_steps"] < (not has(Delivery.PARTIAL)), "local_steps", "1 or more, or Delivery.PARTIAL"),
        (of["multiplicity"] < 1, "multiplicity", "1 or more"),
        ((not has(Delivery.MULTIPLE)) & (of["multiplicity"] > 1), "multiplicity", "1, or Delivery.MULTIPLE"),
        ((of["kind"] < 0) | (of["kind"] >= kinds), "kind", f"an index into `kinds`, 0 to {kinds - 1}"),
        (has(Delivery.BY_CLIENT) & np.append(False, backwards), "client", "arrivals in client order"),
        (~(of["arrived"] <= found.time[step - found.start]), "arrived", "an end before the step"),
    )
    for broken, name, expected in rules:
        if broken.any():
            where = int(broken.argmax())
            raise UserError(
                f"the clock {clock.name} makes no schedule: server step {step[where]} has {name}={of[name][where]} of "
                f"client {of['client'][where]}; expected {expected}"
            )
    if not has(Delivery.EMPTY) and not taken.all():
        raise UserError(
            f"the clock {clock.name} makes no schedule: server step {found.start + int(taken.argmin())} has no "
            "arrivals; expected some, or Delivery.EMPTY in `delivers`"
        )
