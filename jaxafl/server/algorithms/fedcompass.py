"""FedCompass, a discounted sum over groups of clients that arrive together."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxafl.client import Client
from jaxafl.clock.contract import Clock, Delivery
from jaxafl.options import number, recording
from jaxafl.server.contract import Array, Arrivals, counts
from jaxafl.server.fedopt import Discounted
from jaxafl.server.scheduled import Rate


class fedcompass(Discounted):
    """FedCompass: x ← x + (η/N) Σ_i s(τ_i) Δ_i over the updates of a group and the general buffer.

    Each of the N clients arrives at most once. The paper's groups are formed by `compass`, which also chooses the local
    steps. Checked against the authors' code.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.
        staleness: discount s of stale updates, see `jaxafl.server.fedopt.Discounting`; the code has (1 + τ)^(-1/2).
        exponent: exponent or slope a; at least 0. `None`: 1/2, and 10 for `hinge`.
        threshold: largest staleness b that `hinge` does not discount; at least 0.

    References:
        Li et al., "FedCompass: Efficient cross-silo federated learning on heterogeneous client devices using a
        computing power aware scheduler", ICLR 2024.
    """

    learning_rate: Rate = number(default=0.9, least=0)
    clients: Any = recording(default=None)  # N

    accepts = Delivery.STALE | Delivery.CONTINUOUS
    references = ("li2024",)

    def prepare(self, clock: Clock, client: Client, counts: np.ndarray, seed: int) -> tuple[fedcompass, Client]:
        return dataclasses.replace(self, clients=float(len(counts))), client

    def weigh(self, arrivals: Arrivals) -> Array:
        times = counts(arrivals)
        return self.discounted(arrivals, times) / jnp.asarray(self.clients, times.dtype)
