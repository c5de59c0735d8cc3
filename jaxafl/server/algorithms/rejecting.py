"""Servers that take some arrivals and reject the others: Picky SGD, Zeno++ and Kardam."""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxafl.clock.contract import STARTS
from jaxafl.device import Rows
from jaxafl.options import Number, number, static
from jaxafl.server.contract import Array, Arrivals, Needs, Outcome, Server, Tree, first_of, norm, stepped
from jaxafl.server.fedopt import discount
from jaxafl.server.scheduled import Rate

_REJECTED = {"rejected": "1 for a rejected arrival, else 0"}


class _Rejecting(Server):
    """Base of servers that step for every arrival or reject it."""

    learning_rate: Rate = number(default=0.1, least=0)

    accepts = STARTS
    single = True
    drops = True
    counters = ("rejected",)

    def outcome(self, passes: Array, params: Tree, state: Tree, arrivals: Arrivals, **info: Array) -> Outcome:
        """Returns the outcome of a step; `passes`: False for a rejected arrival, whose model state does not count."""
        kept = (~passes).astype(arrivals.loss.dtype)
        info = {"rejected": (~passes).astype(jnp.int32), **info}
        return Outcome(params, state, info, weights=(1 - kept)[None], kept=kept)


class picky_sgd(_Rejecting):
    """Picky SGD: x ← x + η Δ_i at every arrival, if ‖x_t - x_s‖ ≤ D, with the start model x_s of the run.

    In the paper D = ε/(2β), for a target accuracy ε of the gradient's norm and smoothness β. D = ∞ is asynchronous SGD,
    as `asysg` with single arrivals.

    A rejected arrival makes a version with the same x, so that t counts arrivals, and counts in `count_rejected`. One
    gradient per run, Δ_i = -∇f_i, in the paper; several local steps are our extension. The formula is our reading of
    the paper.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.
        distance: D, in the units of the parameters; at least 0, or infinite. The default 1 is not of the paper.

    References:
        Cohen, Daniely, Drori, Koren, Schain, "Asynchronous stochastic optimization robust to arbitrary delays", NeurIPS
        2021, Algorithm 1.
    """

    distance: Number = number(default=1.0, least=0, infinite=True)

    references = ("cohen2021",)
    needs = Needs(base=True)
    meanings = _REJECTED | {"distance": "distance of the newest model and the one that the run started from"}

    def update(self, params: Tree, state: Tree, arrivals: Arrivals) -> Outcome:
        distance = norm(jax.tree.map(lambda x, start: x - start[0], params, arrivals.base))
        passes = distance <= jnp.asarray(self.distance, distance.dtype)
        after = stepped(params, self.learning_rate, first_of(arrivals.delta))
        params = optax.tree.where(passes, after, params)
        return self.outcome(passes, params, state, arrivals, distance=distance)


class zeno(_Rejecting):
    """Zeno++: x ← x - η u at every arrival, if η ⟨g_r, u⟩ - ρ ‖p‖² + η ε ≥ 0, with u = g ‖g_r‖ / ‖g‖ and g = -Δ_i.

    g_r is the gradient of the model on samples of the server. These are the validation set: clients do not train on
    it, and validation metrics are then of samples that the server has seen. g_r is computed every `every` server steps.

    A rejected arrival makes a version with the same x, and counts in `count_rejected`. An update of 0 changes nothing.
    One gradient per run, Δ = -∇f_i, in the paper; several local steps are our extension.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.
        penalty: ρ ≥ 0.
        slack: ε ≥ 0.
        every: server steps between two computations of g_r; at least 1.
        batch_size: samples of g_r, drawn independently each time; `None` for the whole validation set.
        penalised: p. `"sent"`: g as it arrived, as in the authors' code. `"scaled"`: u.

    Raises:
        UserError: the data has no validation set.

    References:
        Xie, Koyejo, Gupta, "Zeno++: Robust fully asynchronous SGD", ICML 2020, Algorithm 1. Follows the authors' code.
    """

    penalty: Number = number(default=0.001, least=0)
    slack: Number = number(default=0.0, least=0)
    every: int = static(default=1, kw_only=True)
    batch_size: int | None = static(default=32, kw_only=True)
    penalised: Literal["sent", "scaled"] = static(default="sent", kw_only=True)

    references = ("xie2020zeno",)
    needs = Needs(validation=True)
    meanings = _REJECTED | {"score": "score of the arrival, which is accepted if it is at least 0"}

    def init(self, params: Tree, samples: Array) -> Tree:
        return optax.tree.zeros_like(params)  # g_r

    def update(self, params: Tree, state: Tree, arrivals: Arrivals) -> Outcome:
        compute = arrivals.validation_gradient
        assert compute is not None, "`needs` has `validation`"
        of_server = jax.lax.cond(
            arrivals.step % self.every == 0, lambda: compute(params, self.batch_size), lambda: state
        )
        sent = jax.tree.map(lambda leaf: -leaf[0], arrivals.delta)
        length = norm(sent)
        factor = jnp.where(length > 0, norm(of_server) / jnp.where(length > 0, length, 1), 0)
        scaled = jax.tree.map(lambda leaf: factor.astype(leaf.dtype) * leaf, sent)
        rate = jnp.asarray(self.learning_rate, length.dtype)
        punished = optax.tree.norm(sent if self.penalised == "sent" else scaled, squared=True)
        score = rate * (optax.tree.vdot(of_server, scaled) + self.slack) - self.penalty * punished
        passes = score >= 0
        params = jax.tree.map(lambda x, g: jnp.where(passes, x - rate.astype(x.dtype) * g, x), params, scaled)
        return self.outcome(passes, params, of_server, arrivals, score=score)


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


class kardam(_Rejecting):
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

    staleness: Literal["none", "polynomial", "exponential"] = static(default="polynomial")
    exponent: Number = number(default=1.0, least=0, kw_only=True)
    quantile: Number = number(default=2 / 3, least=0, most=1, kw_only=True)
    window: int = static(default=26, kw_only=True)

    references = ("damaskinos2018",)
    needs = Needs(base=True, client_rows=2)
    meanings = _REJECTED | {
        "lipschitz": "Lipschitz coefficient of the arrival and the last accepted one, 0 if they started from one model"
    }

    def init(self, params: Tree, samples: Array) -> KardamState:
        nothing = Pair(optax.tree.zeros_like(params), optax.tree.zeros_like(params))
        clients = len(samples)
        none = jnp.zeros(clients, jnp.int32)
        unknown = jnp.full((clients, self.window), -1.0, jnp.result_type(float))
        return KardamState(Rows.filled(nothing, clients), none, unknown, none, nothing, jnp.int32(0))

    def update(self, params: Tree, state: KardamState, arrivals: Arrivals) -> Outcome:
        client, clients = arrivals.client, len(state.arrived)
        tau = arrivals.staleness[0].astype(arrivals.loss.dtype)
        rate = self.learning_rate * discount(self.staleness, tau, self.exponent, 0.0)
        now = Pair(jax.tree.map(lambda d: rate.astype(d.dtype) * d[0], arrivals.delta), first_of(arrivals.base))
        coefficient, differs = _lipschitz(now, first_of(state.previous.read_many(client)))
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
            optax.tree.where(passes, now, state.accepted),
            jnp.where(passes, 0, state.rejected + 1),
        )
        params = jax.tree.map(lambda x, u: jnp.where(passes, x + u, x), params, now.update)
        return self.outcome(passes, params, after, arrivals, lipschitz=ratio, server_rate=rate)


def _lipschitz(pair: Pair, other: Pair) -> tuple[Array, Array]:
    """Computes ‖u - u'‖ / ‖x_s - x_s'‖, 0 if the models are equal, and returns True if they differ."""
    moved = norm(optax.tree.sub(pair.start, other.start))
    changed = norm(optax.tree.sub(pair.update, other.update))
    return jnp.where(moved > 0, changed / jnp.where(moved > 0, moved, 1), 0), moved > 0
