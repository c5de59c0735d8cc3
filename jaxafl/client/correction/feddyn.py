"""FedDyn: dynamic regularisation of clients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxafl.client.correction.contract import Correction, LocalRun, Tree, zeros
from jaxafl.options import Number, number


class feddyn(Correction):
    """FedDyn: local steps with g ← g - h_i + α (x - x_s), so that clients and server agree on stationary points.

    When a run ends, h_i ← h_i - α (x - x_s). At a server step, h ← h - α/N Σ Δ_i over the arrivals, and then the
    server's x_{t+1} becomes x_{t+1} - h/α. All begin at 0. The paper's server is `fedavg(weights="uniform")`. Nothing
    but models and updates is sent.

    The paper has synchronous rounds. On asynchronous clocks, with Δ_i relative to x_s, it is our extension. With
    `Client(upload=...)`, h sums the received updates, before the server's weights, discount and aggregate.

    Args:
        alpha: α > 0.

    Raises:
        ValueError: the server has an `aggregate` other than the mean, or rejects updates (`kardam`, `zeno`). h would
            undo both.

    References:
        Acar, Zhao, Matas, Mattina, Whatmough, Saligrama (2021), "Federated learning based on dynamic regularization",
        ICLR, Algorithm 1.
    """

    references = ("acar2021",)
    downloads = False
    sums_updates = True

    alpha: Number = number(above=0)

    init = zeros

    def gradient(self, gradient: Tree, params: Tree, row: Tree, shared: Tree, run: LocalRun) -> Tree:
        return jax.tree.map(lambda g, h, x, s: g - h + self.alpha * (x - s), gradient, row, params, run.start)

    def finish(self, moved: Tree, row: Tree, shared: Tree, run: LocalRun) -> tuple[Tree, Tree]:
        return jax.tree.map(lambda h, delta: h - self.alpha * delta, row, moved), None

    def serve(self, shared: Tree, params: Tree, messages: Tree, arrivals: Any, num_clients: int) -> tuple[Tree, Tree]:
        share = self.alpha / num_clients
        shared = jax.tree.map(lambda h, delta: h - share * jnp.sum(delta, axis=0), shared, arrivals.delta)
        return shared, jax.tree.map(lambda x, h: x - h / self.alpha, params, shared)
