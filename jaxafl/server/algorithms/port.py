"""PORT, weights by similarity and staleness."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from jaxafl.clock.contract import STARTS, Delivery
from jaxafl.device import weighted_sum
from jaxafl.device.buffers import squares
from jaxafl.options import Number, number
from jaxafl.server.contract import Array, Arrivals, Outcome, Server, Tree, counts, norm, stepped


class port(Server):
    """PORT: x ← x + Σ_i p_i Δ_i over a buffer, p_i ∝ n_i (w_sim (cos_i + 1)/2 + w_st B/(τ_i + B)), Σ p_i = 1.

    cos_i is the cosine of the angle between Δ_i and the last server step x_t - x_{t-1}; it is 1 if τ_i <= 1, and 0 if
    one of them is zero. The paper's clock restarts clients at server steps (`free_running(dispatch="step")`) with half
    of those in flight as the buffer. Its requests to clients that are more than B versions late are a matter of the
    clock, and not implemented. Checked against the code of the authors' group (Plato), which loads the model of round
    minus 2; we read this as x_{t-1}.

    Args:
        similarity_weight: weight w_sim of the similarity; at least 0.
        staleness_weight: weight w_st of the staleness; above 0.
        staleness_bound: staleness B at which the second term is halved; above 0.

    References:
        Su and Li, "How asynchronous can federated learning be?", IWQoS 2022.
    """

    similarity_weight: Number = number(default=1.0, least=0)
    staleness_weight: Number = number(default=3.0, above=0)
    staleness_bound: Number = number(default=10.0, above=0)

    accepts = STARTS | Delivery.MULTIPLE
    buffer = 15
    references = ("su2022",)
    meanings = {"cosine": "similarity of an update and the server's last step, in [-1, 1]"}

    def init(self, params: Tree, samples: Array) -> Tree:
        return optax.tree.zeros_like(params)  # the last server step

    def update(self, params: Tree, state: Tree, arrivals: Arrivals) -> Outcome:
        products = jax.tree.map(lambda d, s: jnp.sum(d * s, axis=range(1, d.ndim)), arrivals.delta, state)
        lengths = jnp.sqrt(squares(arrivals.delta)) * norm(state)
        cosine = jnp.asarray(sum(jax.tree.leaves(products))) / jnp.where(lengths > 0, lengths, 1)
        tau = arrivals.staleness.astype(cosine.dtype)
        cosine = jnp.where(tau > 1, cosine, 1)
        late = self.staleness_bound / (tau + self.staleness_bound)
        value = self.similarity_weight * (cosine + 1) / 2 + self.staleness_weight * late
        weights = counts(arrivals) * arrivals.samples * value
        weights = weights / jnp.maximum(jnp.sum(weights), jnp.finfo(weights.dtype).tiny)
        step = weighted_sum(weights, arrivals.delta)
        return Outcome(stepped(params, 1.0, step), step, {"cosine": cosine}, weights=weights)
