"""CA²FL, cached update calibration."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.clock.contract import Delivery
from jaxafl.device import Rows
from jaxafl.options import number
from jaxafl.server.contract import Array, Arrivals, Needs, Outcome, Server, Tree, counts, stepped
from jaxafl.server.last_updates import enter
from jaxafl.server.scheduled import Rate


class CA2FLState(NamedTuple):
    """Cached updates and their mean."""

    cache: Rows  # h_i, the last update of client i, 0 before the first
    mean: Tree  # h̄ = (1/N) Σ h_i, shaped like the parameters


class ca2fl(Server):
    """CA²FL: cached update calibration, in which a cached update replaces that of each client that does not arrive.

    h_i = 0 at first. On arrival D ← D + Δ_i - h_i, then h_i ← Δ_i. At M arrivals v = h̄ + D/M with h̄ = (1/N) Σ h_i
    from BEFORE this buffer; x ← x + η v; then h̄ is refreshed and D = 0. Taken literally, a client that arrives twice
    in one buffer contributes only its last Δ. Keeps one row of parameters per client. Δ is measured against x_s.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.

    References:
        Wang et al., "Tackling the data heterogeneity in asynchronous federated learning with cached update
        calibration", ICLR 2024.
    """

    learning_rate: Rate = number(default=1.0, least=0)

    accepts = Delivery.STALE | Delivery.CONTINUOUS | Delivery.MULTIPLE
    buffer = 10
    references = ("wang2024ca2fl",)
    needs = Needs(client_rows=1)

    def init(self, params: Tree, samples: Array) -> CA2FLState:
        nothing = jax.tree.map(jnp.zeros_like, params)
        return CA2FLState(Rows.filled(nothing, samples.shape[0]), nothing)

    def update(self, params: Tree, state: CA2FLState, arrivals: Arrivals) -> Outcome:
        entered = enter(state.cache, arrivals, arrivals.delta)
        change = entered.change()
        size = jnp.maximum(jnp.sum(counts(arrivals)), 1)
        step = jax.tree.map(lambda h, d: h + d / size.astype(d.dtype), state.mean, change)
        mean = jax.tree.map(lambda h, d: h + d / state.cache.count, state.mean, change)
        return Outcome(stepped(params, self.learning_rate, step), CA2FLState(entered.table, mean), {})
