"""FedFa, the mean of a sliding window of client models."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.clock.contract import Delivery
from jaxafl.device import buffers
from jaxafl.options import static
from jaxafl.server.contract import Array, Arrivals, Needs, Outcome, Server, Tree


class FedFaState(NamedTuple):
    """Window of the newest client models."""

    models: Tree  # the last M models, each leaf [M, ...]; the oldest is replaced first
    received: Array  # int32, number of models so far


class fedfa(Server):
    """FedFa: x ← (1/M) Σ of the last M client models x_i^K, at every arrival.

    Until M models have arrived, x stays at x_0 although the version advances. With M = 1 it is `fedasync` with α = 1.
    There is no discount of stale models. Keeps M models. Checked against two reimplementations and the paper's
    abstract; FedFa-Delta, the paper's variant with updates instead of models, is not implemented.

    Args:
        window: number of models M; at least 1.

    References:
        Xu et al., "FedFa: A fully asynchronous training paradigm for federated learning", IJCAI 2024.
    """

    window: int = static(default=5)

    requires = Delivery.CONTINUOUS
    accepts = Delivery.STALE
    references = ("xu2024",)
    single = True
    needs = Needs(base=True)

    def init(self, params: Tree, samples: Array) -> FedFaState:
        return FedFaState(buffers.allocate(params, self.window), jnp.int32(0))

    def update(self, params: Tree, state: FedFaState, arrivals: Arrivals) -> Outcome:
        model = jax.tree.map(lambda x, d: x[0] + d[0], arrivals.base, arrivals.delta)
        models = buffers.write(state.models, state.received % self.window, model)
        full = state.received + 1 >= self.window
        new = jax.tree.map(lambda rows, x: jnp.where(full, jnp.mean(rows, axis=0), x), models, params)
        share = jnp.where(full, 1 / self.window, 0.0)
        return Outcome(new, FedFaState(models, state.received + 1), weights=share[None], kept=1 - share)
