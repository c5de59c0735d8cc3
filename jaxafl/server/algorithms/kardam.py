"""Kardam, a filter of updates by their empirical Lipschitz coefficients."""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxafl.clock.contract import Delivery
from jaxafl.device import Rows
from jaxafl.options import Number, number, static
from jaxafl.server.contract import Array, Arrivals, Needs, Outcome, Server, Tree
from jaxafl.server.scheduled import Rate
from jaxafl.server.staleness import discount


class Pair(NamedTuple):
    """An update and the model that it started from."""

    update: Tree  # u
    start: Tree  # x_s


class KardamState(NamedTuple):
    """Server state."""

    previous: Rows  # pair of every client's last arrival
    arrived: Array  # int32 [N], arrivals of every client
    coefficients: Array  # float [N, window], the last coefficients of every client, -1 for none
    entered: Array  # int32 [N], coefficients entered so far
    accepted: Pair  # last accepted pair
    rejected: Array  # int32, arrivals rejected in a row


class kardam(Server):
    """Kardam: x ← x + u with u = η s(τ) Δ_i at every arrival, unless its empirical Lipschitz coefficient is too large.

    A client's coefficient is ‖u - u'‖ / ‖x_s - x_s'‖, with (u', x_s') of its previous arrival; the last `window` count.
    An arrival is accepted if ‖u - u*‖ / ‖x_s - x_s*‖, with (u*, x_s*) of the last accepted one, is at most a quantile
    over clients of their largest coefficients. It is also accepted if no coefficient is known, if x_s = x_s*, or if N
    arrivals in a row were rejected.

    A rejected arrival makes a version with the same x, and counts in `count_rejected`. Keeps two rows per client.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.
        staleness: dampening s. `"none"`: s = 1. `"polynomial"`: s = (1 + τ)^(-a). `"exponential"`: s = e^(-aτ).
        exponent: a ≥ 0; 1 and 0.2 in the code.
        quantile: (N - f) / N for f forging clients, in [0, 1].
        window: coefficients that are kept of each client.

    References:
        Damaskinos, El Mhamdi, Guerraoui, Patra, Taziki, "Asynchronous Byzantine machine learning (the case of SGD)",
        ICML 2018. The rule follows third-party code; the order of an arrival's coefficient (entered before the test)
        and x_s = x_s* are our reading.
    """

    learning_rate: Rate = number(default=0.1, least=0)
    staleness: Literal["none", "polynomial", "exponential"] = static(default="polynomial")
    exponent: Number = number(default=1.0, least=0, kw_only=True)
    quantile: Number = number(default=2 / 3, least=0, most=1, kw_only=True)
    window: int = static(default=26, kw_only=True)

    accepts = Delivery.STALE | Delivery.CONTINUOUS
    references = ("damaskinos2018",)
    needs = Needs(base=True, client_rows=2)
    single = True
    counters = ("rejected",)
    meanings: ClassVar[dict[str, str]] = {
        "rejected": "1 for a rejected arrival, else 0",
        "lipschitz": "Lipschitz coefficient of the arrival and the last accepted one, 0 if they started from one model",
    }

    def init(self, params: Tree, samples: Array) -> KardamState:
        nothing = Pair(jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params))
        clients = samples.shape[0]
        none = jnp.zeros(clients, jnp.int32)
        unknown = jnp.full((clients, self.window), -1.0, jnp.result_type(float))
        return KardamState(Rows.filled(nothing, clients), none, unknown, none, nothing, jnp.int32(0))

    def update(self, params: Tree, state: KardamState, arrivals: Arrivals) -> Outcome:
        client, clients = arrivals.client, len(state.arrived)
        tau = arrivals.staleness[0].astype(arrivals.loss.dtype)
        rate = self.learning_rate * discount(self.staleness, tau, self.exponent, 0.0)
        now = Pair(jax.tree.map(lambda d: rate.astype(d.dtype) * d[0], arrivals.delta), _first(arrivals.base))
        coefficient, differs = _lipschitz(now, _first(state.previous.read_many(client)))
        enters = differs & (state.arrived[client[0]] > 0)
        place = jnp.where(enters, client[0], clients)
        found = state.coefficients.at[place, state.entered[client[0]] % self.window].set(
            coefficient.astype(state.coefficients.dtype), mode="drop"
        )
        largest = jnp.max(found, axis=1)
        limit = jnp.nanquantile(jnp.where(largest < 0, jnp.nan, largest), jnp.asarray(self.quantile, largest.dtype))
        ratio, apart = _lipschitz(now, state.accepted)
        passes = jnp.all(largest < 0) | ~apart | (ratio <= limit) | (state.rejected >= clients)
        after = KardamState(
            state.previous.write_many(client, arrivals.mask, jax.tree.map(lambda leaf: leaf[None], now)),
            state.arrived.at[client[0]].add(1),
            found,
            state.entered.at[place].add(1, mode="drop"),
            jax.tree.map(lambda new, old: jnp.where(passes, new, old), now, state.accepted),
            jnp.where(passes, 0, state.rejected + 1),
        )
        params = jax.tree.map(lambda x, u: jnp.where(passes, x + u, x), params, now.update)
        info = {"rejected": (~passes).astype(jnp.int32), "lipschitz": ratio, "server_rate": rate}
        kept = (~passes).astype(arrivals.loss.dtype)
        return Outcome(params, after, info, weights=(1 - kept)[None], kept=kept)


def _first(tree: Tree) -> Tree:
    return jax.tree.map(lambda leaf: leaf[0], tree)


def _lipschitz(pair: Pair, other: Pair) -> tuple[Array, Array]:
    """Computes ‖u - u'‖ / ‖x_s - x_s'‖, 0 if the models are equal, and returns True if they differ."""
    moved = optax.tree.norm(jax.tree.map(jnp.subtract, pair.start, other.start))
    changed = optax.tree.norm(jax.tree.map(jnp.subtract, pair.update, other.update))
    return jnp.where(moved > 0, changed / jnp.where(moved > 0, moved, 1), 0), moved > 0
