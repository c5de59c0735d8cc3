"""AREA, asynchronous exact averaging."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxafl.clock.contract import Delivery
from jaxafl.device import Rows
from jaxafl.server.contract import Array, Arrivals, Needs, Outcome, Server, Tree, stepped
from jaxafl.server.last_updates import enter


class area(Server):
    """AREA: x ← x + (1/N) Σ_{i arrived} (x_i - y_i), then y_i ← x_i, with y_i = x_0 at first.

    y_i is the last model that client i sent, so x is the mean of all y. A fast client replaces its share instead of
    adding to it, so unequal speeds do not bias the model. The paper's server steps at exponential times:
    `free_running(concurrency=N, period=P, windows="poisson")`. Other arrivals are our extension. Keeps one model per
    client. Checked against the code of APPFL.

    References:
        Iakovidou and Kim, "Asynchronous federated stochastic optimization for heterogeneous objectives under arbitrary
        delays", 2024.
    """

    accepts = Delivery.STALE | Delivery.CONTINUOUS | Delivery.MULTIPLE
    references = ("iakovidou2024",)
    needs = Needs(base=True, client_rows=1)

    def init(self, params: Tree, samples: Array) -> Rows:
        return Rows.filled(params, samples.shape[0])

    def update(self, params: Tree, state: Rows, arrivals: Arrivals) -> Outcome:
        entered = enter(state, arrivals, jax.tree.map(jnp.add, arrivals.base, arrivals.delta))
        return Outcome(stepped(params, 1 / state.count, entered.change()), entered.table)
