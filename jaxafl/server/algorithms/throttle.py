"""THROTTLE, rates that fall with every further update of a client in a round."""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxafl.client import Client
from jaxafl.clock.contract import Clock, Delivery
from jaxafl.options import Number, number, static
from jaxafl.server.contract import Array, Arrivals, Outcome, Server, Tree, first_of, norm, stepped
from jaxafl.server.scheduled import Rate

_LAST = 2  # kind of the arrival that ends a round, see `rounds_until_all.kinds`


class THROTTLEState(NamedTuple):
    """State of a round."""

    counts: Array  # int32 [N], c_i
    first: Tree  # sum of the first updates of the round
    side: Tree  # side information a, 0 in the first round


class throttle(Server):
    """THROTTLE: x ← x + η_t d at every arrival, with a rate that falls with the client's updates c_i in this round.

    The first update of a client in a round has η_t = η/N and d = a + clip(Δ - a, τ); a later one η_t = η/q^{c_i} and
    d = clip(Δ, λ), where clip(v, r) = v · min(1, r/‖v‖). a = clip(mean of the first updates of the last round, G),
    and 0 in the first round. Without radii nothing is clipped: d = Δ. One gradient per run, Δ = -∇f_i.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.
        base: q > 1. Towards 1 this is asynchronous SGD, for large q synchronous SGD.
        first_radius: τ > 0, radius around the side information a of first updates; `None` for no clipping.
        later_radius: λ > 0, largest norm of later updates; `None` for no clipping.
        side_radius: G > 0, largest norm of a; `None` for no bound.
        beyond: first updates with ‖Δ - a‖ > τ. `"clip"`: d = a + clip(Δ - a, τ). `"truncate"`: d = a, the paper's
            centred truncation.

    References:
        Otsuka et al., THROTTLE, 2026, Algorithm 1. Checked against the paper.
    """

    learning_rate: Rate = number(default=0.1, least=0)
    base: Number = number(default=1.5, above=1)
    first_radius: Number | None = number(default=None, above=0)
    later_radius: Number | None = number(default=None, above=0)
    side_radius: Number | None = number(default=None, above=0)
    beyond: Literal["clip", "truncate"] = static(default="clip")

    requires = Delivery.KINDS | Delivery.CONTINUOUS
    accepts = Delivery.STALE
    references = ("otsuka2026",)
    single = True
    meanings = {"times_in_round": "earlier updates c_i of the client in this round"}

    def check(self, clock: Clock, client: Client, num_clients: int) -> None:
        if self.beyond != "clip" and self.first_radius is None:
            raise ValueError(f"throttle: beyond={self.beyond!r} needs a radius around a: give first_radius=τ")

    def init(self, params: Tree, samples: Array) -> THROTTLEState:
        nothing = optax.tree.zeros_like(params)
        return THROTTLEState(jnp.zeros(len(samples), jnp.int32), nothing, nothing)

    def begun(self, state: THROTTLEState) -> THROTTLEState:
        counts, first = optax.tree.zeros_like((state.counts, state.first))
        return THROTTLEState(counts, first, state.side)  # with a new round

    def update(self, params: Tree, state: THROTTLEState, arrivals: Arrivals) -> Outcome:
        client, ends = arrivals.client[0], arrivals.kind[0] == _LAST
        delta = first_of(arrivals.delta)
        clients = len(state.counts)
        times = state.counts[client]
        is_first = times == 0
        near = delta
        if self.first_radius is not None:
            apart = optax.tree.sub(delta, state.side)
            if self.beyond == "truncate":
                within = norm(apart) <= self.first_radius
                apart = jax.tree.map(lambda leaf: jnp.where(within, leaf, 0), apart)
            near = jax.tree.map(jnp.add, state.side, _clipped(apart, self.first_radius))
        step = optax.tree.where(is_first, near, _clipped(delta, self.later_radius))
        power = jnp.asarray(self.base, arrivals.loss.dtype) ** times
        rate = jnp.asarray(self.learning_rate, power.dtype) / jnp.where(is_first, clients, power)
        params = stepped(params, rate, step)
        first = jax.tree.map(lambda s, d: s + jnp.where(is_first, d, 0), state.first, delta)
        mean = _clipped(jax.tree.map(lambda s: s / clients, first), self.side_radius)
        after = THROTTLEState(
            jnp.where(ends, 0, state.counts.at[client].add(1)),
            jax.tree.map(lambda s: jnp.where(ends, 0, s), first),
            optax.tree.where(ends, mean, state.side),
        )
        return Outcome(params, after, {"server_rate": rate, "times_in_round": times})


def _clipped(tree: Tree, radius: Number | None) -> Tree:
    """Returns tree · min(1, radius / ‖tree‖)."""
    if radius is None:
        return tree
    length = norm(tree)
    factor = jnp.where(length > radius, radius / jnp.where(length > radius, length, 1), 1)
    return jax.tree.map(lambda leaf: leaf * factor.astype(leaf.dtype), tree)
