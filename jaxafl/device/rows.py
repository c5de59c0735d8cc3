"""Tables with one parameter-sized row per client."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxafl.device import buffers

Array = jax.Array
Tree = Any


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
        return buffers.read(self.tree, client)

    def read_many(self, clients: Array) -> Tree:
        """Returns rows of several clients, [A, ...]."""
        return buffers.read_many(self.tree, clients)

    def write_many(self, clients: Array, mask: Array | None, rows: Tree) -> Rows:
        """Returns the table with the rows of clients [A] replaced if `mask` is True; see `buffers.write_many`."""
        return dataclasses.replace(self, tree=buffers.write_many(self.tree, clients, mask, rows))

    def replace(self, mask: Array, new: Tree) -> Rows:
        """Returns the table with rows replaced by `new` if `mask` is True.

        Args:
            mask: bool [N].
            new: each leaf [N, ...], or [1, ...] with one row for all clients.
        """
        chosen = jax.tree.map(lambda old, rows: jnp.where(buffers.expand(mask, old), rows, old), self.tree, new)
        return dataclasses.replace(self, tree=chosen)

    def weighted_sum(self, weights: Array) -> Tree:
        """Computes Σ_i weights[i] row_i."""
        return weighted_sum(weights, self.tree)


def weighted_sum(weights: Array, rows: Tree) -> Tree:
    """Computes Σ_a weights[a] rows[a], leaf by leaf."""
    return jax.tree.map(lambda leaf: jnp.tensordot(weights.astype(leaf.dtype), leaf, axes=1), rows)


def squares(rows: Tree) -> Array:
    """Computes ‖row_a‖² [A], over all leaves as one vector."""
    return jnp.asarray(sum(jnp.sum(jnp.square(leaf), axis=range(1, leaf.ndim)) for leaf in jax.tree.leaves(rows)))
