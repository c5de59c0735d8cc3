"""Trees of small arrays as one vector: a call of a program moves one array between host and device instead of many."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Packing:
    """Places of the leaves of a tree in a vector of words of 32 bits. Hashable, so it is a static argument.

    Attributes:
        structure: of the tree.
        leaves: shape and type of each leaf; a bool is stored as an int32.
    """

    structure: Any
    leaves: tuple[tuple[tuple[int, ...], Any], ...]

    @classmethod
    def of(cls, tree: Any) -> Packing:
        """Returns the packing of a tree of arrays or shapes."""
        leaves, structure = jax.tree.flatten(tree)
        return cls(structure, tuple((tuple(leaf.shape), _stored(np.dtype(leaf.dtype))) for leaf in leaves))

    def views(self, vectors: np.ndarray) -> Any:
        """Returns the tree whose leaves are views of vectors [..., n], each [..., *shape]; bools are int32."""
        found, begin = [], 0
        for shape, dtype in self.leaves:
            words = _words(shape, dtype)
            kind = np.dtype(np.int32) if dtype.kind == "b" else dtype
            found.append(vectors[..., begin : begin + words].view(kind).reshape((*vectors.shape[:-1], *shape)))
            begin += words
        return jax.tree.unflatten(self.structure, found)

    def view_of(self, choose: Callable[[Any], Any]) -> Callable[[np.ndarray], np.ndarray | None]:
        """Returns the function from a vector to one leaf, `None` for none; `choose` takes the leaf of a tree."""
        place = choose(jax.tree.unflatten(self.structure, range(len(self.leaves))))
        if place is None:
            return lambda vector: None
        shape, dtype = self.leaves[place]
        begin = sum(_words(*leaf) for leaf in self.leaves[:place])
        end = begin + _words(shape, dtype)
        return lambda vector: vector[begin:end].view(dtype).reshape(shape)

    @property
    def size(self) -> int:
        """Number of words."""
        return sum(_words(*leaf) for leaf in self.leaves)

    def pack(self, tree: Any) -> Array:
        """Returns the vector of a traced tree."""
        return jnp.concatenate([_as_words(leaf) for leaf in jax.tree.leaves(tree)] or [jnp.zeros(0, jnp.uint32)])

    def unpack(self, vector: Array) -> Any:
        """Returns the traced tree of a vector."""
        found, begin = [], 0
        for shape, dtype in self.leaves:
            words = _words(shape, dtype)
            part = vector[begin : begin + words]
            wide = part.reshape(*shape, 2) if dtype.itemsize == 8 else part.reshape(shape)
            if dtype.kind == "b":
                found.append(wide > 0)
            else:
                found.append(wide if dtype == np.uint32 else jax.lax.bitcast_convert_type(wide, dtype))
            begin += words
        return jax.tree.unflatten(self.structure, found)


def _words(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Returns the number of words of a leaf."""
    return math.prod(shape) * max(dtype.itemsize // 4, 1)


def _stored(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Returns the type of a leaf: one of 32 or 64 bits, or bool."""
    if dtype.kind == "b" or dtype.itemsize >= 4:
        return dtype
    return np.dtype(np.int32 if np.issubdtype(dtype, np.integer) else np.float32)


def _as_words(leaf: Array) -> Array:
    leaf = leaf.astype(jnp.int32) if leaf.dtype == jnp.bool_ else leaf.astype(_stored(leaf.dtype))
    return jax.lax.bitcast_convert_type(leaf, jnp.uint32).ravel()
