"""Picky SGD, which ignores gradients of models that are far from the newest one."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp

from jaxafl.clock.contract import Delivery
from jaxafl.options import Number, number
from jaxafl.server.contract import Arrivals, Needs, Outcome, Server, Tree, norm, stepped
from jaxafl.server.scheduled import Rate


class picky_sgd(Server):
    """Picky SGD: x ← x + η Δ_i at every arrival, if ‖x_t - x_s‖ ≤ D, with the start model x_s of the run.

    In the paper D = ε/(2β), for a target accuracy ε of the gradient's norm and smoothness β. D = ∞ is asynchronous SGD,
    as `asysg` with single arrivals.

    A rejected arrival makes a version with the same x, so that t counts arrivals, and counts in `count_rejected`. One
    gradient per run, Δ_i = -∇f_i, in the paper; several local steps are our extension. The formula is our reading of
    the paper.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.
        distance: D, in the units of the parameters; at least 0, or infinite. The default 1 is not of the paper.

    References:
        Cohen, Daniely, Drori, Koren, Schain, "Asynchronous stochastic optimization robust to arbitrary delays", NeurIPS
        2021, Algorithm 1.
    """

    learning_rate: Rate = number(default=0.1, least=0)
    distance: Number = number(default=1.0, least=0, infinite=True)

    accepts = Delivery.STALE | Delivery.CONTINUOUS
    references = ("cohen2021",)
    needs = Needs(base=True)
    single = True
    counters = ("rejected",)
    meanings: ClassVar[dict[str, str]] = {
        "rejected": "1 for a rejected arrival, else 0",
        "distance": "distance of the newest model and the one that the run started from",
    }

    def update(self, params: Tree, state: Tree, arrivals: Arrivals) -> Outcome:
        distance = norm(jax.tree.map(lambda x, start: x - start[0], params, arrivals.base))
        passes = distance <= jnp.asarray(self.distance, distance.dtype)
        after = stepped(params, self.learning_rate, jax.tree.map(lambda delta: delta[0], arrivals.delta))
        params = jax.tree.map(lambda new, old: jnp.where(passes, new, old), after, params)
        kept = (~passes).astype(arrivals.loss.dtype)
        info = {"rejected": (~passes).astype(jnp.int32), "distance": distance}
        return Outcome(params, state, info, weights=(1 - kept)[None], kept=kept)
