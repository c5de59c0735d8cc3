"""QuAFL."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import numpy as np

from jaxafl.checks import check_flag
from jaxafl.pytrees import pytree, static
from jaxafl.server.contract import Arrivals, Needs, Tree, Update, counts, weighted_sum

Array = jax.Array


@pytree
class QuAFL:
    """See `quafl`."""

    scale_local_rate: bool = static(default=False)
    contacted: int = static(default=0)

    name: ClassVar[str] = "quafl"
    clocks: ClassVar[frozenset[str]] = frozenset({"interrupting"})
    references: ClassVar[tuple[str, ...]] = ("zakerinia2022",)

    @property
    def needs(self) -> Needs:
        scaled = self.scale_local_rate and self.contacted
        local_rate = (self.contacted + 1) / self.contacted if scaled else 1.0
        return Needs(client_models=True, prepares=True, local_rate=local_rate)

    def check(self, clock: Any, client: Any, num_clients: int) -> None:
        check_flag("quafl", "scale_local_rate", self.scale_local_rate)
        if self.scale_local_rate and "learning_rate" not in client.hyperparameters:
            raise ValueError(
                "quafl: scale_local_rate multiplies learning_rate, so give the client's learning_rate as a number"
            )

    def prepare(self, clock: Any, local_steps: np.ndarray, num_clients: int, seed: int) -> QuAFL:
        """The same server with s."""
        return dataclasses.replace(self, contacted=clock.contacted)

    def init(self, params: Tree, samples: Array) -> tuple[()]:
        return ()

    def update(self, params: Tree, state: tuple[()], arrivals: Arrivals) -> Update:
        weights = counts(arrivals)
        p = 1 / (arrivals.mask.shape[0] + 1)
        models = jax.tree.map(lambda s, d: s + d, arrivals.start, arrivals.delta)
        average = weighted_sum(weights / weights.sum(), models)
        new = jax.tree.map(lambda x, y: p * x + (1 - p) * y, params, average)
        own = jax.tree.map(lambda x, y: p * x[None] + (1 - p) * y, params, models)
        return Update(new, state, {}, client_params=own)


def quafl(scale_local_rate: bool = False) -> QuAFL:
    """QuAFL without quantiser: server and clients average with each other at every contact.

    p = 1/(s + 1); each contacted client has made h_i = min(K, steps that fit) local steps from its OWN model, which
    gives x_i; x ← p x + (1 - p) mean_i x_i; then x_i ← p x_old + (1 - p) x_i. Keeps a model per client.

    Args:
        scale_local_rate: multiply the clients' learning rate by 1/(1 - p), as the authors' code does.

    References:
        Zakerinia et al., "Communication-efficient federated learning with data and client heterogeneity", 2022.
    """
    return QuAFL(scale_local_rate)
