"""PSURDG."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.checks import check_number
from jaxafl.pytrees import pytree
from jaxafl.server.contract import Arrivals, Needs, Tree, Update, check_gradients, replace_rows, rows_of, weighted_sum

Array = jax.Array


class PSURDGState(NamedTuple):
    """The last gradients."""

    received: Tree  # each leaf [N, ...]: -ĝ_i, 0 before the first
    weights: Array  # [N]: λ_i


@pytree
class PSURDG:
    """See `psurdg`."""

    learning_rate: Any

    name: ClassVar[str] = "psurdg"
    clocks: ClassVar[frozenset[str]] = frozenset({"bernoulli"})
    references: ClassVar[tuple[str, ...]] = ("hao2025",)
    needs: ClassVar[Needs] = Needs(client_rows=1, acts_when_empty=True)

    def check(self, clock: Any, client: Any, num_clients: int) -> None:
        check_number("psurdg", "learning_rate", self.learning_rate, least=0)
        check_gradients("psurdg", client, full_batch=True)

    def init(self, params: Tree, samples: Array) -> PSURDGState:
        return PSURDGState(rows_of(params, samples.shape[0]), samples / jnp.sum(samples))

    def update(self, params: Tree, state: PSURDGState, arrivals: Arrivals) -> Update:
        received = replace_rows(state.received, arrivals.mask, arrivals.delta)
        step = weighted_sum(state.weights, received)
        params = jax.tree.map(lambda x, d: x + self.learning_rate * d, params, step)
        return Update(params, state._replace(received=received), {})


def psurdg(learning_rate: Any = 0.1) -> PSURDG:
    """Pseudo-synchronous updates by reusing delayed gradients: x ← x - η Σ_{i=1..N} λ_i ĝ_i at every tick.

    ĝ_i is the last gradient received from client i, 0 before the first; λ_i = n_i / Σ_k n_k. One full-batch gradient
    per run: `Client(optax.sgd, learning_rate=1.0, steps=1, batch_size=None)`. Keeps one row of parameters per client.

    Args:
        learning_rate: η >= 0.

    References:
        "The impact analysis of delays in asynchronous federated learning with data heterogeneity for edge
        intelligence", Algorithm 3.
    """
    return PSURDG(learning_rate)
