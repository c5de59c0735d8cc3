"""AUDG and PSURDG, which apply or reuse delayed gradients."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import optax

from jaxafl.client import Client
from jaxafl.clock.contract import Clock, Delivery
from jaxafl.device import Rows, weighted_sum
from jaxafl.options import number
from jaxafl.server.algorithms.checks import check_gradients
from jaxafl.server.contract import Array, Arrivals, Needs, Outcome, Server, Tree, stepped
from jaxafl.server.scheduled import Rate


class _DelayedGradients(Server):
    """Base of servers with one full-batch gradient per run, Δ_i = -∇f_i(x_s)."""

    learning_rate: Rate = number(default=0.1, least=0)

    references = ("hao2025",)
    local = {"learning_rate": 1.0, "steps": 1, "batch_size": None}

    def check(self, clock: Clock, client: Client, num_clients: int) -> None:
        check_gradients(self.name, client, full_batch=True)


class audg(_DelayedGradients):
    """Asynchronous updates with delayed gradients: x ← x - η Σ_{i arrived} λ_i ∇f_i(x_s) at every tick.

    λ_i = n_i / Σ_k n_k over ALL clients; the sum is not divided by the number of arrivals, and a tick without arrivals
    does not change x. One full-batch gradient per run: `Client(optax.sgd, learning_rate=1.0, steps=1,
    batch_size=None)`.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.

    References:
        "The impact analysis of delays in asynchronous federated learning with data heterogeneity for edge
        intelligence", Algorithm 2.
    """

    requires = Delivery.REPEATED
    accepts = Delivery.STALE | Delivery.EMPTY | Delivery.BY_CLIENT

    def init(self, params: Tree, samples: Array) -> Array:
        return jnp.sum(samples)

    def update(self, params: Tree, state: Array, arrivals: Arrivals) -> Outcome:
        step = weighted_sum(arrivals.samples / state, arrivals.delta)  # padding has samples 0
        return Outcome(stepped(params, self.learning_rate, step), state, weights=arrivals.samples)


class PSURDGState(NamedTuple):
    """Last received gradient of every client."""

    received: Rows  # -ĝ_i, 0 before the first
    weights: Array  # float [N], λ_i


class psurdg(_DelayedGradients):
    """Pseudo-synchronous updates by reusing delayed gradients: x ← x - η Σ_{i=1..N} λ_i ĝ_i at every tick.

    ĝ_i is the last gradient received from client i, 0 before the first; λ_i = n_i / Σ_k n_k. One full-batch gradient
    per run: `Client(optax.sgd, learning_rate=1.0, steps=1, batch_size=None)`. Keeps one row of parameters per client.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.

    References:
        "The impact analysis of delays in asynchronous federated learning with data heterogeneity for edge
        intelligence", Algorithm 3.
    """

    requires = Delivery.REPEATED | Delivery.BY_CLIENT
    accepts = Delivery.STALE | Delivery.EMPTY
    needs = Needs(client_rows=1, empty_steps=True)

    def init(self, params: Tree, samples: Array) -> PSURDGState:
        nothing = optax.tree.zeros_like(params)
        return PSURDGState(Rows.filled(nothing, len(samples)), samples / jnp.sum(samples))

    def update(self, params: Tree, state: PSURDGState, arrivals: Arrivals) -> Outcome:
        received = state.received.replace(arrivals.mask, arrivals.delta)
        step = received.weighted_sum(state.weights)
        after = state._replace(received=received)
        return Outcome(stepped(params, self.learning_rate, step), after, weights=arrivals.samples)
