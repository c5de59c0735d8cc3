"""SAFA."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.clock.semi_async import RESYNCHRONISED, UNDRAFTED
from jaxafl.pytrees import pytree
from jaxafl.server.contract import Arrivals, Needs, Tree, Update, replace_rows, weighted_sum

Array = jax.Array


class SAFAState(NamedTuple):
    """The cache."""

    cache: Tree  # each leaf [N, ...]: the model of every client that the server goes by
    weights: Array  # [N]: n_k / Σ n


@pytree
class SAFA:
    """See `safa`."""

    name: ClassVar[str] = "safa"
    clocks: ClassVar[frozenset[str]] = frozenset({"semi_async"})
    references: ClassVar[tuple[str, ...]] = ("wu2021",)
    needs: ClassVar[Needs] = Needs(start=True, client_rows=1, acts_when_empty=True)

    def check(self, clock: Any, client: Any, num_clients: int) -> None:
        return None

    def init(self, params: Tree, samples: Array) -> SAFAState:
        count = samples.shape[0]
        cache = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), params)
        return SAFAState(cache, samples / jnp.sum(samples))

    def update(self, params: Tree, state: SAFAState, arrivals: Arrivals) -> Update:
        models = jax.tree.map(jnp.add, arrivals.start, arrivals.delta)
        undrafted = arrivals.mask & (arrivals.kind % 2 == UNDRAFTED)
        picked = arrivals.mask & ~undrafted
        deprecated = arrivals.kind >= RESYNCHRONISED
        everywhere = jax.tree.map(lambda x, c: jnp.broadcast_to(x, c.shape), params, state.cache)
        cache = replace_rows(state.cache, deprecated, everywhere)
        cache = replace_rows(cache, picked, models)
        new = weighted_sum(state.weights, cache)
        cache = replace_rows(cache, undrafted, models)
        info = {"picked": jnp.sum(picked), "undrafted": jnp.sum(undrafted), "deprecated": jnp.sum(deprecated)}
        return Update(new, state._replace(cache=cache), info)


def safa() -> SAFA:
    """SAFA: x = Σ_k (n_k/Σn) cache_k over ALL clients.

    Entries of deprecated clients are replaced by x; picked updates enter the cache before the aggregation, undrafted
    ones after it. Who is picked, undrafted or deprecated is the clock's affair (`semi_async`). Keeps one model per
    client.

    References:
        Wu et al., "SAFA: A semi-asynchronous protocol for fast federated learning with low overhead", IEEE TC 2021,
        eqs. (6)-(8).
    """
    return SAFA()
