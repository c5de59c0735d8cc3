"""The earliest of many arrivals, and the n-th idle of many clients, at a cost that hardly grows with their number.

Both are trees of rows of `_WIDTH` entries: an entry of a level stands for a row of the level below. The rows of all
levels, from the leaves up, are those of one array, so that a change is a loop over the levels, one row of each.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.device.buffers import read, write

Array = jax.Array
_WIDTH = 8
_LATE = jnp.iinfo(jnp.int32).max


class Arrivals(NamedTuple):
    """When the runs under way arrive, by the place that they have; ordered by time, and by client at one instant.

    Attributes:
        times, clients, places: float64, int32 and int32 [rows, width]; infinite where none is under way.
        first: time, client and place of the earliest.
    """

    times: Array
    clients: Array
    places: Array
    first: tuple[Array, Array, Array]


def no_arrivals(size: int) -> Arrivals:
    """So many places, none of them taken."""
    shape = (_begins(size)[-1], _WIDTH)
    return Arrivals(
        jnp.full(shape, jnp.inf, jnp.float64),
        jnp.full(shape, _LATE, jnp.int32),
        jnp.arange(shape[0] * _WIDTH, dtype=jnp.int32).reshape(shape),
        (jnp.float64(jnp.inf), jnp.int32(_LATE), jnp.int32(0)),
    )


def expect(arrivals: Arrivals, size: int, place: Array, time: Array, client: Array, where: Array) -> Arrivals:
    """The arrivals where that of a place is at `time` (infinite: none); `where`: whether it is."""
    begins = _begins(size)

    def up(level: Array, carry: tuple[Arrivals, Array]) -> tuple[Arrivals, Array]:
        (*tables, entry), place = carry
        row = jnp.asarray(begins)[level] + place // _WIDTH
        here = (jnp.arange(_WIDTH, dtype=jnp.int32) == place % _WIDTH) & (where | (level > 0))
        rows = [jnp.where(here, value, read(table, row)) for table, value in zip(tables, entry, strict=True)]
        times, clients, places = rows
        earliest = jnp.min(times)
        client = jnp.min(jnp.where(times == earliest, clients, _LATE))
        first = (times == earliest) & (clients == client)
        tables = write(tables, row, rows)
        entry = (earliest, client, jnp.min(jnp.where(first, places, _LATE)))
        return Arrivals(tables[0], tables[1], tables[2], entry), place // _WIDTH

    return jax.lax.fori_loop(0, len(begins) - 1, up, (arrivals._replace(first=(time, client, place)), place))[0]


def when(arrivals: Arrivals, size: int) -> Array:
    """float64 [size]: when the run in each place arrives, infinite where there is none."""
    return arrivals.times.reshape(-1)[:size]


def all_idle(num_clients: int) -> Array:
    """How many busy clients an entry stands for, int32 [rows, width]: none."""
    return jnp.zeros((_begins(num_clients)[-1], _WIDTH), jnp.int32)


def becomes_busy(busy: Array, num_clients: int, client: Array, change: Array) -> Array:
    """The clients after one has become busy (change 1), idle (-1) or neither (0)."""
    begins = _begins(num_clients)

    def up(level: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        busy, place = carry
        row = jnp.asarray(begins)[level] + place // _WIDTH
        here = jnp.where(jnp.arange(_WIDTH, dtype=jnp.int32) == place % _WIDTH, change, 0)
        return write(busy, row, read(busy, row) + here), place // _WIDTH

    return jax.lax.fori_loop(0, len(begins) - 1, up, (busy, client))[0]


def is_busy(busy: Array, client: Array) -> Array:
    """Whether a client is."""
    return busy[client // _WIDTH, client % _WIDTH] > 0


def nth_idle(busy: Array, num_clients: int, rank: Array) -> Array:
    """The idle client that so many idle ones precede, by number."""
    begins, entries = _begins(num_clients), jnp.arange(_WIDTH, dtype=jnp.int32)
    levels = len(begins) - 1
    stands_for = np.asarray([_WIDTH**level for level in range(levels)], np.int32)

    def down(step: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        row, rank, left = carry  # which row of its level, and clients from its first one on
        level = levels - 1 - step
        each = jnp.asarray(stands_for)[level]
        there = jnp.where(entries < left // each, each, jnp.where(entries == left // each, left % each, 0))
        idle = there - read(busy, jnp.asarray(begins)[level] + row)
        until = jnp.sum(jnp.where(entries[:, None] >= entries, idle, 0), axis=1, dtype=jnp.int32)
        entry = jnp.sum(until <= rank, dtype=jnp.int32)
        rank = rank - jnp.max(jnp.where(until <= rank, until, 0))
        return row * _WIDTH + entry, rank, left - entry * each

    return jax.lax.fori_loop(0, levels, down, (jnp.int32(0), rank, jnp.int32(num_clients)))[0]


def _begins(size: int) -> np.ndarray:
    """At which row each level begins, from the leaves up to one row, and the number of rows."""
    rows = [-(-size // _WIDTH)]
    while rows[-1] > 1:
        rows.append(-(-rows[-1] // _WIDTH))
    return np.cumsum([0, *rows], dtype=np.int32)
