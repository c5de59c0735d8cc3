"""Rows of the clients: parameter-sized, one per client. Where several devices share a run, each holds those of its
share of the clients."""

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
"""The axis of a mesh of devices, by which what they share is split."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """A row of parameters per client, clients 0 .. N-1.

    Over D devices each holds n = ⌈N/D⌉ rows, device d those of the clients from d·n on; the last ones may be of no
    client. Only what a method says is moved between devices.

    Attributes:
        tree: each leaf [N, ...], or [n, ...] of this device.
        count: N.
        shares: D.
    """

    tree: Tree
    count: int = dataclasses.field(metadata={"static": True})
    shares: int = dataclasses.field(default=1, metadata={"static": True})

    @classmethod
    def filled(cls, row: Tree, count: int) -> Rows:
        """The same row for all clients."""
        return cls(jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), row), count)

    def shared(self, shares: int) -> Rows:
        """This device's share of them."""
        return dataclasses.replace(self, tree=local_shard(self.tree, shares), shares=shares) if shares > 1 else self

    def has(self, client: Array) -> Array:
        """bool [...], whether the rows of these clients are here."""
        place = self._place(client)
        return (place >= 0) & (place < self._size) if self.shares > 1 else jnp.ones(client.shape, bool)

    def read(self, client: Array) -> Tree:
        """The row of a client, who must be here."""
        return buffers.read(self.tree, self._place(client))

    def read_local(self, clients: Array) -> Tree:
        """Rows of several clients, [A, ...]; of those who are not here, any."""
        return buffers.read_many(self.tree, jnp.clip(self._place(clients), 0, self._size - 1))

    def read_many(self, clients: Array) -> Tree:
        """Rows of any clients, [A, ...], on all devices: moves A rows."""
        found = self.read_local(clients)
        if self.shares == 1:
            return found
        here = self.has(clients)
        return self.psum(jax.tree.map(lambda leaf: jnp.where(buffers.expand(here, leaf), leaf, 0), found))

    def write_many(self, clients: Array, mask: Array, rows: Tree) -> Rows:
        """The rows with those of several clients, [A, ...], replaced where `mask`; see `buffers.write_many`."""
        place, here = jnp.clip(self._place(clients), 0, self._size - 1), mask & self.has(clients)
        return dataclasses.replace(self, tree=buffers.write_many(self.tree, place, here, rows))

    def replace(self, mask: Array, new: Tree) -> Rows:
        """The rows replaced where `mask` by new ones, both of the clients here: [N] and [N, ...] on a single device."""
        chosen = jax.tree.map(lambda a, b: jnp.where(buffers.expand(mask, a), b, a), self.tree, new)
        return dataclasses.replace(self, tree=chosen)

    def weighted_sum(self, weights: Array) -> Tree:
        """Σ_i weights[i] row_i on all devices: moves one row."""
        return self.psum(weighted_sum(local_shard(weights, self.shares), self.tree))

    def psum(self, tree: Tree) -> Tree:
        """What the devices have found, added up, on all of them."""
        return jax.lax.psum(tree, AXIS) if self.shares > 1 else tree

    @property
    def _size(self) -> int:
        return -(-self.count // self.shares)

    def _place(self, client: Array) -> Array:
        return client - jax.lax.axis_index(AXIS) * self._size if self.shares > 1 else client


def local_shard(tree: Tree, shares: int) -> Tree:
    """This device's share [⌈N/D⌉, ...] of arrays [N, ...], filled up with zeros."""
    if shares == 1:
        return tree

    def own(leaf: Array) -> Array:
        size = -(-len(leaf) // shares)
        filled = jnp.pad(leaf, [(0, size * shares - len(leaf))] + [(0, 0)] * (leaf.ndim - 1))
        return jax.lax.dynamic_slice_in_dim(filled, jax.lax.axis_index(AXIS) * size, size)

    return jax.tree.map(own, tree)


@dataclasses.dataclass(frozen=True, eq=False)
class ShardedUpdates:
    """Rows [A, ...] of which each of the devices that share a run holds some: only sums over them are moved.

    Attributes:
        rows: a buffer of this device, each leaf [R, ...].
        places: int32 [m], where in it the rows are that it holds, which are the first `count`.
        entries: int32 [m], which of the A each is.
        count: int32, how many it holds.
        total: A.
    """

    rows: Tree
    places: Array
    entries: Array
    count: Array
    total: int

    def weighted_sum(self, weights: Array) -> Tree:
        """Σ_a weights[a] row_a on all devices: moves one row, as one array, as each has devices wait for each other."""
        own = jnp.asarray(weights)[self.entries]

        def add(index: Array, found: Tree) -> Tree:
            row = buffers.read(self.rows, self.places[index])
            return jax.tree.map(lambda some, leaf: some + own[index].astype(leaf.dtype) * leaf, found, row)

        if on_cpu():
            none = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), self.rows)
            found = jax.lax.fori_loop(0, self.count, add, none)
        else:
            found = weighted_sum(own, self._taken())
        flat, restored = ravel_pytree(found)
        return restored(jax.lax.psum(flat, AXIS))

    def squares(self) -> Array:
        """‖row_a‖² [A] of the rows that are here, 0 for others."""

        def put(index: Array, found: Array) -> Array:
            row = buffers.read(self.rows, self.places[index])
            return found.at[self.entries[index]].set(squares(jax.tree.map(lambda leaf: leaf[None], row))[0])

        found = jnp.zeros(self.total, jnp.result_type(*jax.tree.leaves(self.rows)))
        if on_cpu():
            return jax.lax.fori_loop(0, self.count, put, found)
        return found.at[self.entries].set(squares(self._taken()), unique_indices=True)

    def _taken(self) -> Tree:
        """Those rows, each leaf [m, ...], and zeros for the entries that are elsewhere."""
        here = jnp.arange(len(self.places)) < self.count
        rows = buffers.read_many(self.rows, self.places)
        return jax.tree.map(lambda leaf: jnp.where(buffers.expand(here, leaf), leaf, 0), rows)


def weighted_sum(weights: Array, rows: Tree) -> Tree:
    """Σ_a weights[a] rows[a], leaf by leaf."""
    if isinstance(rows, ShardedUpdates):
        return rows.weighted_sum(weights)
    return jax.tree.map(lambda leaf: jnp.tensordot(weights.astype(leaf.dtype), leaf, axes=1), rows)


def squares(rows: Tree) -> Array:
    """‖row_a‖² [A], over all leaves as one vector."""
    return jnp.asarray(sum(jnp.sum(jnp.square(leaf), axis=range(1, leaf.ndim)) for leaf in jax.tree.leaves(rows)))
