"""FedNova, normalised averaging of runs of unequal length."""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
import optax

from jaxafl.client import Client
from jaxafl.clock.contract import Clock, Delivery
from jaxafl.options import number, static
from jaxafl.server.contract import Array, Arrivals, counts, shares
from jaxafl.server.fedopt import OptaxServer
from jaxafl.server.scheduled import Rate


class fednova(OptaxServer):
    """FedNova: x ← x + η τ_eff Σ_i p_i Δ_i / K_i with τ_eff = Σ_i p_i K_i, over the cohort.

    K_i is the number of local steps of a run. A run counts by its mean step, so a client with more steps does not pull
    the model towards its own optimum. With equal K_i it is `fedavg`. The formula is our reading of the paper for
    clients with plain SGD at a rate that is constant within a run.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.
        weights: weights p_i of the updates. `"samples"`: p_i = n_i / Σ n over the cohort. `"uniform"`: all equal.

    References:
        Wang et al., "Tackling the objective inconsistency problem in heterogeneous federated optimization", NeurIPS
        2020.
    """

    learning_rate: Rate = number(default=1.0, least=0)
    weights: Literal["samples", "uniform"] = static(default="samples")

    accepts = Delivery.MULTIPLE
    references = ("wang2020fednova",)

    def check(self, clock: Clock, client: Client, num_clients: int) -> None:
        changes = [getattr(client, name) for name in ("proximal", "step_schedule", "rate_schedule")]
        plain = client.optimizer is optax.sgd and set(client.hyperparameters) == {"learning_rate"}
        if not plain or any(change is not None for change in changes):
            way = "Client(optax.sgd, learning_rate=...) without momentum, proximal term or schedule of a run's rate"
            raise ValueError(f"fednova: {client} is not plain SGD; give {way}")

    def weigh(self, arrivals: Arrivals) -> Array:
        p = shares(counts(arrivals) * (arrivals.samples if self.weights == "samples" else 1))
        steps = arrivals.local_steps.astype(p.dtype)
        return jnp.sum(p * steps) * p / jnp.maximum(steps, 1)
