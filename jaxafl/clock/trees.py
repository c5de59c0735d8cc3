"""Trees that find the earliest of many arrivals, and the n-th idle of many clients, in logarithmic time.

Levels consist of rows of `_WIDTH` entries, and an entry summarises a row of the level below. One array holds the rows
of all levels, from the leaves up. An update is a loop over the levels that changes one row of each.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.device.buffers import read, write

Array = jax.Array
T = TypeVar("T")
_WIDTH = 8
LATE = jnp.iinfo(jnp.int32).max
"""Index after that of any client."""


class Arrivals(NamedTuple):
    """Arrival times of the runs in flight, by place; ordered by time, then by client.

    Attributes:
        times, clients, places: float64, int32 and int32 [rows, width]; the time of an empty place is infinite.
        first: time, client and place of the earliest arrival.
    """

    times: Array
    clients: Array
    places: Array
    first: tuple[Array, Array, Array]


def no_arrivals(size: int) -> Arrivals:
    """Returns a tree of `size` empty places."""
    shape = (_begins(size)[-1], _WIDTH)
    return Arrivals(
        jnp.full(shape, jnp.inf, jnp.float64),
        jnp.full(shape, LATE, jnp.int32),
        jnp.arange(shape[0] * _WIDTH, dtype=jnp.int32).reshape(shape),
        (jnp.float64(jnp.inf), jnp.int32(LATE), jnp.int32(0)),
    )


def all_arrive(size: int, time: float) -> Arrivals:
    """Returns a tree of `size` places, in which client i arrives in place i at `time`."""
    times, first = [], []
    for level, (begin, end) in enumerate(itertools.pairwise(_begins(size))):
        place = np.arange((end - begin) * _WIDTH) * _WIDTH**level
        times.append(np.where(place < size, time, np.inf))
        first.append(np.where(place < size, place, int(LATE)))
    table = jnp.asarray(np.concatenate(times).reshape(-1, _WIDTH))
    clients = jnp.asarray(np.concatenate(first).reshape(-1, _WIDTH), jnp.int32)
    return Arrivals(table, clients, clients, (jnp.float64(time), jnp.int32(0), jnp.int32(0)))


def expect(arrivals: Arrivals, size: int, place: Array, time: Array, client: Array, where: Array) -> Arrivals:
    """Sets the arrival of a place to `time` and `client` if `where`, and updates the minima up the tree.

    An infinite time empties the place.
    """
    begins = _begins(size)

    def up(level: Array, carry: tuple[Arrivals, Array]) -> tuple[Arrivals, Array]:
        (*tables, entry), place = carry
        row = jnp.asarray(begins)[level] + place // _WIDTH
        changed = (jnp.arange(_WIDTH, dtype=jnp.int32) == place % _WIDTH) & (where | (level > 0))
        rows = [jnp.where(changed, value, read(table, row)) for table, value in zip(tables, entry, strict=True)]
        times, clients, places = rows
        earliest = jnp.min(times)
        client = jnp.min(jnp.where(times == earliest, clients, LATE))
        first = (times == earliest) & (clients == client)
        tables = write(tables, row, rows)
        entry = (earliest, client, jnp.min(jnp.where(first, places, LATE)))
        return Arrivals(tables[0], tables[1], tables[2], entry), place // _WIDTH

    return jax.lax.fori_loop(0, len(begins) - 1, up, (arrivals._replace(first=(time, client, place)), place))[0]


def arrival_times(arrivals: Arrivals, size: int) -> Array:
    """Returns the arrival time of each place, float64 [size]; infinite for empty places."""
    return arrivals.times.reshape(-1)[:size]


def arrival_time(arrivals: Arrivals, place: Array) -> Array:
    """Returns the arrival time of a place, float64; infinite for an empty one."""
    return read(arrivals.times, place // _WIDTH)[place % _WIDTH]


def all_idle(num_clients: int) -> Array:
    """Returns a tree of the numbers of busy clients, int32 [rows, width], with all clients idle."""
    return jnp.zeros((_begins(num_clients)[-1], _WIDTH), jnp.int32)


def none_idle(num_clients: int) -> Array:
    """Returns a tree as `all_idle` does, with all clients busy."""
    begins = _begins(num_clients)
    tree = np.zeros((begins[-1], _WIDTH), np.int32)
    for level, (begin, end) in enumerate(itertools.pairwise(begins)):
        first = np.arange((end - begin) * _WIDTH) * _WIDTH**level
        tree[begin:end] = np.clip(num_clients - first, 0, _WIDTH**level).reshape(-1, _WIDTH)
    return jnp.asarray(tree)


def count_idle(busy: Array, num_clients: int) -> Array:
    """Returns the number of idle clients."""
    return num_clients - jnp.sum(busy[-1])


def becomes_busy(busy: Array, num_clients: int, client: Array, change: Array) -> Array:
    """Marks a client as busy (change 1) or idle (-1), and updates the counts up the tree; 0 changes nothing."""
    begins = _begins(num_clients)

    def up(level: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        busy, place = carry
        row = jnp.asarray(begins)[level] + place // _WIDTH
        changes = jnp.where(jnp.arange(_WIDTH, dtype=jnp.int32) == place % _WIDTH, change, 0)
        return write(busy, row, read(busy, row) + changes), place // _WIDTH

    return jax.lax.fori_loop(0, len(begins) - 1, up, (busy, client))[0]


def is_busy(busy: Array, client: Array) -> Array:
    """Returns True if a client is busy."""
    return busy[client // _WIDTH, client % _WIDTH] > 0


def idle_clients(busy: Array, num_clients: int) -> Array:
    """Returns bool [N], True for the idle clients."""
    return busy[: _begins(num_clients)[1]].ravel()[:num_clients] == 0


def nth_idle(busy: Array, num_clients: int, rank: Array) -> Array:
    """Returns the idle client of rank `rank`, from 0 on in client order."""
    begins = _begins(num_clients)
    entries = jnp.arange(_WIDTH, dtype=jnp.int32)
    levels = len(begins) - 1
    stands_for = np.asarray([_WIDTH**level for level in range(levels)], np.int32)

    def down(step: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        row, rank, left = carry  # row in its level, rank in the row, and clients from the row's first one on
        level = levels - 1 - step
        each = jnp.asarray(stands_for)[level]
        clients = jnp.where(entries < left // each, each, jnp.where(entries == left // each, left % each, 0))
        idle = clients - read(busy, jnp.asarray(begins)[level] + row)
        until = jnp.sum(jnp.where(entries[:, None] >= entries, idle, 0), axis=1, dtype=jnp.int32)
        entry = jnp.sum(until <= rank, dtype=jnp.int32)
        rank = rank - jnp.max(jnp.where(until <= rank, until, 0))
        return row * _WIDTH + entry, rank, left - entry * each

    return jax.lax.fori_loop(0, levels, down, (jnp.int32(0), rank, jnp.int32(num_clients)))[0]


def weights_of(weights: Array) -> Array:
    """Returns a tree of the weights [N] of all clients, float64 [rows, width], in which an entry is a sum."""
    levels, level = [], jnp.asarray(weights, jnp.float64)
    for begin, end in itertools.pairwise(_begins(len(weights))):
        padded = jnp.zeros((end - begin) * _WIDTH).at[: len(level)].set(level)
        levels.append(padded.reshape(-1, _WIDTH))
        level = jnp.sum(levels[-1], axis=1)
    return jnp.concatenate(levels)


def weigh(tree: Array, num_clients: int, client: Array, weight: Array | float, where: Array) -> Array:
    """Sets the weight of a client if `where`, and sums up the tree again, so that rounding does not accumulate."""
    begins = _begins(num_clients)

    def up(level: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        tree, place, value = carry
        row = jnp.asarray(begins)[level] + place // _WIDTH
        changed = (jnp.arange(_WIDTH, dtype=jnp.int32) == place % _WIDTH) & (where | (level > 0))
        entries = jnp.where(changed, value, read(tree, row))
        return write(tree, row, entries), place // _WIDTH, jnp.sum(entries)

    begin = (tree, client, jnp.asarray(weight, jnp.float64))
    return jax.lax.fori_loop(0, len(begins) - 1, up, begin)[0]


def weighted(tree: Array, num_clients: int, share: Array) -> Array:
    """Returns the first client, in client order, at which the sum of the weights exceeds `share` in [0, 1) of all."""
    begins = _begins(num_clients)
    levels = len(begins) - 1

    def down(step: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        row, target = carry
        entries = read(tree, jnp.asarray(begins)[levels - 1 - step] + row)
        until = jnp.cumsum(entries)
        passes = (until > target) & (entries > 0)
        last = _WIDTH - 1 - jax.lax.argmax(entries[::-1] > 0, 0, jnp.int32)  # rounding may put the target past the end
        entry = jnp.where(jnp.any(passes), jax.lax.argmax(passes, 0, jnp.int32), last)
        return row * _WIDTH + entry, target - (until[entry] - entries[entry])

    begin = (jnp.int32(0), share * jnp.sum(tree[-1]))
    return jax.lax.fori_loop(0, levels, down, begin)[0]


def put(columns: T, row: Array, entry: T, where: Array) -> T:
    """Writes an entry to a row of arrays, all with a leading axis, if `where`.

    XLA copies an array that a loop reads at one index and writes at another, such as one beyond its end for no write.
    """
    return jax.tree.map(lambda column, value: column.at[row].set(jnp.where(where, value, column[row])), columns, entry)


def _begins(size: int) -> np.ndarray:
    """Returns the first row of each level, from the leaves up to the root, followed by the number of rows."""
    rows = [-(-size // _WIDTH)]
    while rows[-1] > 1:
        rows.append(-(-rows[-1] // _WIDTH))
    return np.cumsum([0, *rows], dtype=np.int32)
