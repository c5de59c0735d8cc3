"""Transfers that share the server's link: processor sharing, exact event by event, each event in O(log N).

Each of the n transfers under way gets B/n bytes per second. Let V be the bytes that a transfer would have got which is
under way all the time. It grows at B/n, and a transfer of b bytes that begins at V ends at V + b, whatever else begins
or ends meanwhile.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.clock import trees
from jaxafl.clock.durations.link import link, shared_link
from jaxafl.clock.trees import put

Array = jax.Array


class End(enum.IntEnum):
    """Ends of the phases of a run whose transfers share a link; even and odd ones stand in one tree."""

    DOWN = 0
    UP = 1
    WORK = 2
    RUN = 3  # the upload is complete; the arrival is delivered at this instant


class Transfers(NamedTuple):
    """Transfers under way.

    In `ends`, and in the arrivals of the clock's state, 2·client + end % 2 stands for the client. XLA would copy an
    array of phases that a start and an arrival both write.
    """

    ends: trees.Arrivals  # V at the end of each row's transfer
    number: Array  # int32, n
    bytes: Array  # float64, V at `since`
    since: Array  # float64, time of the last change of n
    work: Array  # float64 [M_c], seconds between the transfers of the run


class Event(NamedTuple):
    """The next end of a phase."""

    time: Array
    client: Array
    row: Array
    end: Array | None = None  # int32, an `End`; `None` if runs share no link


class Change(NamedTuple):
    """End of a transfer or of a run's work, by which the run does not arrive yet."""

    happens: Array  # False if the next event is another one
    end: Array
    until: Array  # float64, time of the next end of the run if it is known, or infinite


def no_transfers(clock: Any, size: int) -> Transfers | None:
    """Returns the state without transfers; `None` if the durations of the clock share no link."""
    if shared_link(clock.durations) is None:
        return None
    zero = jnp.float64(0)
    return Transfers(trees.no_arrivals(size), jnp.int32(0), zero, zero, jnp.zeros(size))


def next_event(clock: Any, state: Any) -> Event:
    """Returns the next end of a transfer, of work or of a run; those of transfers come first."""
    transfers = state.transfers
    if transfers is None:
        return Event(*state.arrivals.first)
    ends, code, row = transfers.ends.first
    left = (ends - transfers.bytes) * transfers.number / _speed(clock)
    time = jnp.where(transfers.number > 0, jnp.maximum(transfers.since + left, state.now), jnp.inf)
    arrival, later, other = state.arrivals.first
    first = time <= arrival
    code = jnp.where(first, code, later)
    end = jnp.where(first, End.DOWN, End.WORK) + code % 2
    return Event(jnp.minimum(time, arrival), code // 2, jnp.where(first, row, other), end.astype(jnp.int32))


def begin(clock: Any, state: Any, row: Array, client: Array, work: Array, where: Array) -> Transfers:
    """Returns the transfers after the begin of a run's download, if `where`."""
    transfers = _served(clock, state.transfers, state.now, where)
    ends = transfers.bytes + _sent(clock)[1]
    return transfers._replace(
        ends=trees.expect(transfers.ends, len(transfers.work), row, ends, 2 * client + End.DOWN % 2, where),
        number=transfers.number + where,
        work=put(transfers.work, row, work, where),
    )


def change(transfers: Transfers, event: Event, is_due: Array) -> Change:
    """Returns the change of a run's phase at the next event, if that is due."""
    end = jnp.asarray(event.end)
    # without the barrier XLA reads what a start replaced, from a copy
    work = jax.lax.optimization_barrier(transfers.work[event.row])
    known = jnp.where(end == End.UP, event.time, event.time + work)
    happens = is_due & jnp.isfinite(event.time) & (end != End.RUN)
    return Change(happens, end, jnp.where(end == End.WORK, jnp.inf, known))


def after(clock: Any, state: Any, time: Array, row: Array, client: Array, change: Change, ends: Array) -> Transfers:
    """Returns the transfers after a change of phase at `time`, or after the arrival or stop of a run.

    Args:
        clock: the clock.
        state: its state before.
        time: simulated seconds.
        row, client: the run.
        change: the change of phase, if it happens.
        ends: True for an arrival or a stop.
    """
    transfers = state.transfers
    size = len(transfers.work)
    due = trees.arrival_time(transfers.ends, row)  # infinite if the run does not transfer
    uploads = change.happens & (change.end == End.WORK)
    over = (change.happens | ends) & jnp.isfinite(due)
    transfers = _served(clock, transfers, time, over | uploads)
    transfers = transfers._replace(bytes=jnp.where(over & change.happens, due, transfers.bytes))  # without rounding
    until = jnp.where(uploads, transfers.bytes + _sent(clock)[0], jnp.inf)
    return transfers._replace(
        ends=trees.expect(transfers.ends, size, row, until, 2 * client + End.UP % 2, over | uploads),
        number=transfers.number + uploads - over,
    )


def in_flight(state: Any) -> Array:
    """Returns True for the rows with a run in flight, bool [M_c]."""
    size = len(state.freed)
    busy = jnp.isfinite(trees.arrival_times(state.arrivals, size))
    if state.transfers is None:
        return busy
    return busy | jnp.isfinite(trees.arrival_times(state.transfers.ends, size))


def with_arrivals(tree: Any) -> Any:
    """Returns a clock's state in which the runs in flight are those that arrive at infinity, if they share a link."""

    def shares(node: Any) -> bool:
        return isinstance(getattr(node, "transfers", None), Transfers)

    def settled(node: Any) -> Any:
        if not shares(node):
            return node
        size, started = len(node.freed), node.starts.count
        free = (jnp.arange(size) - started) % size < size - (started - node.ended)  # of the ring of free rows
        arrived = jnp.full(size, jnp.inf).at[node.freed].min(jnp.where(free, -jnp.inf, jnp.inf))
        return node._replace(flight=node.flight._replace(arrived=arrived))

    return jax.tree.map(settled, tree, is_leaf=shares)


def round_of_transfers(shared: link, begins: Array, work: Array) -> Array:
    """Returns the seconds until the arrivals of runs [A] that begin at one instant, while there are no others.

    All downloads are equally long, so that they end together. Uploads are equally long too, so that they end in the
    order in which they begin.

    Args:
        shared: link that the runs share.
        begins: bool [A], True for entries that begin.
        work: float64 [A], seconds between the transfers of each run.
    """
    speed = jnp.asarray(shared.shared, jnp.float64)
    up, down = (jnp.asarray(one, jnp.float64) for one in shared.sent)
    begun = jnp.where(begins, jnp.sum(begins) * down / speed + work, jnp.inf)
    order = jnp.argsort(begun)
    first = jnp.append(begun[order], jnp.inf)

    def advance(carry: Any) -> Any:
        """Begins or ends one upload; V at the ends, seconds at the ends, uploads begun and ended, V, its time."""
        until, ends, starts, done, served, now = carry
        under_way = starts - done
        ending = jnp.where(under_way > 0, now + (until[done] - served) * under_way / speed, jnp.inf)
        stops = ending <= first[starts]
        time = jnp.where(stops, ending, first[starts])
        served = jnp.where(stops, until[done], served + (time - now) * speed / jnp.maximum(under_way, 1))
        until = jnp.where(stops, until, until.at[starts].set(served + up))
        ends = jnp.where(stops, ends.at[done].set(time), ends)
        return until, ends, starts + ~stops, done + stops, served, time

    def goes_on(carry: Any) -> Array:
        return (carry[3] < carry[2]) | jnp.isfinite(first[carry[2]])

    zero = jnp.int32(0)
    blank = jnp.full(len(first), jnp.inf)
    ends = jax.lax.while_loop(goes_on, advance, (blank, blank, zero, zero, jnp.float64(0), jnp.float64(0)))[1]
    return jnp.zeros(len(order)).at[order].set(ends[:-1])


def _served(clock: Any, transfers: Transfers, now: Array, where: Array) -> Transfers:
    """Advances V to the time `now`, if `where`."""
    grown = transfers.bytes + (now - transfers.since) * _speed(clock) / jnp.maximum(transfers.number, 1)
    new = jnp.where(transfers.number > 0, grown, transfers.bytes)
    return transfers._replace(
        bytes=jnp.where(where, new, transfers.bytes), since=jnp.where(where, now, transfers.since)
    )


def _speed(clock: Any) -> Array:
    return jnp.asarray(shared_link(clock.durations).shared, jnp.float64)  # type: ignore[union-attr]


def _sent(clock: Any) -> Any:
    """Returns the bytes of an upload and of a download."""
    return jnp.asarray(shared_link(clock.durations).sent, jnp.float64)  # type: ignore[union-attr]
