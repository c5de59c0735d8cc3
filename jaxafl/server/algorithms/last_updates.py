"""Table of the last contribution of every client, for servers that reuse it while the client is away."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.device import Rows, buffers
from jaxafl.options import Number
from jaxafl.server.contract import Array, Arrivals, Tree


class Entered(NamedTuple):
    """Arrivals entered into a table, in order of delivery."""

    table: Rows  # one row per client, after the arrivals
    new: Tree  # rows that entered, each leaf [A, ...]
    old: Tree  # rows that they replaced, each leaf [A, ...]
    mask: Array  # bool [A]

    def change(self, weights: Array | None = None, memory: Number = 1.0) -> Tree:
        """Computes Σ_i w_i (new_i - β old_i) over the arrivals.

        Args:
            weights: w, float [A]; `None`: 1.
            memory: β.
        """

        def moved(new: Array, old: Array) -> Array:
            move = jnp.where(buffers.expand(self.mask, new), new - jnp.asarray(memory, old.dtype) * old, 0)
            return move if weights is None else buffers.expand(weights.astype(new.dtype), new) * move

        def added(entry: Array, total: Tree) -> Tree:
            return jax.tree.map(jnp.add, total, buffers.read(moves, entry))

        moves = jax.tree.map(moved, self.new, self.old)
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), self.new)
        return jax.lax.fori_loop(0, self.mask.shape[0], added, nothing)


def enter(table: Rows, arrivals: Arrivals, new: Tree) -> Entered:
    """Replaces the rows of the arrived clients, one arrival after another in order of delivery.

    The second arrival of a client in one step replaces the row of the first.

    Args:
        table: one row per client.
        arrivals: arrivals of a server step.
        new: their rows, each leaf [A, ...].
    """
    before, last = in_turn(jnp.where(arrivals.mask, arrivals.client, -1))
    # XLA copies the whole table unless all rows are read before the first write, and the writes depend on the reads
    held = table.read_many(arrivals.client)
    return replaced(table, arrivals.client, arrivals.mask, before, last, held, new)


def in_turn(rows: Array) -> tuple[Array, Array]:
    """Returns the entry before each entry in the same row, int32 [A], and True for the last entry of each row.

    Args:
        rows: int32 [A], the row of each entry; -1 for no entry, to which nothing applies.
    """
    places = jnp.arange(rows.shape[0], dtype=jnp.int32)
    real = rows >= 0
    row = jnp.where(real, rows, jnp.max(rows, initial=0) + 1 + places)
    order = jnp.argsort(row, stable=True)  # entries of one row are neighbours, in order of delivery
    again = row[order[1:]] == row[order[:-1]]
    before = jnp.full_like(places, -1).at[order[1:]].set(jnp.where(again, order[:-1], -1).astype(jnp.int32))
    return before, real.at[order[:-1]].min(~again)


def replaced(table: Rows, rows: Array, mask: Array, before: Array, last: Array, held: Tree, new: Tree) -> Entered:
    """Writes new rows into a table; `before` and `last` are those of `in_turn`, `held` the rows before, [A, ...]."""
    old = jax.tree.map(lambda n, h: jnp.where(buffers.expand(before < 0, n), h, n[before]), new, held)
    written = jax.tree.map(lambda n, h: jnp.where(buffers.expand(mask, n), n, h), new, held)
    return Entered(table.write_many(rows, last, written), new, old, mask)
