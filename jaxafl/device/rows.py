"""Tables with one parameter-sized row per client, and updates that are sharded over devices."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxafl.device import buffers
from jaxafl.device.backend import on_cpu

Array = jax.Array
Tree = Any
AXIS = "device"
"""The mesh axis over which one run is sharded."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Table with one row of parameters per client, clients 0 .. N-1, sharded over D devices.

    Each device holds n = ⌈N/D⌉ rows; those of device d start at client d·n. The last rows may be padding. A method
    moves data between devices only if its docstring says so.

    Attributes:
        tree: each leaf [N, ...], or [n, ...] on one of several devices.
        count: N.
        shares: D.
    """

    tree: Tree
    count: int = dataclasses.field(metadata={"static": True})
    shares: int = dataclasses.field(default=1, metadata={"static": True})

    @classmethod
    def filled(cls, row: Tree, count: int) -> Rows:
        """Constructs a table in which every client has the row `row`."""
        return cls(jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), row), count)

    def shared(self, shares: int) -> Rows:
        """Returns this device's shard of the table."""
        return dataclasses.replace(self, tree=local_shard(self.tree, shares), shares=shares) if shares > 1 else self

    def has(self, client: Array) -> Array:
        """Returns True, bool [...], for each client whose row is stored on this device."""
        place = self.place(client)
        return (place >= 0) & (place < self._size) if self.shares > 1 else jnp.ones(client.shape, bool)

    def read(self, client: Array) -> Tree:
        """Returns the row of a client; it must be stored on this device."""
        return buffers.read(self.tree, self.place(client))

    def read_local(self, clients: Array) -> Tree:
        """Returns rows of several clients, [A, ...]; arbitrary rows for clients stored on other devices."""
        return buffers.read_many(self.tree, jnp.clip(self.place(clients), 0, self._size - 1))

    def read_many(self, clients: Array) -> Tree:
        """Returns rows of any clients, [A, ...], on all devices; all-reduces A rows."""
        found = self.read_local(clients)
        if self.shares == 1:
            return found
        local = self.has(clients)
        return self.psum(jax.tree.map(lambda leaf: jnp.where(buffers.expand(local, leaf), leaf, 0), found))

    def write_many(self, clients: Array, mask: Array, rows: Tree) -> Rows:
        """Returns the table with the rows of clients [A] replaced if `mask` is True; see `buffers.write_many`."""
        place = jnp.clip(self.place(clients), 0, self._size - 1)
        local = mask & self.has(clients)
        return dataclasses.replace(self, tree=buffers.write_many(self.tree, place, local, rows))

    def replace(self, mask: Array, new: Tree) -> Rows:
        """Returns the table with rows replaced by `new` if `mask` is True.

        Args:
            mask: bool [N].
            new: each leaf [N, ...], or [1, ...] with one row for all clients.
        """

        def chosen(old: Array, rows: Array) -> Array:
            rows = local_shard(rows, self.shares) if len(rows) == self.count else rows
            return jnp.where(buffers.expand(local, old), rows, old)

        local = local_shard(mask, self.shares)
        return dataclasses.replace(self, tree=jax.tree.map(chosen, self.tree, new))

    def weighted_sum(self, weights: Array) -> Tree:
        """Computes Σ_i weights[i] row_i on all devices; all-reduces one row."""
        return self.psum(weighted_sum(local_shard(weights, self.shares), self.tree))

    def psum(self, tree: Tree) -> Tree:
        """Computes the sum over devices of the values of each device, on all of them."""
        return jax.lax.psum(tree, AXIS) if self.shares > 1 else tree

    @property
    def _size(self) -> int:
        return -(-self.count // self.shares)

    def place(self, client: Array) -> Array:
        """Returns the index in this device's shard, outside of it for clients of other devices."""
        return client - jax.lax.axis_index(AXIS) * self._size if self.shares > 1 else client


def local_shard(tree: Tree, shares: int) -> Tree:
    """Returns this device's shard [⌈N/D⌉, ...] of arrays [N, ...], padded with zeros."""
    if shares == 1:
        return tree

    def shard(leaf: Array) -> Array:
        size = -(-len(leaf) // shares)
        filled = jnp.pad(leaf, [(0, size * shares - len(leaf))] + [(0, 0)] * (leaf.ndim - 1))
        return jax.lax.dynamic_slice_in_dim(filled, jax.lax.axis_index(AXIS) * size, size)

    return jax.tree.map(shard, tree)


@dataclasses.dataclass(frozen=True, eq=False)
class ShardedUpdates:
    """Updates [A, ...] sharded over devices; only reductions over them move data.

    Attributes:
        rows: a buffer of this device, each leaf [R, ...].
        places: int32 [m], rows of the buffer with updates of this device; only the first `count` are valid.
        entries: int32 [m], index in 0 .. A-1 of each of these updates.
        count: int32, number of updates on this device.
        total: A.
    """

    rows: Tree
    places: Array
    entries: Array
    count: Array
    total: int

    def weighted_sum(self, weights: Array) -> Tree:
        """Computes Σ_a weights[a] row_a on all devices by one all-reduce of one flat array."""
        local = jnp.asarray(weights)[self.entries]

        def add(index: Array, found: Tree) -> Tree:
            row = buffers.read(self.rows, self.places[index])
            return jax.tree.map(lambda some, leaf: some + local[index].astype(leaf.dtype) * leaf, found, row)

        if on_cpu():
            none = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), self.rows)
            found = jax.lax.fori_loop(0, self.count, add, none)
        else:
            found = weighted_sum(local, self._padded())
        flat, restored = ravel_pytree(found)
        return restored(jax.lax.psum(flat, AXIS))

    def squares(self) -> Array:
        """Computes ‖row_a‖² [A] for the updates of this device, and 0 for others."""

        def put(index: Array, found: Array) -> Array:
            row = buffers.read(self.rows, self.places[index])
            return found.at[self.entries[index]].set(squares(jax.tree.map(lambda leaf: leaf[None], row))[0])

        found = jnp.zeros(self.total, jnp.result_type(*jax.tree.leaves(self.rows)))
        if on_cpu():
            return jax.lax.fori_loop(0, self.count, put, found)
        return found.at[self.entries].set(squares(self._padded()), unique_indices=True)

    def _padded(self) -> Tree:
        """Returns the updates of this device, each leaf [m, ...], padded with zeros."""
        local = jnp.arange(len(self.places)) < self.count
        rows = buffers.read_many(self.rows, self.places)
        return jax.tree.map(lambda leaf: jnp.where(buffers.expand(local, leaf), leaf, 0), rows)


def weighted_sum(weights: Array, rows: Tree) -> Tree:
    """Computes Σ_a weights[a] rows[a], leaf by leaf."""
    if isinstance(rows, ShardedUpdates):
        return rows.weighted_sum(weights)
    return jax.tree.map(lambda leaf: jnp.tensordot(weights.astype(leaf.dtype), leaf, axes=1), rows)


def squares(rows: Tree) -> Array:
    """Computes ‖row_a‖² [A], over all leaves as one vector; all-reduces those of updates sharded over devices."""
    if isinstance(rows, ShardedUpdates):
        return jax.lax.psum(rows.squares(), AXIS)
    return jnp.asarray(sum(jnp.sum(jnp.square(leaf), axis=range(1, leaf.ndim)) for leaf in jax.tree.leaves(rows)))
