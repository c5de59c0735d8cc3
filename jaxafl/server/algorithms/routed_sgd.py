"""Generalized AsyncSGD, which divides updates by the probabilities of their clients."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxafl.client import Client
from jaxafl.clock.contract import Delivery
from jaxafl.options import number, recording
from jaxafl.server.contract import Array, Arrivals, counts
from jaxafl.server.fedopt import OptaxServer
from jaxafl.server.scheduled import Rate


class routed_sgd(OptaxServer):
    """Generalized AsyncSGD: x ← x + η/(N p_i) Δ_i for the update of client i, to which a task is sent with p_i.

    The division makes the mean step unbiased, however often a client is chosen. `routed` gives the probabilities p_i.
    The paper takes one gradient per task: `Client(optax.sgd, learning_rate=1.0, steps=1)`, so that Δ_i = -∇f_i.
    Several local steps are our extension. Uniform p_i give asynchronous SGD.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.

    References:
        Leconte, Jonckheere, Samsonov & Moulines, "Queuing dynamics of asynchronous federated learning", AISTATS 2024.
        The rule follows the abstract.
    """

    learning_rate: Rate = number(default=0.1, least=0)
    table: Any = recording(default=None)  # float [N], N p_i

    requires = Delivery.QUEUED
    accepts = Delivery.STALE | Delivery.CONTINUOUS
    references = ("leconte2024",)

    def prepare(self, clock: Any, client: Client, counts: np.ndarray, seed: int) -> tuple[routed_sgd, Client]:
        return dataclasses.replace(self, table=len(counts) * clock.table(len(counts))), client

    def weigh(self, arrivals: Arrivals) -> Array:
        return counts(arrivals) / jnp.asarray(self.table, arrivals.samples.dtype)[arrivals.client]
