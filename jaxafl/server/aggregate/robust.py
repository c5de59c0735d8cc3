"""Robust aggregates: centres of updates that some forged updates cannot move far."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from jaxafl.client import Client
from jaxafl.clock.contract import ByOptions, Clock
from jaxafl.options import Number, UserError, number, static
from jaxafl.server.aggregate.contract import Center, mean_of_ranks, overlap
from jaxafl.server.contract import Array, Tree

Found = tuple[Array, Any, dict[str, Array]]
_ROUNDING = 1e-4  # else a share of 0.29 drops 28 of 100


class median(Center):
    """Median of every coordinate; the mean of the two middle values if the number M of updates is even.

    References:
        Yin, Chen, Ramchandran, Bartlett (2018), "Byzantine-robust distributed learning: Towards optimal statistical
        rates", ICML, Definition 1.
    """

    references = ("yin2018",)

    def center(self, points: Array, times: Array, weights: Array, state: Any) -> Found:
        total = jnp.sum(times)
        middle = jnp.floor((total - 1) / 2), jnp.floor(total / 2) + 1
        return mean_of_ranks(points, times[:, None], *middle), state, {}


class trimmed_mean(Center):
    """Mean of every coordinate without the b largest and the b smallest of the M updates.

    A step with M ≤ 2b drops as many as leave one or two.

    Args:
        share: b / M in [0, 0.5); b = ⌊share · M⌋, and M must be so large that a share above 0 drops something. Give
            either `share` or `count`.
        count: b, with 2b < M.

    References:
        Yin, Chen, Ramchandran, Bartlett (2018), "Byzantine-robust distributed learning: Towards optimal statistical
        rates", ICML, Definition 2.
    """

    share: Number | None = number(default=None, least=0, below=0.5, kw_only=True)
    count: int | None = static(default=None, least=0, kw_only=True)

    references = ("yin2018",)

    least_arrivals = ByOptions(
        2,  # 2b + 1, at least two, and 1 / share
        lambda one: max(2, 2 * (one.count or 0) + 1, math.ceil((1 - _ROUNDING) / float(one.share)) if one.share else 0),
    )

    def check(self, server: Any, clock: Clock, client: Client, num_clients: int) -> None:
        if (self.share is None) == (self.count is None):
            given = f"share={self.share}, count={self.count}"
            raise UserError(f"trimmed_mean: got {given}; give one of them, e.g. trimmed_mean(share=0.1)")

    def center(self, points: Array, times: Array, weights: Array, state: Any) -> Found:
        total = jnp.sum(times)
        dropped = self.count or 0 if self.share is None else jnp.floor(self.share * total + _ROUNDING)
        dropped = jnp.minimum(dropped, jnp.floor((total - 1) / 2)).astype(total.dtype)
        return mean_of_ranks(points, times[:, None], dropped, total - dropped), state, {}


class krum(Center):
    """The one of M updates with the lowest score; of equal scores the one that arrived first.

    The score of an update is the sum of its M - f - 2 smallest squared distances to other updates. A step with fewer
    than f + 3 arrivals uses one distance.

    Args:
        byzantine: f ≥ 0, the number of forged updates that is assumed; M ≥ 2f + 3.

    References:
        Blanchard, El Mhamdi, Guerraoui, Stainer (2017), "Machine learning with adversaries: Byzantine tolerant gradient
        descent", NeurIPS, section 4.
    """

    byzantine: int = static(default=1, least=0)

    references = ("blanchard2017",)
    meanings = {"selected": "times that the update is in the selected mean"}

    least_arrivals = ByOptions(5, lambda one: 2 * one.byzantine + 3)

    def kept(self, total: Array) -> Array | int:
        """Returns the number m of selected updates; `total`: M."""
        return 1

    def center(self, points: Array, times: Array, weights: Array, state: Any) -> Found:
        total = jnp.sum(times)
        scores = krum_scores(points, times, jnp.maximum(total - self.byzantine - 2, 1))
        order = jnp.argsort(jnp.where(times > 0, scores, jnp.inf), stable=True)
        before = jnp.cumsum(times[order]) - times[order]
        share = jnp.zeros_like(times).at[order].set(overlap(before, times[order], 0, self.kept(total)))
        chosen = jnp.where(share[:, None] > 0, points, 0)  # 0 · NaN is NaN
        return share.astype(points.dtype) @ chosen / jnp.sum(share).astype(points.dtype), state, {"selected": share}


class multi_krum(krum):
    """Mean of the m of M updates with the lowest scores; of equal scores those that arrived first.

    The scores are those of `krum`.

    Args:
        byzantine: f ≥ 0, the number of forged updates that is assumed; M ≥ 2f + 3.
        selected: m ≥ 1; `None`: M - f.

    References:
        Blanchard, El Mhamdi, Guerraoui, Stainer (2017), "Machine learning with adversaries: Byzantine tolerant gradient
        descent", NeurIPS, section 4.
    """

    selected: int | None = static(default=None)

    least_arrivals = ByOptions(5, lambda one: max(2 * one.byzantine + 3, one.selected or 0))

    def kept(self, total: Array) -> Array | int:
        return jnp.maximum(total - self.byzantine, 1) if self.selected is None else self.selected


class geometric_median(Center):
    """Geometric median, argmin_z Σ_k α_k ‖z - Δ_k‖ with the server's weights α_k = w_k / Σ w, by Weiszfeld's algorithm.

    z starts as the weighted mean; an iteration is z ← Σ β_k Δ_k / Σ β_k with β_k = α_k / max(ν, ‖z - Δ_k‖). It stops
    once the objective changes by less than 10⁻⁶ of itself. An update that is not finite is infinitely far: β_k = 0.

    Args:
        iterations: largest number T of iterations.
        smoothing: ν > 0.

    References:
        Pillutla, Kakade, Harchaoui (2022), "Robust aggregation for federated learning", IEEE Transactions on Signal
        Processing, Algorithm 2; the stop is that of the authors' code.
    """

    iterations: int = static(default=4)
    smoothing: Number = number(default=1e-5, above=0)

    references = ("pillutla2022",)

    def center(self, points: Array, times: Array, weights: Array, state: Any) -> Found:
        alphas = (weights / jnp.where(jnp.sum(weights) > 0, jnp.sum(weights), 1)).astype(points.dtype)
        finite = jnp.isfinite(points).all(1)
        alphas, points = jnp.where(finite, alphas, 0), jnp.where((finite & (weights > 0))[:, None], points, 0)

        def distances(z: Array) -> Array:
            return jnp.linalg.norm(points - z, axis=1)

        def iterate(_: int, before: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            z, objective, stopped = before
            betas = alphas / jnp.maximum(jnp.asarray(self.smoothing, points.dtype), distances(z))
            new = betas @ points / jnp.maximum(jnp.sum(betas), jnp.finfo(points.dtype).tiny)
            reached = alphas @ distances(new)
            z, value = jnp.where(stopped, z, new), jnp.where(stopped, objective, reached)
            return z, value, stopped | (jnp.abs(objective - reached) < 1e-6 * reached)

        mean = alphas @ points
        start = mean, alphas @ distances(mean), jnp.bool_(False)
        return jax.lax.fori_loop(0, self.iterations, iterate, start)[0], state, {}


class centered_clip(Center):
    """Centre that moves by clipped differences: v ← v + (1/M) Σ_i (Δ_i - v) min(1, r / ‖Δ_i - v‖).

    v starts as 0 and is carried over from step to step. An update that is not finite has no direction, and moves v by
    nothing.

    Args:
        radius: r > 0.
        iterations: movements per server step.

    References:
        Karimireddy, He, Jaggi (2021), "Learning from history for Byzantine robust optimization", ICML, Algorithm 2.
    """

    radius: Number = number(default=10.0, above=0)
    iterations: int = static(default=1)

    references = ("karimireddy2021",)

    def init(self, params: Tree) -> Tree:
        return optax.tree.zeros_like(params)

    def center(self, points: Array, times: Array, weights: Array, state: Any) -> Found:
        v, restored = ravel_pytree(state)
        shares = (times / jnp.maximum(jnp.sum(times), 1)).astype(points.dtype)
        finite = jnp.isfinite(points).all(1, keepdims=True)

        def move(_: int, v: Array) -> Array:
            apart = jnp.where(finite, points - v, 0)
            length = jnp.linalg.norm(apart, axis=1)
            factor = jnp.where(length > self.radius, self.radius / jnp.where(length > 0, length, 1), 1)
            return v + (shares * factor.astype(points.dtype)) @ apart

        v = jax.lax.fori_loop(0, self.iterations, move, v)
        return v, restored(v), {}


def krum_scores(points: Array, times: Array, neighbours: Array) -> Array:
    """Computes the sum of the smallest squared distances of every point to others, float [A].

    Args:
        points: float [A, d].
        times: multiplicities, float [A]; 0 for padding.
        neighbours: number of distances.
    """
    squares = jax.lax.map(lambda point: jnp.sum(jnp.square(points - point), axis=1), points).T  # [other, point]
    others = times[:, None] - jnp.eye(len(times), dtype=times.dtype) * (times > 0)
    found = neighbours * mean_of_ranks(squares, others, jnp.zeros_like(neighbours), neighbours)
    return jnp.where(jnp.isnan(found), jnp.inf, found)
