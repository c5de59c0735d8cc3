"""Asynchronous SGD whose step size falls with the staleness."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax.numpy as jnp
import numpy as np

from jaxafl.client import Client
from jaxafl.clock.contract import Clock, Delivery
from jaxafl.options import Number, number, static
from jaxafl.server.contract import Array, Arrivals, counts
from jaxafl.server.fedopt import OptaxServer
from jaxafl.server.scheduled import Rate


class delay_adaptive(OptaxServer):
    """Delay-adaptive asynchronous SGD: x ← x + η_t Δ_i at every arrival, with η_t = η · min(1, c/τ).

    The papers apply one gradient per arrival: `Client(optax.sgd, learning_rate=1.0, steps=1)`, so that Δ_i = -∇f_i.
    Several local steps are our extension. Mishchenko et al.'s notebook restarts a client from the model before its own
    gradient is applied: `free_running(before_step=True)`. Their rule was checked against their code, that of Koloskova
    et al. against the paper.

    Args:
        learning_rate: largest server learning rate η; at least 0, or an Optax schedule of server steps.
        rule: rate of an update with staleness τ > c. `"ratio"`: η c/τ (Mishchenko et al.). `"drop"`: 0, so that the
            model stays although the version advances. `"koloskova"`: min(η, 1/(4Lτ)), the largest rate that eq. (11)
            allows.
        threshold: largest staleness c without reduction of the rate, above 0; `None` uses the clients in flight M_c.
        smoothness: smoothness constant L of the objective, above 0, for `rule="koloskova"`. Its theorem needs η <=
            1/(4L).

    References:
        Mishchenko et al., "Asynchronous SGD beats minibatch SGD under arbitrary delays", NeurIPS 2022; Koloskova et
        al., "Sharper convergence guarantees for asynchronous SGD for distributed and federated learning", NeurIPS 2022,
        Theorem 8 and eq. (11).
    """

    learning_rate: Rate = number(default=0.1, least=0)
    rule: Literal["ratio", "drop", "koloskova"] = static(default="ratio")
    threshold: Number | None = number(default=None, above=0)
    smoothness: Number | None = number(default=None, above=0)

    requires = Delivery.CONTINUOUS
    accepts = Delivery.STALE | Delivery.CONTINUOUS
    single = True
    bounded = True
    references = ("mishchenko2022", "koloskova2022")

    def check(self, clock: Clock, client: Client, num_clients: int) -> None:
        if (self.rule == "koloskova") != (self.smoothness is not None):
            given = f"rule={self.rule!r}, smoothness={self.smoothness}"
            raise ValueError(f"delay_adaptive: got {given}; give a smoothness L with rule='koloskova', and only then")

    def prepare(self, clock: Clock, client: Client, counts: np.ndarray, seed: int) -> tuple[delay_adaptive, Client]:
        if self.threshold is not None:
            return self, client
        return dataclasses.replace(self, threshold=float(clock.in_flight(len(counts)))), client

    def rate(self, arrivals: Arrivals) -> Array:
        tau = arrivals.staleness[0].astype(arrivals.loss.dtype)
        rate = jnp.asarray(self.learning_rate, tau.dtype)
        late = jnp.maximum(tau, 1)  # avoids 1 / 0: a fresh update never exceeds the threshold
        threshold = jnp.asarray(self.threshold, tau.dtype)
        reduced = {"ratio": rate * threshold / late, "drop": jnp.zeros_like(rate)}
        if self.smoothness is not None:
            reduced["koloskova"] = jnp.minimum(rate, 1 / (4 * self.smoothness * late))
        return jnp.where(tau <= threshold, rate, reduced[self.rule])

    def weigh(self, arrivals: Arrivals) -> Array:
        return jnp.where(self.rate(arrivals) > 0, counts(arrivals), 0)
