"""Runs that no server step consumes: refused, stopped, or with a failed upload."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.clock.contract import Clock
from jaxafl.clock.event_loop import State, deliver
from jaxafl.clock.event_start import start
from jaxafl.clock.events import Events
from jaxafl.clock.rounds import synchronous
from jaxafl.clock.schedules import Clockwork
from jaxafl.clock.tables import Schedule, Untaken, replaced
from jaxafl.clock.warm_up import warm_up
from jaxafl.device import compiled, float64_on_cpu
from jaxafl.options import UserError

_EVENTS = 4096  # per call of the program
_ROUNDING = 1e-12  # relative; a pause is added to times


class Discarded(NamedTuple):
    """Discarded runs, [D]: client, start, and the end by an arrival or a stop, in simulated seconds."""

    client: np.ndarray
    started: np.ndarray
    ended: np.ndarray


NONE = Discarded(np.zeros(0, int), np.zeros(0), np.zeros(0))


def discarded(schedule: Schedule) -> Discarded:
    """Returns the refused, stopped and lost runs of a complete schedule.

    A schedule has only their numbers, so an `Events` clock runs again, event by event. Rounds of `synchronous` have
    them as padding, except in rounds that are repeated. Empty for other clocks, and for a part of a schedule.
    """
    clock = schedule.source.clock if schedule.source else None
    counts = (schedule.runs_refused, schedule.runs_stopped, schedule.runs_lost)
    if not any(count[-1:].any() for count in counts):
        return NONE
    if _by_events(clock):
        return _of_events(schedule)
    return _of_rounds(schedule) if isinstance(clock, synchronous) else NONE


def _of_rounds(schedule: Schedule) -> Discarded:
    run_id, first = np.unique(schedule.run_id, return_index=True)  # an entry without a run has that of another entry
    first = first[~np.isin(run_id, schedule.run_id[schedule.mask]) & (run_id < schedule.runs_started)]
    columns = (schedule.client, schedule.started, schedule.arrived)
    client, started, arrived = (column.ravel()[first] for column in columns)
    return Discarded(client, started, np.minimum(arrived, schedule.time[first // schedule.mask.shape[1]]))


def _of_events(schedule: Schedule) -> Discarded:
    """Returns the discarded runs of a clock that advances event by event."""
    clockwork = _again(schedule)
    version, runs, ended, _ = _scanned(clockwork, clockwork.state, schedule.server_steps)
    pause = clockwork.clock.pause
    return Discarded(runs.client, runs.started + pause * runs.reference, ended + pause * version)


def untaken(schedule: Schedule) -> Schedule:
    """Returns a complete schedule with the runs that clients complete and no server step takes; a part as it is."""
    if schedule.source is None or schedule.source.clock.takes_all or schedule.untaken is not None:
        return schedule
    clockwork = _again(schedule)
    if isinstance(clockwork.clock, warm_up):
        clockwork.advance(1)
        return replaced(schedule, untaken=_before_first_step(schedule, clockwork))
    if not _by_events(clockwork.clock):
        return replaced(schedule, untaken=_lost_in_rounds(schedule, clockwork.clock.pause, 0))
    return replaced(schedule, untaken=_untaken(clockwork, clockwork.state, schedule.server_steps))


def advanced(clockwork: Clockwork, count: int) -> Schedule:
    """Returns the next `count` server steps of a clock with the completed runs that they do not take."""
    if isinstance(clockwork.clock, warm_up):
        schedule = clockwork.advance(count)
        return schedule if schedule.start else replaced(schedule, untaken=_before_first_step(schedule, clockwork))
    if not _by_events(clockwork.clock):
        lost = int(clockwork.state.starts.lost)
        schedule = clockwork.advance(count)
        return replaced(schedule, untaken=_lost_in_rounds(schedule, clockwork.clock.pause, lost))
    before = jax.tree.map(jnp.copy, clockwork.state)
    schedule = clockwork.advance(count)
    return replaced(schedule, untaken=_untaken(clockwork, before, schedule.start + count))


def lists_untaken(clock: Clock | None) -> bool:
    """Returns True if `untaken` and `advanced` find the completed runs that no server step of a clock takes."""
    if isinstance(clock, warm_up):
        return type(clock).next is warm_up.next and clock.clock.takes_all
    return _by_events(clock) or (isinstance(clock, synchronous) and type(clock).next is synchronous.next)


def _by_events(clock: Clock | None) -> bool:
    return isinstance(clock, Events) and type(clock).next is Events.next


def _before_first_step(schedule: Schedule, clockwork: Clockwork) -> Untaken:
    """Returns the runs of `warm_up` whose update a later one of their client replaced before the first server step.

    Args:
        schedule: server steps from the first on.
        clockwork: the clock after at least one server step.
    """
    clock: Any = clockwork.clock
    count = int(clockwork.state.shift) + 1  # steps of the protocol before the first version
    if not count:
        return Untaken(*(np.zeros(0, np.int32),) * 5, *(np.zeros(0),) * 2, np.zeros(0, np.int32))
    protocol = Clockwork(clock.clock, clockwork.num_clients, clockwork.workload.steps, count, clockwork.seed)
    found = protocol.advance(count)
    step, entry = np.nonzero(found.mask)
    _, first = np.unique(found.run_id[step, entry], return_index=True)
    taken = np.isin(found.run_id[step, entry][first], schedule.run_id[0][schedule.mask[0]])
    step, entry = step[first][~taken], entry[first][~taken]
    columns = {name: getattr(found, name)[step, entry] for name in Untaken._fields[:-1]}
    columns["started"] = columns["started"] - clock.pause * columns["reference"]
    columns["arrived"] = columns["arrived"] - clock.pause * step
    zero = np.zeros(len(step), np.int32)
    return Untaken(**columns | {"version": zero, "reference": zero}, step=zero)


def _lost_in_rounds(schedule: Schedule, pause: float, lost: int) -> Untaken:
    """Returns the completed runs of rounds whose upload failed.

    Args:
        schedule: rounds of `synchronous`.
        pause: seconds per server step in which no client computes.
        lost: runs whose upload failed before the schedule.

    Raises:
        ValueError: the rounds do not tell them from other runs.
    """
    run_id, first = np.unique(schedule.run_id, return_index=True)
    first = first[~np.isin(run_id, schedule.run_id[schedule.mask]) & (run_id < schedule.runs_started)]
    row, end = first // schedule.mask.shape[1], schedule.time - pause
    first = first[schedule.arrived.ravel()[first] <= end[row] * (1 + _ROUNDING)]
    row = first // schedule.mask.shape[1]
    counts = np.bincount(row, minlength=schedule.server_steps)
    wrong = np.nonzero(counts != np.diff(schedule.runs_lost, prepend=lost))[0]
    if len(wrong):
        raise UserError(
            "Client: clients keep something from run to run, and round "
            f"{schedule.start + wrong[0]} of {schedule.protocol} was repeated, as all uploads failed, or runs were "
            "stopped at its end, so that completed runs are not known. Use free_running(lost=...), or another seed"
        )
    columns = {name: getattr(schedule, name).ravel()[first] for name in Untaken._fields[:-1]}
    return Untaken(**columns, step=(schedule.start + row).astype(np.int32))


def _again(schedule: Schedule) -> Clockwork:
    clock, seed, _, local_steps = schedule.source  # type: ignore[misc]
    return Clockwork(clock, schedule.num_clients, local_steps, schedule.server_steps, seed)


def _untaken(clockwork: Clockwork, state: State, stop: int) -> Untaken:
    version, runs, ended, completed = _scanned(clockwork, state, stop)
    pause = clockwork.clock.pause
    found = Untaken(
        runs.client, runs.run, runs.version, runs.reference, runs.local_steps,
        runs.started + pause * runs.reference, ended + pause * version, version,
    )  # fmt: skip
    return Untaken(*(column[completed] for column in found))


def _scanned(clockwork: Clockwork, state: State, stop: int) -> tuple[Any, ...]:
    """Returns the discarded runs up to server step `stop`: version and time of the end; True if clients complete it."""
    found: list[Any] = []
    with float64_on_cpu():
        while not found or int(state.version) < stop:
            arguments = (clockwork.numbers, clockwork.workload, state)
            program, _ = compiled(_scan, (_EVENTS,), arguments, whole=True)
            state, records = program(*arguments)
            found.append(jax.device_get(records))
    where, version, runs, ended = jax.tree.map(lambda *parts: np.concatenate([one.ravel() for one in parts]), *found)
    completed = np.tile([False, True], len(where) // 2)
    chosen = where & (version < stop)
    return jax.tree.map(lambda column: column[chosen], (version, runs, ended, completed))


def _scan(events: int, clock: Events, workload: Any, state: State) -> Any:
    """Advances by a number of events; returns which of them discard a run, the version, and the runs, [events, 2]."""

    def one(state: State, _: Any) -> Any:
        state = start(clock, state, workload)
        before, version, now = state.starts, state.version, state.now
        row = jnp.int32(0) if state.in_order is None else state.in_order.oldest
        oldest = jax.tree.map(lambda column: column[row], state.flight)
        run = jax.tree.map(lambda column: column[state.arrivals.first[2]], state.flight)
        state, *_ = deliver(clock, state, clock.row(workload.num_clients), workload.num_clients)
        stops = state.starts.stopped > before.stopped
        drops = (state.starts.refused > before.refused) | (state.starts.lost > before.lost)
        stopped = (stops, version, oldest.complete(), now)
        dropped = (drops, version, run.complete(), run.arrived)
        return state, jax.tree.map(lambda *pair: jnp.stack(pair), stopped, dropped)

    return jax.lax.scan(one, state, length=events)
