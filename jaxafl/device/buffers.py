"""Buffers of parameters: the ring of past global models, the update store, per-client rows.

A buffer is a pytree whose leaves have a leading row axis. One row is read or written by a dynamic slice at a
non-negative index, which XLA executes in place inside a loop. Several rows are moved by one gather or scatter on an
accelerator, and by a loop of slices on a CPU, whose gathers are slow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxafl.device.backend import on_cpu

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
    count = indices.shape[0]
    if count == 1:
        return jax.tree.map(lambda leaf: leaf[None], read(buffer, indices[0]))
    if not on_cpu():
        return jax.tree.map(lambda leaf: jnp.take(leaf, indices, axis=0, mode="clip"), buffer)
    rows = jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape[1:]), leaf.dtype), buffer)
    return jax.lax.fori_loop(0, count, lambda i, out: write(out, i, read(buffer, indices[i])), rows)


def write_many(buffer: Tree, indices: Array, mask: Array, rows: Tree) -> Tree:
    """Returns the buffer with the rows at `indices` replaced if `mask` is True; other entries are dropped.

    Args:
        buffer: each leaf [R, ...].
        indices: int32 [A], the rows to replace; distinct if `mask` is True.
        mask: bool [A].
        rows: the new rows, each leaf [A, ...].
    """
    if on_cpu():

        def one(entry: Array, buffer: Tree) -> Tree:
            new, old = read(rows, entry), read(buffer, indices[entry])
            kept = jax.tree.map(lambda a, b: jnp.where(mask[entry], a, b), new, old)
            return write(buffer, indices[entry], kept)

        return jax.lax.fori_loop(0, mask.shape[0], one, buffer)
    total = jax.tree.leaves(buffer)[0].shape[0]
    beyond = total + jnp.arange(mask.shape[0], dtype=jnp.int32)
    targets = jnp.where(mask, indices, beyond)  # distinct: a deterministic GPU would sort repeated indices first
    return jax.tree.map(lambda leaf, new: leaf.at[targets].set(new, mode="drop", unique_indices=True), buffer, rows)


def packed(row: Tree, rows: int) -> dict[int, Array]:
    """Allocates `rows` rows of zeros like `row`; the bits of all leaves of one item size share an array [rows, n]."""
    sizes: dict[int, int] = {}
    for leaf in jax.tree.leaves(row):
        sizes[leaf.dtype.itemsize] = sizes.get(leaf.dtype.itemsize, 0) + leaf.size
    return {width: jnp.zeros((rows, size), f"uint{8 * width}") for width, size in sizes.items()}


def pack(packed: dict[int, Array], index: Array, row: Tree) -> dict[int, Array]:
    """Returns the arrays of `packed` with one row replaced."""
    packed, starts = dict(packed), dict.fromkeys(packed, 0)
    for leaf in jax.tree.leaves(row):
        width = leaf.dtype.itemsize
        bits = leaf.reshape(1, -1).view(packed[width].dtype)
        place = (index, index.dtype.type(starts[width]))
        packed[width] = lax.dynamic_update_slice(packed[width], bits, place, **_NON_NEGATIVE)
        starts[width] += leaf.size
    return packed


def unpack(packed: dict[int, Array], index: Array, row: Tree) -> Tree:
    """Returns one row of the arrays of `packed`; `row` gives the shapes of its leaves."""
    starts = dict.fromkeys(packed, 0)

    def one(leaf: Any) -> Array:
        width = leaf.dtype.itemsize
        bits = lax.dynamic_slice(
            packed[width], (index, index.dtype.type(starts[width])), (1, leaf.size), **_NON_NEGATIVE
        )
        starts[width] += leaf.size
        return bits.view(leaf.dtype).reshape(leaf.shape)

    return jax.tree.map(one, row)


def num_bytes(tree: Tree) -> int:
    """Returns the size in bytes of a pytree of arrays or shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def write_made(
    targets: tuple[Tree, ...], indices: tuple[Array, ...], count: Array, make: Callable[[Array], tuple[Tree, ...]]
) -> tuple[Tree, ...]:
    """Returns the buffers with the rows `indices[n][place]` replaced by `make(place)[n]` for the first `count` places.

    Args:
        targets: buffers, each leaf [R_n, ...].
        indices: int32 [A] of each, the rows to replace.
        count: int32, number of places.
        make: traced function from a place to a row of each buffer.
    """
    if on_cpu():

        def put(place: Array, found: tuple[Tree, ...]) -> tuple[Tree, ...]:
            parts = zip(found, indices, make(place), strict=True)
            return tuple(write(buffer, rows[place], row) for buffer, rows, row in parts)

        return jax.lax.fori_loop(0, count, put, targets)
    places = jnp.arange(indices[0].shape[0], dtype=jnp.int32)
    total = jax.tree.leaves(targets[0])[0].shape[0]
    if len(targets) > 1 or total > len(places):
        parts = zip(targets, indices, jax.vmap(make)(places), strict=True)
        return tuple(write_many(buffer, rows, places < count, made) for buffer, rows, made in parts)
    # Most rows may change, so each row selects. Leaves of one shape share a kernel; a scatter would take one per leaf.
    place = write_many(jnp.full(total, -1, jnp.int32), indices[0], places < count, places)
    made = jax.vmap(make)(jnp.maximum(place, 0))
    return jax.tree.map(lambda new, old: jnp.where(expand(place >= 0, new), new, old), made, targets)


def changed_if(where: Array, change: Callable[[Tree], Tree], buffer: Tree) -> Tree:
    """Returns `change(buffer)` if `where` is True, else the buffer, in place; `jax.lax.cond` would copy the buffer."""
    return jax.lax.fori_loop(0, where.astype(jnp.int32), lambda _, buffer: change(buffer), buffer)


def expand(mask: Array, leaf: Array) -> Array:
    """Returns the mask with trailing axes of length 1, to broadcast against a leaf."""
    return mask.reshape(mask.shape + (1,) * (leaf.ndim - mask.ndim))
