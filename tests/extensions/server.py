"""A server: the mean update, its norm clipped."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxafl.options import Number, number
from jaxafl.server import Arrivals, Outcome, Server, mean_delta, norm


class clipped_mean(Server):
    """x ← x + η D min(1, c / ‖D‖), D the mean of the updates.

    Args:
        learning_rate: η >= 0.
        radius: c > 0.
    """

    learning_rate: Number = number(default=1.0, least=0)
    radius: Number = number(default=1.0, above=0)

    def update(self, params, state, arrivals: Arrivals) -> Outcome:
        mean = mean_delta(arrivals)
        scale = jnp.minimum(1, self.radius / jnp.maximum(norm(mean), 1e-12))
        params = jax.tree.map(lambda x, d: x + self.learning_rate * scale * d, params, mean)
        return Outcome(params, state, {"scale": scale})
