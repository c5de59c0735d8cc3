"""Malenia SGD, the mean over clients of the mean of their gradients."""

from __future__ import annotations

import jax.numpy as jnp

from jaxafl.clock.contract import Delivery
from jaxafl.options import number
from jaxafl.server.contract import Array, Arrivals, counts
from jaxafl.server.fedopt import OptaxServer
from jaxafl.server.scheduled import Rate


class malenia(OptaxServer):
    """Malenia SGD: x ← x + η (1/n) Σ_i (1/B_i) Σ_{j <= B_i} Δ_ij over the n clients that have arrived.

    B_i is the number of updates of client i in the step. Each client has the same weight, however fast it is, so the
    mean of the clients' objectives is minimised. The paper's steps close by `harmonic`, and take one gradient per run:
    `Client(optax.sgd, learning_rate=1.0, steps=1)`, so that Δ = -∇f_i. With `free_running(buffer=B, max_staleness=1,
    on_bound="stop")` and `fedbuff(staleness="none")` all updates have the same weight: Rennala SGD.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.

    References:
        Tyurin & Richtárik, "Optimal time complexities of parallel stochastic optimization methods under a fixed
        computation model", NeurIPS 2023, Method 6. The rule follows a later text of the first author.
    """

    learning_rate: Rate = number(default=0.1, least=0)

    accepts = Delivery.STALE | Delivery.CONTINUOUS
    references = ("tyurin2023",)

    def weigh(self, arrivals: Arrivals) -> Array:
        client = jnp.where(arrivals.mask, arrivals.client, jnp.iinfo(jnp.int32).max)
        ordered = jnp.sort(client)
        last = jnp.searchsorted(ordered, client, side="right")
        share = counts(arrivals) / (last - jnp.searchsorted(ordered, client))
        return share / jnp.maximum(jnp.sum(share), 1)
