"""QuAFL, averaging between server and clients at every contact."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from jaxafl.client import Client
from jaxafl.clock.contract import Delivery
from jaxafl.device import weighted_sum
from jaxafl.options import static
from jaxafl.server.contract import Arrivals, Needs, Outcome, Server, Tree, counts


class quafl(Server):
    """QuAFL without quantiser: server and clients average with each other at every contact.

    p = 1/(s + 1); each contacted client has executed h_i = min(K, steps that fit) local steps from its OWN model, which
    yields x_i; x ← p x + (1 - p) mean_i x_i; then x_i ← p x_old + (1 - p) x_i. Keeps a model per client.

    Args:
        scale_local_rate: multiply the clients' learning rate, a number, by 1/(1 - p), as in the authors' code.

    References:
        Zakerinia et al., "Communication-efficient federated learning with data and client heterogeneity", 2022.
    """

    scale_local_rate: bool = static(default=False)

    requires = Delivery.PARTIAL
    accepts = Delivery.STALE | Delivery.PULLED
    references = ("zakerinia2022",)
    needs = Needs(client_models=True)

    def prepare(self, clock: Any, client: Client, counts: np.ndarray, seed: int) -> tuple[Server, Client]:
        if not self.scale_local_rate:
            return self, client
        rate = client.hyperparameters["learning_rate"] * ((clock.contacted + 1) / clock.contacted)
        return self, dataclasses.replace(client, hyperparameters=client.hyperparameters | {"learning_rate": rate})

    def update(self, params: Tree, state: tuple[()], arrivals: Arrivals) -> Outcome:
        weights = counts(arrivals)
        p = 1 / (arrivals.mask.shape[0] + 1)
        models = jax.tree.map(lambda s, d: s + d, arrivals.base, arrivals.delta)
        average = weighted_sum(weights / weights.sum(), models)
        new = jax.tree.map(lambda x, y: p * x + (1 - p) * y, params, average)
        mixed = jax.tree.map(lambda x, y: p * x[None] + (1 - p) * y, params, models)
        return Outcome(new, state, {}, client_params=mixed, weights=(1 - p) * weights / weights.sum(), kept=p)
