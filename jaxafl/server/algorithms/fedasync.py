"""FedAsync, asynchronous federated optimization."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from jaxafl.client import Client
from jaxafl.clock.contract import ByOptions, Clock, Delivery
from jaxafl.options import Number, number, recording, static
from jaxafl.server.contract import Array, Arrivals, Needs, Outcome, Server, Tree, stepped
from jaxafl.server.fedopt import discount
from jaxafl.server.scheduled import Rate


class fedasync(Server):
    """FedAsync: x ← (1 - α_t) x + α_t x_i^K with α_t = α · s(τ).

    The model x_i^K is mixed in, not Δ_i: the step is α_t (x_s + Δ_i - x). Batch statistics are mixed with the same
    weights, (1 - α_t) of the server's and α_t of the client's.

    τ counts versions. Several arrivals in one server step (a buffer of A) are applied one after another in client
    order, and each counts as a version: the j-th of them sees τ = A (t - s) + j. Where their number may vary from step
    to step, a step counts as one version: τ = t - s + j.

    Args:
        alpha: mixing weight α of a fresh model; at least 0, or an Optax schedule of server steps. The authors' code
            uses 0.9, halved during the run, and their scripts try 0.4 to 0.9. The value that AsyncFedED used with
            `hinge` is unpublished.
        staleness: staleness discount s. `"constant"`: s = 1. `"polynomial"`: s = (1 + τ)^(-a). `"hinge"`: s = 1 if
            τ <= b, else 1 / (a (τ - b) + 1). The paper proposes these three, and most papers that compare with FedAsync
            use the polynomial with a = 1/2. `"exponential"`: s = e^(-aτ). A function gets τ, float [A], and returns s,
            float [A].
        exponent: exponent or slope a; at least 0. `None` uses the paper's 0.5 and 10, and 0.5 for `exponential`.
        threshold: largest staleness b that `hinge` does not discount; at least 0.
        mix: mixed quantity. `"model"`: the client's model x_i^K. `"delta"`: x ← x + α_t Δ_i, which FADAS's code calls
            FedAsync (with α = 1).

    References:
        Xie et al., "Asynchronous federated optimization", 2019; AsyncFedED (Wang et al., 2022), eqs. (40) and (41).
    """

    alpha: Rate = number(default=0.5, least=0)
    staleness: Literal["constant", "polynomial", "hinge", "exponential"] | Callable[[Array], Array] = static(
        default="polynomial"
    )
    exponent: Number | None = number(default=None, least=0)
    threshold: Number = number(default=4.0, least=0)
    mix: Literal["model", "delta"] = static(default="model")
    versions: Any = recording(default=None)  # that a server step counts as; None: one per place

    requires = Delivery.STALE
    accepts = Delivery.CONTINUOUS | Delivery.AGED
    references = ("xie2019",)
    needs = ByOptions(Needs(base=True), lambda one: Needs(base=one.mix == "model"))

    def prepare(self, clock: Clock, client: Client, counts: Any, seed: int) -> tuple[Server, Client]:
        varies = clock.arrivals(len(counts)) is None
        return dataclasses.replace(self, versions=1.0 if varies else None), client

    def update(self, params: Tree, state: tuple[()], arrivals: Arrivals) -> Outcome:
        capacity = arrivals.mask.shape[0]
        order = jnp.argsort(jnp.where(arrivals.mask, arrivals.client, jnp.iinfo(jnp.int32).max))
        versions = capacity if self.versions is None else self.versions
        staleness = arrivals.staleness * versions + jnp.argsort(order)  # every arrival counts as a version
        rate = jnp.where(arrivals.mask, self.alpha * self._discount(staleness.astype(arrivals.loss.dtype)), 0)

        def apply(position: Array, params: Tree) -> Tree:
            entry = order[position]
            step = jax.tree.map(lambda d: d[entry], arrivals.delta)
            if self.mix == "model":
                step = jax.tree.map(lambda x, s, d: s[entry] + d - x, params, arrivals.base, step)
            return stepped(params, rate[entry], step)

        params = jax.lax.fori_loop(0, capacity, apply, params)
        if self.mix == "delta":
            return Outcome(params, state, {"server_rate": rate}, weights=rate)
        share = jnp.minimum(rate, 1)[order]  # above 1 the mean of the states would extrapolate
        left = jnp.cumprod(1 - share[::-1])[::-1]  # remaining weight of the state before each arrival
        weights = jnp.zeros_like(rate).at[order].set(share * jnp.append(left[1:], 1))
        return Outcome(params, state, {"server_rate": rate}, weights=weights, kept=left[0])

    def _discount(self, staleness: Array) -> Array:
        power = 0.5 if self.exponent is None and self.staleness == "polynomial" else self.exponent
        return discount(self.staleness, staleness, power, self.threshold)
