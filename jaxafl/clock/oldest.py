"""Doubly linked list of the runs in flight, in order of start, so that the oldest one is known in O(1)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.device.buffers import read, write

Array = jax.Array
_LATE = jnp.iinfo(jnp.int32).max


class InOrder(NamedTuple):
    """Rows of the runs in flight, in order of start; row M_c stands for the end on either side.

    Attributes:
        neighbours: int32 [2 (M_c + 1)], the row before each row, then the row after each row.
        oldest: row of the oldest run; M_c if there is none.
        version: its start version; the largest int32 if there is none.
    """

    neighbours: Array
    oldest: Array
    version: Array


def no_runs(size: int) -> InOrder:
    """Returns an empty list of up to `size` runs."""
    return InOrder(jnp.full(2 * (size + 1), size, jnp.int32), jnp.int32(size), jnp.int32(_LATE))


def append(runs: InOrder, row: Array, version: Array, where: Array) -> InOrder:
    """Appends a run to the list if `where`; its start version is not smaller than those of the others."""
    end = jnp.int32(len(runs.neighbours) // 2 - 1)
    newest = runs.neighbours[end]
    neighbours = _linked(runs.neighbours, [(newest, row), (row, end)], where)
    return InOrder(neighbours, neighbours[-1], jnp.where(where & (runs.oldest == end), version, runs.version))


def remove(runs: InOrder, row: Array, versions: Array, where: Array) -> InOrder:
    """Removes a run from the list if `where`.

    Args:
        runs: the list.
        row: row of the run.
        versions: start versions of the rows, int32 [M_c].
        where: False if the call is masked.
    """
    end = len(runs.neighbours) // 2 - 1
    neighbours = _linked(runs.neighbours, [(runs.neighbours[row], runs.neighbours[end + 1 + row])], where)
    oldest = neighbours[-1]
    return InOrder(neighbours, oldest, jnp.where(oldest == end, _LATE, versions[oldest]))


def _linked(neighbours: Array, pairs: list[tuple[Array, Array]], where: Array) -> Array:
    """Makes the rows of each pair neighbours of each other, if `where`.

    Outside of a loop XLA would merge these writes with the reads of neighbours, and copy the array.
    """
    size = len(neighbours) // 2
    places = jnp.stack([place for before, after in pairs for place in (size + before, after)])
    entries = jnp.stack([entry for before, after in pairs for entry in (after, before)])

    def link(index: Array, column: Array) -> Array:
        place = places[index]
        return write(column, place, jnp.where(where, entries[index], read(column, place)))

    return jax.lax.fori_loop(0, len(places), link, neighbours)
