"""AUDG."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxafl.checks import check_number
from jaxafl.pytrees import pytree
from jaxafl.server.contract import Arrivals, Needs, Tree, Update, check_gradients, counts, weighted_sum

Array = jax.Array


@pytree
class AUDG:
    """See `audg`."""

    learning_rate: Any

    name: ClassVar[str] = "audg"
    clocks: ClassVar[frozenset[str]] = frozenset({"bernoulli"})
    references: ClassVar[tuple[str, ...]] = ("hao2025",)
    needs: ClassVar[Needs] = Needs()

    def check(self, clock: Any, client: Any, num_clients: int) -> None:
        check_number("audg", "learning_rate", self.learning_rate, least=0)
        check_gradients("audg", client, full_batch=True)

    def init(self, params: Tree, samples: Array) -> Array:
        return jnp.sum(samples)

    def update(self, params: Tree, state: Array, arrivals: Arrivals) -> Update:
        weights = counts(arrivals) * arrivals.samples / state
        step = weighted_sum(weights, arrivals.delta)
        return Update(jax.tree.map(lambda x, d: x + self.learning_rate * d, params, step), state, {})


def audg(learning_rate: Any = 0.1) -> AUDG:
    """Asynchronous updates with delayed gradients: x ← x - η Σ_{i arrived} λ_i ∇f_i(x_s) at every tick.

    λ_i = n_i / Σ_k n_k over ALL clients; the sum is not divided by the number of arrivals, and a tick without any
    leaves x alone. One full-batch gradient per run: `Client(optax.sgd, learning_rate=1.0, steps=1, batch_size=None)`.

    Args:
        learning_rate: η >= 0.

    References:
        "The impact analysis of delays in asynchronous federated learning with data heterogeneity for edge
        intelligence", Algorithm 2.
    """
    return AUDG(learning_rate)
