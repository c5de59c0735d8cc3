"""Base of clocks that advance event by event: starts, arrivals and stops, each in O(log N)."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from jaxafl.clock import selection, trees
from jaxafl.clock.checks import check_durations
from jaxafl.clock.contract import Clock, Delivery, FaultCode, InFlight, Runs, ServerStep, Starts, Workload
from jaxafl.clock.durations.duration import Duration
from jaxafl.clock.durations.runs import Run, draw_of
from jaxafl.clock.starts import blank_runs, first_fault, invalid_code, no_starts, valid
from jaxafl.device.keys import Key, Purpose, purpose_key

Array = jax.Array
T = TypeVar("T")


class Event(NamedTuple):
    """An arrival, as `Events.arrives` receives it; all fields are scalars."""

    run: Runs
    taken: Array  # arrivals that the next server step has taken so far
    version: Array  # newest version
    oldest: Array  # oldest start version of the runs still in flight, if `Events.tracks_oldest`


class Verdict(NamedTuple):
    """Decision on an arrival. An update that is refused or lost belongs to no server step and is never trained.

    Attributes:
        rules: next state of the protocol.
        closes: True if the server steps at this arrival.
        refused: True if the server discards the update.
        lost: True if the upload fails.
        kind: index into the clock's `kinds`.
    """

    rules: Any
    closes: Array | bool = False
    refused: Array | bool = False
    lost: Array | bool = False
    kind: Array | int = 0


class State(NamedTuple):
    """State of the clock between two server steps."""

    now: Array
    version: Array
    ended: Array  # number of runs that have arrived or were stopped
    waiting: Array  # number of starts that are due
    restarting: Array  # True if the starts of this instant have begun
    flight: Runs  # one row per concurrent run, [M_c]; a free row keeps its last run
    handout: Array  # [M_c], version just before the delivery of the row's arrival
    arrivals: trees.Arrivals  # arrivals of the rows
    freed: Array  # [M_c], rows in the order in which they become free, as a ring
    row: Array  # row of the next start
    busy: Array  # busy clients, see `trees.all_idle`
    runs: Array
    starts: Starts
    start_key: Key
    rules: Any  # of the protocol
    versions: trees.Arrivals | None  # start versions of the runs in flight, if the oldest one is tracked
    stopped: Array | None  # stopped clients, which restart themselves, as idle ones of `trees.all_idle`


class Events(Clock):
    """Base of clocks with M_c runs in flight, in which every event is an arrival, a start, a stop or an alarm.

    All arrivals of one instant are delivered in client order, and the server steps that they complete are taken. Then
    runs are stopped, then clients start. A protocol is a subclass that defines `capacity`, `in_flight` and `arrives`,
    and overrides further methods as needed. The default starts one client after every arrival, from the newest version:
    an idle client drawn uniformly, or the arrived one if all N clients are in flight.

    Args:
        durations: duration of a run in simulated seconds.
    """

    durations: Duration = dataclasses.field(kw_only=True)

    delivers: ClassVar[Delivery] = Delivery.STALE | Delivery.CONTINUOUS
    event_by_event: ClassVar[bool] = True

    # ---- the protocol

    def begin(self, key: Key, num_clients: int) -> Any:
        """Returns the protocol's first state, a pytree."""
        return ()

    def arrives(self, rules: Any, event: Event) -> Verdict:
        """Decides what an arrival does."""
        raise NotImplementedError(f"the clock {self.name} has no arrives(rules, event)")

    def replaced(self, takes: Array, closes: Array) -> Array:
        """Returns the number of clients to start after an arrival that the server takes (or not), and steps (or not)."""
        return jnp.int32(1)

    def choose(self, state: State, num_clients: int) -> tuple[Array, Array]:
        """Returns the client to start, and a fault code."""
        started = state.starts.count
        if self.in_flight(num_clients) == num_clients:  # all clients are in flight: those that ended restart
            client = state.flight.client[state.row]
            if state.stopped is not None:  # in client order, stopped ones among them
                client = trees.nth_idle(state.busy, num_clients, jnp.int32(0))
            return client, jnp.int32(FaultCode.NONE)
        rank = selection.idle_rank(state.start_key, started, started - state.ended, num_clients)
        return trees.nth_idle(state.busy, num_clients, rank), jnp.int32(FaultCode.NONE)

    def start_version(self, state: State) -> tuple[Array, Array | None]:
        """Returns the version that the next run starts from, and its reference; `None` for the same version."""
        return state.version, None

    @property
    def tracks_oldest(self) -> bool:
        """True if `arrives` or `last_stopped` needs the start versions of all runs in flight."""
        return False

    def last_stopped(self, rules: Any, version: Array) -> Array | None:
        """Returns the newest start version of the runs to stop, int32; -1 for none.

        The clients of stopped runs restart at once. Requires `tracks_oldest`.
        """
        return None

    def alarm(self, rules: Any) -> Array | None:
        """Returns the next time at which the server steps without an arrival, float64; an arrival then comes first."""
        return None

    def rings(self, rules: Any) -> Any:
        """Returns the protocol's state after an alarm."""
        return rules

    # ---- the clock

    def check(self, num_clients: int) -> None:
        check_durations(self.name, self.durations, num_clients)

    def init(self, key: Key, num_clients: int) -> State:
        size = self.in_flight(num_clients)
        rows = jnp.arange(size, dtype=jnp.int32)
        state = State(
            now=jnp.float64(0),
            version=jnp.int32(0),
            ended=jnp.int32(0),
            waiting=jnp.int32(size),
            restarting=jnp.bool_(True),
            flight=self._no_runs(size),
            handout=jnp.zeros_like(rows),
            arrivals=trees.no_arrivals(size),
            freed=rows,
            row=jnp.int32(0),
            busy=trees.all_idle(num_clients),
            runs=selection.no_runs(num_clients),
            starts=no_starts(self.durations, key, num_clients),
            start_key=purpose_key(key, Purpose.START),
            rules=self.begin(key, num_clients),
            versions=trees.no_arrivals(size) if self.tracks_oldest else None,
            stopped=None,
        )
        if self.last_stopped(state.rules, state.version) is None:
            return state
        return state._replace(stopped=trees.none_idle(num_clients))

    def next(self, state: State, workload: Workload) -> tuple[State, ServerStep]:
        """Advances to the next server step; clients that are due start before simulated time advances."""
        size = self.capacity(workload.num_clients)
        kind = jnp.zeros(size, jnp.int32) if self.kinds else None
        empty = ServerStep(jnp.float64(0), jnp.zeros(size, bool), self._no_runs(size), kind=kind)

        def advance(carry: _Carry) -> _Carry:
            state, step, count, closed = carry
            state = self._start(self._stop(state, workload.num_clients), workload)
            return self._deliver(state, step, count, workload.num_clients)

        begin = (state, empty, jnp.int32(0), jnp.bool_(False))
        state, step, *_ = jax.lax.while_loop(lambda carry: ~carry[3], advance, begin)
        return state, step._replace(time=state.now)

    def in_flight_runs(self, state: State) -> InFlight:
        """Returns the runs in flight, for an online clock."""
        runs = state.flight
        arrived = trees.arrival_times(state.arrivals, len(runs.client))
        busy = jnp.isfinite(arrived)
        version = jnp.where(busy, runs.version, state.handout)
        reference = None if runs.reference is None else jnp.where(busy, runs.reference, version)
        return InFlight(busy, runs._replace(version=version, reference=reference, arrived=arrived), busy)

    def held(self, state: State) -> list[Array]:
        flight = self.in_flight_runs(state)
        runs = flight.runs.complete()
        return [jnp.where(flight.pinned, seen, state.version) for seen in (runs.version, jnp.asarray(runs.reference))]

    def _no_runs(self, size: int) -> Runs:
        return blank_runs(size)

    def _stop(self, state: State, num_clients: int) -> State:
        """Stops the oldest run in flight if it is too old and all arrivals of this instant have been delivered."""
        if state.stopped is None or state.versions is None:
            return state
        last = self.last_stopped(state.rules, state.version)
        oldest, client, row = state.versions.first
        stops = ~state.restarting & (state.arrivals.first[0] > state.now) & (oldest <= last)
        state = self._vacate(state, row, client, stops, num_clients)
        starts = state.starts._replace(stopped=state.starts.stopped + stops)
        stopped = trees.becomes_busy(state.stopped, num_clients, client, -stops.astype(jnp.int32))
        return state._replace(starts=starts, stopped=stopped, waiting=state.waiting + stops)

    def _start(self, state: State, workload: Workload) -> State:
        """Starts one client if one is due, all arrivals of this instant have been delivered, and no run is to stop."""
        num_clients = workload.num_clients
        row = state.row
        known = state.starts
        passed = state.arrivals.first[0] > state.now
        if (alarm := self.alarm(state.rules)) is not None:
            passed &= alarm > state.now
        if state.stopped is not None and state.versions is not None:
            passed &= state.versions.first[0] > self.last_stopped(state.rules, state.version)
        begins = (state.waiting > 0) & (state.restarting | passed)
        client, code = self.choose(state, num_clients)
        stopped = state.stopped
        if stopped is not None and self.in_flight(num_clients) < num_clients:
            some, first = trees.count_idle(stopped, num_clients) > 0, trees.nth_idle(stopped, num_clients, jnp.int32(0))
            client = jnp.where(some, first, client)
            stopped = trees.becomes_busy(stopped, num_clients, client, (some & begins).astype(jnp.int32))
        runs, run = selection.count_run(state.runs, client, begins)
        version, reference = self.start_version(state)
        local_steps = workload.local_steps(client, run, version, begins).astype(jnp.int32)
        drawn = draw_of(self.durations, known.prepared, Run(client, run, local_steps, known.longest, state.now))
        duration = drawn.work + drawn.hang
        fine = valid(duration)
        code = jnp.where((code > 0) | fine, code, invalid_code(duration))
        code = jnp.where(begins, code, FaultCode.NONE)
        known = first_fault(known, code, run_id=known.count, client=client, run=run, round=state.version)
        arrives = state.now + jnp.where(fine, duration, 1)
        begun = Runs(client, run, known.count, version, local_steps, state.now, arrives, reference)
        one = begins.astype(jnp.int32)
        waiting = state.waiting - one
        versions = state.versions
        if versions is not None:  # a client that never comes back cannot be waited for, nor stopped
            where = begins & jnp.isfinite(arrives)
            versions = trees.expect(versions, len(state.freed), row, version.astype(jnp.float64), client, where)
        return state._replace(
            waiting=waiting,
            restarting=jnp.where(begins, waiting > 0, state.restarting & (waiting > 0)),
            flight=_set(state.flight, row, begun, begins),
            arrivals=trees.expect(state.arrivals, len(state.freed), row, arrives, client, begins),
            busy=trees.becomes_busy(state.busy, num_clients, client, one),
            runs=runs,
            starts=known._replace(
                count=known.count + one,
                longest=jnp.where(
                    begins & fine & ~jnp.isinf(drawn.work), jnp.maximum(known.longest, drawn.work), known.longest
                ),
            ),
            versions=versions,
            stopped=stopped,
        )

    def _deliver(self, state: State, step: ServerStep, count: Array, num_clients: int) -> _Carry:
        """Delivers the earliest arrival, or rings the alarm, unless stops or starts come first."""
        size = len(step.mask)
        earliest, client, row = state.arrivals.first
        settled = state.waiting == 0
        if state.stopped is not None and state.versions is not None:
            settled &= state.versions.first[0] > self.last_stopped(state.rules, state.version)
        delivers = ~state.restarting & (settled | (earliest == state.now))
        rung = jnp.bool_(False)
        if (alarm := self.alarm(state.rules)) is not None:
            rung = ~state.restarting & (settled | (alarm == state.now)) & (earliest > alarm)
            delivers &= earliest <= alarm
        run = jax.tree.map(lambda column: column[row], state.flight)
        state = self._vacate(state, row, client, delivers, num_clients)
        oldest = state.version
        if state.versions is not None:
            oldest = jnp.minimum(state.versions.first[0], state.version).astype(jnp.int32)
        verdict = self.arrives(state.rules, Event(run, count, state.version, oldest))
        refused, lost, closes = (jnp.asarray(one) & delivers for one in (verdict.refused, verdict.lost, verdict.closes))
        takes = delivers & ~refused & ~lost
        index = jnp.where(takes, count, size)
        columns = (step.mask, step.runs, step.kind)
        entry = (takes, run, None if step.kind is None else jnp.asarray(verdict.kind, jnp.int32))
        mask, runs, kind = jax.tree.map(lambda column, value: column.at[index].set(value, mode="drop"), columns, entry)
        gone = jnp.where(delivers & jnp.isinf(earliest), FaultCode.ALL_GONE, FaultCode.NONE)
        full = jnp.where(takes & (count == size), FaultCode.FULL, FaultCode.NONE)
        starts = first_fault(state.starts, jnp.maximum(gone, full), round=state.version, time=state.now)
        starts = starts._replace(refused=starts.refused + (refused & ~lost), lost=starts.lost + lost)
        rules = jax.tree.map(lambda new, old: jnp.where(delivers, new, old), verdict.rules, state.rules)
        now = jnp.where(delivers, earliest, state.now)
        if alarm is not None:
            now = jnp.where(rung, alarm, now)
            rules = jax.tree.map(lambda new, old: jnp.where(rung, new, old), self.rings(rules), rules)
        stepped = closes | rung
        state = state._replace(
            now=now,
            starts=starts,
            version=state.version + stepped,
            waiting=state.waiting + jnp.where(delivers, self.replaced(takes, closes), 0),
            rules=rules,
        )
        return state, step._replace(mask=mask, runs=runs, kind=kind), count + takes, stepped

    def _vacate(self, state: State, row: Array, client: Array, where: Array, num_clients: int) -> State:
        """Frees a row whose run has arrived or was stopped."""
        size = len(state.freed)
        never = jnp.float64(jnp.inf)
        freed = _set(state.freed, state.ended % size, row, where)
        versions = state.versions
        if versions is not None:
            versions = trees.expect(versions, size, row, never, client, where)
        return state._replace(
            ended=state.ended + where,
            handout=_set(state.handout, row, state.version, where),
            arrivals=trees.expect(state.arrivals, size, row, never, client, where),
            freed=freed,
            row=freed[state.starts.count % size],  # XLA copies the array if it is read before the write
            busy=trees.becomes_busy(state.busy, num_clients, client, -where.astype(jnp.int32)),
            versions=versions,
        )


_Carry = tuple[State, ServerStep, Array, Array]


def _set(columns: T, row: Array, entry: T, where: Array) -> T:
    return jax.tree.map(lambda column, value: column.at[row].set(jnp.where(where, value, column[row])), columns, entry)
