"""Mean of clipped updates with noise, for central differential privacy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxafl.client import Client
from jaxafl.clock.contract import ByOptions, Clock
from jaxafl.device import weighted_sum
from jaxafl.device.buffers import squares
from jaxafl.device.keys import drawing_key
from jaxafl.options import Number, UserError, number
from jaxafl.server.aggregate.contract import Aggregate, Combined
from jaxafl.server.contract import Array, Arrivals, Tree, counts

_NOISE = 0xFFFFFFF1
_COUNT = 0xFFFFFFF2


class private_mean(Aggregate):
    """Mean of clipped updates with Gaussian noise: D = (1/M) (Σ_i s_i Δ_i min(1, C / ‖Δ_i‖) + N(0, (zC)² I)).

    M is the number of arrivals, with multiplicity, and s_i ≤ 1 the server's discount of stale updates. One finite
    update changes the sum by at most C, so that noise of z times this sensitivity is added. Refused are weights of
    samples or local steps, weights above 1/M, and servers that combine updates before the aggregate gets them.

    With `quantile` q, C follows that quantile of the norms: after every step C ← C exp(-η (b̃ - q)), where b̃ = (number
    of updates with ‖Δ_i‖ ≤ C + N(0, σ_b²)) / M. The noise of the sum then has z' = (z⁻² - (2σ_b)⁻²)^(-1/2) in the place
    of z, so that both together cost as much privacy as z.

    Args:
        max_norm: C > 0; with `quantile` the C of the first step.
        noise_multiplier: z ≥ 0; 0 adds no noise.
        quantile: q in [0, 1]; `None` keeps C.
        adaptation_rate: η ≥ 0.
        count_noise: σ_b > z / 2, needed with `quantile`.

    References:
        McMahan, Ramage, Talwar, Zhang (2018), "Learning differentially private recurrent language models", ICLR,
        Algorithm 1; Andrew, Thakkar, McMahan, Ramaswamy (2021), "Differentially private learning with adaptive
        clipping", NeurIPS, Algorithm 1.
    """

    max_norm: Number = number(above=0)
    noise_multiplier: Number = number(default=0.0, least=0)
    quantile: Number | None = number(default=None, least=0, most=1, kw_only=True)
    adaptation_rate: Number = number(default=0.2, least=0, kw_only=True)
    count_noise: Number | None = number(default=None, above=0, kw_only=True)

    linear = True
    noise = ByOptions(0.0, lambda one: one.noise_multiplier)
    references = ("mcmahan2018", "andrew2021")
    meanings = {"clip_norm": "largest norm C of an update in this step"}

    def check(self, server: Any, clock: Clock, client: Client, num_clients: int) -> None:
        if (self.quantile is None) != (self.count_noise is None):
            raise UserError(
                f"private_mean: quantile={self.quantile} and count_noise={self.count_noise}; give both or neither, "
                "e.g. quantile=0.5, count_noise=M / 20"
            )
        if self.count_noise is not None and np.any(2 * self.count_noise <= self.noise_multiplier):
            more = f"more than half of noise_multiplier={self.noise_multiplier}"
            raise UserError(f"private_mean: count_noise={self.count_noise} costs much privacy; give {more}")
        if not server.bounded:
            raise UserError(
                f"private_mean: {server.name} may combine updates before they are clipped, or give one of M updates a "
                "weight above 1 / M or that depends on data, so that its effect is not bounded; expected equal "
                "weights, at most discounted by staleness. Give e.g. fedbuff(weights='uniform', reduce='mean'), or "
                "bounded = True in the class if it is"
            )

    def init(self, params: Tree) -> Any:
        return () if self.quantile is None else jnp.asarray(self.max_norm, jnp.result_type(float))

    def update(self, deltas: Tree, weights: Array, state: Any, arrivals: Arrivals) -> Combined:
        norms = jnp.sqrt(squares(deltas))
        norm = jnp.asarray(self.max_norm if self.quantile is None else state, norms.dtype)
        clipped = jnp.where(norms > norm, norm / jnp.where(norms > 0, norms, 1), 1)
        times = counts(arrivals)
        total = jnp.maximum(jnp.sum(times), 1)
        direction, restored = ravel_pytree(weighted_sum(weights * clipped, deltas))
        multiplier = jnp.asarray(self.noise_multiplier, norm.dtype)
        if self.count_noise is not None:
            multiplier /= jnp.sqrt(1 - jnp.square(multiplier / (2 * jnp.asarray(self.count_noise, norm.dtype))))
        keys = [drawing_key(jax.random.fold_in(arrivals.key, stream)) for stream in (_NOISE, _COUNT)]
        noise = jax.random.normal(keys[0], direction.shape, direction.dtype)
        direction = restored(direction + (multiplier * norm / total).astype(direction.dtype) * noise)
        if self.quantile is None or self.count_noise is None:
            return direction, state, {}
        noise = jax.random.normal(keys[1], (), norm.dtype)
        below = jnp.sum(jnp.where(norms <= norm, times, 0)) + self.count_noise * noise
        after = norm * jnp.exp(-self.adaptation_rate * (below / total - self.quantile))
        return direction, after.astype(state.dtype), {"clip_norm": norm}
