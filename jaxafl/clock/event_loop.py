"""One event of `jaxafl.clock.events` other than a start: a stop, an arrival or an alarm, each in O(log N)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.clock import oldest, transfers, trees
from jaxafl.clock.contract import FaultCode, Runs, ServerStep, Starts
from jaxafl.clock.starts import first_fault
from jaxafl.clock.trees import put
from jaxafl.device.keys import Key
from jaxafl.device.user_code import like_given
from jaxafl.options import UserError

Array = jax.Array


class Event(NamedTuple):
    """An arrival, as `Events.arrives` receives it; all fields are scalars."""

    run: Runs
    taken: Array  # arrivals that the next server step has taken so far
    version: Array  # newest version
    oldest: Array  # oldest start version of the runs still in flight, if `Events.tracks_oldest`
    happens: Array  # False if the call is masked; arrays of the rules must not change then (scalars are ignored)


class Verdict(NamedTuple):
    """Decision on an arrival. An update that is refused or lost belongs to no server step.

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
    taken: Array  # number of arrivals since the last server step
    ended: Array  # number of runs that have arrived or were stopped
    waiting: Array  # number of starts that are due
    restarting: Array  # True if the starts of this instant have begun
    flight: Runs  # one row per concurrent run, [M_c]; a free row keeps its last run
    handout: Array  # [M_c], version just before the delivery of the row's arrival
    arrivals: trees.Arrivals  # arrivals of the rows
    freed: Array  # [M_c], rows in the order in which they become free, as a ring
    row: Array  # row of the next start
    origin: tuple[Array, Array | None]  # version and reference of the next run; XLA would copy what a start reads late
    busy: Array  # busy clients, see `trees.all_idle`
    runs: Array
    starts: Starts
    start_key: Key
    rules: Any  # of the protocol
    in_order: oldest.InOrder | None  # runs in flight that will arrive, if the oldest one is tracked
    stopped: Array | None  # stopped clients, which restart themselves, as idle ones of `trees.all_idle`, if M_c < N
    weights: Array | None  # weights of the idle clients, see `trees.weights_of`, if the draws are weighted
    transfers: transfers.Transfers | None  # over a link that runs share, if the durations have one


Carry = tuple[State, ServerStep, Array]
"""The state, a row of arrivals of the next server step, and True if the row is complete."""


def deliver(clock: Any, state: State, step: ServerStep, num_clients: int) -> Carry:
    """Stops a run that is too old, else delivers the earliest arrival, rings the alarm, or opens a start.

    Stops come once all arrivals of this instant have been delivered. A row is freed in one place: XLA copies the arrays
    of the rows if an event writes to them twice.
    """
    size, most, count = len(step.mask), clock.capacity(num_clients), state.taken
    event = transfers.next_event(clock, state)
    earliest, row = event.time, event.row
    stops = ~state.restarting & (earliest > state.now) & jnp.logical_not(none_to_stop(clock, state))
    alarm = clock.alarm(state.rules)
    settled = (state.waiting == 0) & ~stops
    if clock.next_start(state.rules) is not None:
        state, early = _start_at_rate(clock, state, settled)
        settled &= ~early
    begun = state.now  # time at which the next client may start
    if (opens := clock.opens(state, num_clients)) is not None:
        sleeps = ~settled & ~stops & (opens > state.now)
        first = earliest if alarm is None else jnp.minimum(earliest, alarm)
        wakes = sleeps & ~state.restarting & (opens < first)
        settled = (settled | sleeps) & ~wakes
        begun = jnp.where(wakes, opens, state.now)
    settled &= none_to_stop(clock, state)
    delivers = ~state.restarting & ~stops & (settled | (earliest == state.now))
    rung = jnp.bool_(False)
    if alarm is not None:
        rung = ~state.restarting & ~stops & (settled | (alarm == state.now)) & (earliest > alarm)
        delivers &= earliest <= alarm
    moves = None
    if state.transfers is not None:
        moves = transfers.change(state.transfers, event, delivers)
        delivers &= ~moves.happens
    # without the barrier XLA reads what `start` replaced, from a copy of the column
    run = jax.lax.optimization_barrier(jax.tree.map(lambda column: column[row], state.flight))
    if moves is not None:  # its time of arrival was unknown at its start
        run = run._replace(arrived=earliest)
    state, ended = _vacate(clock, state, event, stops, delivers, moves, num_clients)
    since = state.version if state.in_order is None else jnp.minimum(state.in_order.version, state.version)
    verdict = clock.arrives(state.rules, Event(run, count, state.version, since, delivers))
    if not isinstance(verdict, Verdict):
        raise UserError(
            f"the clock {clock.name}: arrives(rules, event) must return jaxafl.clock.Verdict(rules, closes=...), it "
            f"returned {verdict!r:.200}"
        )
    like_given(f"the clock {clock.name}", "arrives", verdict.rules, state.rules, types=True)
    refused, lost, closes = (
        jnp.asarray(one, bool) & delivers for one in (verdict.refused, verdict.lost, verdict.closes)
    )
    takes = delivers & ~refused & ~lost
    restarts = stops | refused | lost if clock.some_wait(num_clients) else None
    state = _free(state, ended, stops | delivers, restarts)
    exceeds = takes & (count >= most)  # so is the next arrival after a fault
    index = jnp.where(takes & ~exceeds, count if size == most else count % size, size)
    columns = (step.mask, step.runs, step.kind)
    entry = (takes, run, None if step.kind is None else jnp.asarray(verdict.kind, jnp.int32))
    mask, runs, kind = jax.tree.map(lambda column, value: column.at[index].set(value, mode="drop"), columns, entry)
    waits = delivers
    if alarm is not None and clock.next_start(state.rules) is None:  # windows without arrivals would follow for ever
        waits |= rung & (count == 0) & (state.waiting == 0)
    gone = jnp.where(waits & jnp.isinf(earliest), FaultCode.ALL_GONE, FaultCode.NONE)
    full = jnp.where(exceeds, FaultCode.FULL, FaultCode.NONE)
    when = jnp.where(jnp.isinf(earliest), state.now, earliest)
    starts = first_fault(state.starts, jnp.maximum(gone, full), run=most, round=state.version, time=when)
    starts = starts._replace(refused=starts.refused + (refused & ~lost), lost=starts.lost + lost)
    rules = jax.tree.map(
        lambda new, old: new if jnp.ndim(new) else jnp.where(delivers, new, old), verdict.rules, state.rules
    )
    now = jnp.where(delivers if moves is None else delivers | moves.happens, earliest, begun)
    if alarm is not None:
        now = jnp.where(rung, alarm, now)
        rules = jax.tree.map(lambda new, old: jnp.where(rung, new, old), clock.rings(rules), rules)
    stepped = closes | rung
    state = state._replace(
        now=now,
        starts=starts,
        version=state.version + stepped,
        taken=jnp.where(stepped, 0, count + takes),
        waiting=state.waiting + stops + jnp.where(delivers, clock.replaced(takes, closes), 0),
        rules=rules,
    )
    state = state._replace(origin=clock.start_version(state))
    ends = stepped | exceeds | (gone > 0)  # without the faults the loop might never end
    if size < most:
        step = step._replace(advances=stepped)
        ends |= takes & ((count + 1) % size == 0)
    return state, step._replace(mask=mask, runs=runs, kind=kind), ends


def _start_at_rate(clock: Any, state: State, settled: Array) -> tuple[State, Array]:
    """Makes a start due, or counts it as skipped, if its time comes first; returns the state, and True if it does."""
    time, alarm = clock.next_start(state.rules), clock.alarm(state.rules)
    next_event = transfers.next_event(clock, state).time
    next_event = next_event if alarm is None else jnp.minimum(next_event, alarm)
    full = state.starts.count - state.ended >= len(state.freed)
    # if no run in flight ever arrives, the loop would skip starts for ever
    opens = settled & ~state.restarting & (time < next_event) & ~(full & jnp.isinf(next_event))
    rules = jax.tree.map(lambda new, old: jnp.where(opens, new, old), clock.after_start(state.rules), state.rules)
    starts = state.starts._replace(skipped=state.starts.skipped + (opens & full))
    waiting = state.waiting + (opens & ~full)
    return state._replace(now=jnp.where(opens, time, state.now), rules=rules, waiting=waiting, starts=starts), opens


def _vacate(
    clock: Any,
    state: State,
    event: transfers.Event,
    stops: Array,
    delivers: Array,
    moves: transfers.Change | None,
    num_clients: int,
) -> tuple[State, Array]:
    """Ends a run that is stopped or has arrived, or changes the phase of one, and returns its row.

    Args:
        clock: the clock.
        state: its state.
        event: the earliest event.
        stops: True if the oldest run is stopped.
        delivers: True if the earliest event is an arrival, which is delivered.
        moves: the change of phase, if runs share a link.
        num_clients: N.
    """
    size = len(state.freed)
    never = jnp.float64(jnp.inf)
    client, row = event.client, event.row
    where = delivers
    in_order, stopped, starts = state.in_order, state.stopped, state.starts
    if in_order is not None and clock.last_stopped(state.rules, state.version) is not None:
        where = stops | delivers
        row = jnp.where(stops, in_order.oldest, row)
        client = jnp.where(stops, state.flight.client[row], client)
        starts = starts._replace(stopped=starts.stopped + stops)
        if stopped is not None:
            stopped = trees.becomes_busy(stopped, num_clients, client, -stops.astype(jnp.int32))
    if in_order is not None:
        there = where & jnp.isfinite(event.time)  # false where all clients are gone
        in_order = oldest.remove(in_order, row, state.flight.version, there)
    weights = state.weights
    if weights is not None:
        known = jnp.minimum(client, num_clients - 1)  # without arrivals there is none, and sums would be overwritten
        weights = trees.weigh(weights, num_clients, known, clock.client_weights(num_clients)[known], where)
    shared, code, until, changes = state.transfers, client, never, where
    if moves is not None:
        shared = transfers.after(clock, state, jnp.where(stops, state.now, event.time), row, client, moves, where)
        code = 2 * client + (moves.end == transfers.End.UP)
        until, changes = jnp.where(moves.happens, moves.until, never), where | moves.happens
    return state._replace(
        ended=state.ended + where,
        starts=starts,
        stopped=stopped,
        transfers=shared,
        handout=put(state.handout, row, state.version, where),
        arrivals=trees.expect(state.arrivals, size, row, until, code, changes),
        busy=trees.becomes_busy(state.busy, num_clients, client, -where.astype(jnp.int32)),
        in_order=in_order,
        weights=weights,
    ), row


def _free(state: State, row: Array, where: Array, first: Array | None) -> State:
    """Enters a row among the free ones.

    Args:
        state: the state, with the run of the row among the ended ones.
        row: the row.
        where: False if the call is masked.
        first: True if the row's client restarts before those that wait for a server step; `None` if none waits.
    """
    size = len(state.freed)
    last = (state.ended - 1) % size
    if first is None:
        freed = put(state.freed, last, row, where)
    else:  # XLA would copy the array if it were read between the writes
        place = jnp.where(first, state.starts.count + state.waiting, state.ended - 1) % size
        before, other = state.freed[last], state.freed[place]
        freed = state.freed.at[last].set(jnp.where(where, jnp.where(place == last, row, other), before))
        freed = freed.at[place].set(jnp.where(where, row, other))
    return state._replace(freed=freed, row=freed[state.starts.count % size])  # read after the write, else XLA copies


def none_to_stop(clock: Any, state: State) -> Array | bool:
    """Returns True if no run in flight is old enough to be stopped."""
    last = clock.last_stopped(state.rules, state.version)
    return True if last is None or state.in_order is None else state.in_order.version > last
