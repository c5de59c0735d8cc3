"""Delayed Nesterov momentum for single arrivals."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxafl.client import Client
from jaxafl.clock.contract import STARTS, Clock, Delivery
from jaxafl.options import Number, check_number, number, static
from jaxafl.server.contract import Array, Tree
from jaxafl.server.fedopt import OptaxServer
from jaxafl.server.scheduled import Rate


class Delayed(NamedTuple):
    """Server state."""

    momentum: Tree  # m
    total: Tree  # B, the sum of the updates since m has changed
    arrivals: Array  # int32, k


class delayed_nesterov(OptaxServer):
    """Delayed Nesterov: every arrival moves the model, and every N-th one the momentum, by their mean.

    At the k-th arrival, k = 1, 2, ..., with B ← B + Δ_i:

    - if N does not divide k: x ← x + η (c β m + Δ_i / N);
    - else: m ← β m + B / N, x ← x + η ((1 - c (N - 1)) β m + Δ_i / N) with the new m, and B ← 0.

    With c = 0, N arrivals change x by one Nesterov step on their mean. N = 1 is Nesterov momentum, and β = 0 is SGD
    with η/N. N counts the arrivals of all clients. No update is discounted. HALoS's code, which cites the paper's
    pseudocode, has c = 0 and quotes η/N, the rate per arrival; the range of c is not in a text that we have read.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.
        momentum: β, in [0, 1).
        period: N, arrivals between two changes of the momentum; `None` uses the clients in flight M_c.
        activation: c, in [0, 1/N].

    References:
        Liu et al., "Asynchronous Local-SGD training for language modeling", 2024.
    """

    learning_rate: Rate = number(default=0.7, least=0)
    momentum: Number = number(default=0.9, least=0, below=1)
    period: int | None = static(default=None)
    activation: Number = number(default=0.0, least=0)

    requires = Delivery.CONTINUOUS
    accepts = STARTS
    single = True
    references = ("liu2024",)

    def check(self, clock: Clock, client: Client, num_clients: int) -> None:
        most = 1 / (self.period or clock.in_flight(num_clients))
        check_number(self.name, "activation", self.at_step(0).activation, least=0, most=most)

    def prepare(self, clock: Clock, client: Client, counts: np.ndarray, seed: int) -> tuple[delayed_nesterov, Client]:
        return dataclasses.replace(self, period=self.period or clock.in_flight(len(counts))), client

    def optimizer_of(self, rate: Number) -> optax.GradientTransformation:
        return nesterov(rate, self.momentum, self.period or 1, self.activation)


def nesterov(rate: Number, momentum: Number, period: int, activation: Number) -> optax.GradientTransformation:
    """Returns the rule of `delayed_nesterov` for updates that come one by one, as gradients -Δ.

    Args:
        rate, momentum, period, activation: η, β, N and c.
    """

    def init(params: Tree) -> Delayed:
        zeros = optax.tree.zeros_like(params)
        return Delayed(zeros, zeros, jnp.int32(0))

    def update(gradient: Tree, state: Delayed, params: Tree = None) -> tuple[Tree, Delayed]:
        changes = (state.arrivals + 1) % period == 0
        share = jnp.where(changes, 1 - activation * (period - 1), activation)
        total = optax.tree.sub(state.total, gradient)
        new = jax.tree.map(lambda m, b: jnp.where(changes, momentum * m + b / period, m), state.momentum, total)
        step = jax.tree.map(lambda m, g: rate * (share * momentum * m - g / period), new, gradient)
        total = jax.tree.map(lambda b: jnp.where(changes, 0, b), total)
        return step, Delayed(new, total, state.arrivals + 1)

    return optax.GradientTransformation(init, update)
