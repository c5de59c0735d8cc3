"""SAFA, a semi-asynchronous protocol with a cache of client models."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.clock.contract import Delivery
from jaxafl.clock.protocols.rounds import RESYNCHRONISED, UNDRAFTED
from jaxafl.device import Rows
from jaxafl.server.contract import Array, Arrivals, Needs, Outcome, Server, Tree


class SAFAState(NamedTuple):
    """Cached models and their weights."""

    cache: Rows  # cached model of every client
    weights: Array  # float [N], n_k / Σ n


class safa(Server):
    """SAFA: x = Σ_k (n_k/Σn) cache_k over ALL clients.

    Entries of deprecated clients are replaced by x; picked updates enter the cache before the aggregation, undrafted
    ones after it. Batch statistics are averaged over the picked updates, weighted by samples. The clock (`semi_async`)
    decides which clients are picked, undrafted or deprecated. Keeps one model per client.

    References:
        Wu et al., "SAFA: A semi-asynchronous protocol for fast federated learning with low overhead", IEEE TC 2021,
        eqs. (6)-(8).
    """

    requires = Delivery.KINDS | Delivery.BY_CLIENT
    accepts = Delivery.STALE | Delivery.EMPTY
    references = ("wu2021",)
    needs = Needs(base=True, client_rows=1, empty_steps=True)
    meanings: ClassVar[dict[str, str]] = {
        "picked": "updates that entered the cache before the aggregation",
        "undrafted": "updates that entered the cache after the aggregation",
        "deprecated": "clients whose entry in the cache was replaced by the global model",
    }

    def init(self, params: Tree, samples: Array) -> SAFAState:
        return SAFAState(Rows.filled(params, samples.shape[0]), samples / jnp.sum(samples))

    def update(self, params: Tree, state: SAFAState, arrivals: Arrivals) -> Outcome:
        models = jax.tree.map(jnp.add, arrivals.base, arrivals.delta)
        undrafted = arrivals.mask & (arrivals.kind % 2 == UNDRAFTED)
        picked = arrivals.mask & ~undrafted
        deprecated = arrivals.kind >= RESYNCHRONISED
        everywhere = jax.tree.map(lambda x: x[None], params)
        cache = state.cache.replace(deprecated, everywhere).replace(picked, models)
        new = cache.weighted_sum(state.weights)
        cache = cache.replace(undrafted, models)
        info = {"picked": jnp.sum(picked), "undrafted": jnp.sum(undrafted), "deprecated": jnp.sum(deprecated)}
        weights = jnp.where(picked, arrivals.samples, 0)
        return Outcome(new, state._replace(cache=cache), info, weights=weights)
