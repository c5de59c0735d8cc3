"""Table of the last contribution of every client, for servers that reuse it while the client is away."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.device import Rows, buffers
from jaxafl.options import Number
from jaxafl.server.contract import Arrivals, Tree

Array = jax.Array


class Entered(NamedTuple):
    """Arrivals entered into a table, in order of delivery."""

    table: Rows  # one row per client, after the arrivals
    new: Tree  # rows that entered, each leaf [A, ...]
    old: Tree  # rows that they replaced, each leaf [A, ...]
    mask: Array  # bool [A], arrivals of clients whose row is stored on this device

    def change(self, weights: Array | None = None, memory: Number = 1.0) -> Tree:
        """Computes Σ_i w_i (new_i - β old_i) over the arrivals, on all devices; all-reduces one row.

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
        return self.table.psum(jax.lax.fori_loop(0, self.mask.shape[0], added, nothing))


def enter(table: Rows, arrivals: Arrivals, new: Tree) -> Entered:
    """Replaces the rows of the arrived clients, one arrival after another in order of delivery.

    The second arrival of a client in one step replaces the row of the first.

    Args:
        table: one row per client.
        arrivals: arrivals of a server step.
        new: their rows, each leaf [A, ...].
    """
    local = arrivals.mask & table.has(arrivals.client)
    places = jnp.arange(local.shape[0], dtype=jnp.int32)
    client = jnp.where(local, arrivals.client, table.count + places)
    order = jnp.argsort(client, stable=True)  # arrivals of one client are neighbours, in order of delivery
    again = client[order[1:]] == client[order[:-1]]
    before = jnp.full_like(places, -1).at[order[1:]].set(jnp.where(again, order[:-1], -1).astype(jnp.int32))
    last = local.at[order[:-1]].min(~again)

    # XLA copies the whole table unless all rows are read before the first write, and the writes depend on the reads
    held = table.read_local(arrivals.client)
    old = jax.tree.map(lambda n, h: jnp.where(buffers.expand(before < 0, n), h, n[before]), new, held)
    rows = jax.tree.map(lambda n, h: jnp.where(buffers.expand(local, n), n, h), new, held)
    return Entered(table.write_many(arrivals.client, last, rows), new, old, local)
