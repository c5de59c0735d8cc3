"""Buffers of parameters: the ring of past global models, the update store, tables with a row per client.

A buffer is a pytree whose leaves have a leading row axis. One row is read or written by a dynamic slice at a
non-negative index, which XLA executes in place inside a loop. Several rows are moved by one gather or scatter.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array
Tree = Any
_NON_NEGATIVE = {"allow_negative_indices": False}  # otherwise each leaf costs three more operations


def allocate(row: Tree, rows: int) -> Tree:
    """Allocates `rows` rows of zeros, each shaped like `row`, a pytree of arrays or shapes."""
    return jax.tree.map(lambda leaf: jnp.zeros((rows, *leaf.shape), leaf.dtype), row)


def read(buffer: Tree, index: Array) -> Tree:
    """Returns one row of the buffer, each leaf [...]."""
    take = functools.partial(lax.dynamic_index_in_dim, index=index, keepdims=False, **_NON_NEGATIVE)
    return jax.tree.map(take, buffer)


def write(buffer: Tree, index: Array, row: Tree) -> Tree:
    """Returns the buffer with one row replaced, in place if the old buffer is not used again."""
    put = functools.partial(lax.dynamic_update_index_in_dim, index=index, axis=0, **_NON_NEGATIVE)
    return jax.tree.map(put, buffer, row)


def read_many(buffer: Tree, indices: Array) -> Tree:
    """Returns the rows at `indices` int32 [A], each leaf [A, ...]."""
    if indices.shape[0] == 1:
        return jax.tree.map(operator.itemgetter(None), read(buffer, indices[0]))
    return jax.tree.map(functools.partial(jnp.take, indices=indices, axis=0, mode="clip"), buffer)


def write_many(buffer: Tree, indices: Array, mask: Array | None, rows: Tree) -> Tree:
    """Returns the buffer with the rows at `indices` replaced if `mask` is True; other entries are dropped.

    Args:
        buffer: each leaf [R, ...].
        indices: int32 [A], the rows to replace; distinct if `mask` is True.
        mask: bool [A]; `None`: all True.
        rows: the new rows, each leaf [A, ...].
    """
    if indices.shape[0] == 1:
        row = jax.tree.map(operator.itemgetter(0), rows)
        if mask is not None:
            row = jax.tree.map(lambda new, old: jnp.where(mask[0], new, old), row, read(buffer, indices[0]))
        return write(buffer, indices[0], row)
    targets = indices
    if mask is not None:
        size = max(map(len, jax.tree.leaves(buffer)), default=0)
        beyond = size + jnp.arange(mask.shape[0], dtype=jnp.int32)
        targets = jnp.where(mask, indices, beyond)  # distinct: a deterministic GPU would sort repeated indices first
    return jax.tree.map(lambda leaf, new: leaf.at[targets].set(new, mode="drop", unique_indices=True), buffer, rows)


def num_bytes(tree: Tree) -> int:
    """Returns the size in bytes of a pytree of arrays or shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def expand(mask: Array, leaf: Array) -> Array:
    """Returns the mask with trailing axes of length 1, to broadcast against a leaf."""
    return mask.reshape(mask.shape + (1,) * (leaf.ndim - mask.ndim))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Table with one row of parameters per client.

    Attributes:
        tree: each leaf [N, ...].
        count: N.
    """

    tree: Tree
    count: int = dataclasses.field(metadata={"static": True})

    @classmethod
    def filled(cls, row: Tree, count: int) -> Rows:
        """Constructs a table in which every client has the row `row`."""
        return cls(jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), row), count)

    def read(self, client: Array) -> Tree:
        """Returns the row of a client."""
        return read(self.tree, client)

    def read_many(self, clients: Array) -> Tree:
        """Returns rows of several clients, [A, ...]."""
        return read_many(self.tree, clients)

    def write_many(self, clients: Array, mask: Array | None, rows: Tree) -> Rows:
        """Returns the table with the rows of clients [A] replaced if `mask` is True; see `write_many`."""
        return dataclasses.replace(self, tree=write_many(self.tree, clients, mask, rows))

    def replace(self, mask: Array, new: Tree) -> Rows:
        """Returns the table with rows replaced by `new` if `mask` is True.

        Args:
            mask: bool [N].
            new: each leaf [N, ...], or [1, ...] with one row for all clients.
        """
        return Rows(jax.tree.map(lambda old, rows: jnp.where(expand(mask, old), rows, old), self.tree, new), self.count)

    def weighted_sum(self, weights: Array) -> Tree:
        """Computes Σ_i weights[i] row_i."""
        return weighted_sum(weights, self.tree)


def weighted_sum(weights: Array, rows: Tree) -> Tree:
    """Computes Σ_a weights[a] rows[a], leaf by leaf."""
    return jax.tree.map(lambda leaf: jnp.tensordot(weights.astype(leaf.dtype), leaf, axes=1), rows)


def squares(rows: Tree) -> Array:
    """Computes ‖row_a‖² [A], over all leaves as one vector."""
    return jnp.asarray(sum(jnp.sum(jnp.square(leaf), axis=range(1, leaf.ndim)) for leaf in jax.tree.leaves(rows)))
