"""Buffers of parameters: the ring of past global models, the update store, per-client rows.

A buffer is a pytree whose leaves have a leading row axis. One row is read or written by a dynamic slice at a
non-negative index, which XLA executes in place inside a loop. Several rows are moved by one gather or scatter.
"""

from __future__ import annotations

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


def shared_size(count: int) -> int:
    """Returns a size >= `count` that similar counts have too, so that they share programs: at most 512 rows larger."""
    unit = min(1 << max(0, (count - 1).bit_length() - 3), 512)
    return -(-count // unit) * unit


def read(buffer: Tree, index: Array) -> Tree:
    """Returns one row of the buffer, each leaf [...]."""
    return jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, index, keepdims=False, **_NON_NEGATIVE), buffer)


def write(buffer: Tree, index: Array, row: Tree) -> Tree:
    """Returns the buffer with one row replaced, in place if the old buffer is not used again."""
    return jax.tree.map(
        lambda leaf, new: lax.dynamic_update_index_in_dim(leaf, new, index, 0, **_NON_NEGATIVE), buffer, row
    )


def read_many(buffer: Tree, indices: Array) -> Tree:
    """Returns the rows at `indices` int32 [A], each leaf [A, ...]."""
    if indices.shape[0] == 1:
        return jax.tree.map(lambda leaf: leaf[None], read(buffer, indices[0]))
    return jax.tree.map(lambda leaf: jnp.take(leaf, indices, axis=0, mode="clip"), buffer)


def write_many(buffer: Tree, indices: Array, mask: Array | None, rows: Tree) -> Tree:
    """Returns the buffer with the rows at `indices` replaced if `mask` is True; other entries are dropped.

    Args:
        buffer: each leaf [R, ...].
        indices: int32 [A], the rows to replace; distinct if `mask` is True.
        mask: bool [A]; `None`: all True.
        rows: the new rows, each leaf [A, ...].
    """
    if indices.shape[0] == 1:
        row = jax.tree.map(lambda leaf: leaf[0], rows)
        if mask is not None:
            row = jax.tree.map(lambda new, old: jnp.where(mask[0], new, old), row, read(buffer, indices[0]))
        return write(buffer, indices[0], row)
    targets = indices
    if mask is not None:
        beyond = jax.tree.leaves(buffer)[0].shape[0] + jnp.arange(mask.shape[0], dtype=jnp.int32)
        targets = jnp.where(mask, indices, beyond)  # distinct: a deterministic GPU would sort repeated indices first
    return jax.tree.map(lambda leaf, new: leaf.at[targets].set(new, mode="drop", unique_indices=True), buffer, rows)


def num_bytes(tree: Tree) -> int:
    """Returns the size in bytes of a pytree of arrays or shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def expand(mask: Array, leaf: Array) -> Array:
    """Returns the mask with trailing axes of length 1, to broadcast against a leaf."""
    return mask.reshape(mask.shape + (1,) * (leaf.ndim - mask.ndim))
