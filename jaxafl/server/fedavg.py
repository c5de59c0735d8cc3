"""FedAvg."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from jaxafl.checks import check_choice, check_number
from jaxafl.pytrees import pytree, static
from jaxafl.server.contract import Arrivals, Needs, Tree, Update, counts, weighted_sum

Array = jax.Array


@pytree
class FedAvg:
    """See `fedavg`."""

    learning_rate: Any = 1.0
    weights: str = static(default="samples")

    name: ClassVar[str] = "fedavg"
    clocks: ClassVar[frozenset[str]] = frozenset({"synchronous", "bernoulli"})
    references: ClassVar[tuple[str, ...]] = ("mcmahan2017",)
    needs: ClassVar[Needs] = Needs()

    def check(self, clock: Any, client: Any, num_clients: int) -> None:
        check_number("fedavg", "learning_rate", self.learning_rate, least=0)
        check_choice("fedavg", "weights", self.weights, ("samples", "uniform"))

    def init(self, params: Tree, samples: Array) -> optax.OptState:
        return optax.sgd(self.learning_rate).init(params)

    def update(self, params: Tree, state: optax.OptState, arrivals: Arrivals) -> Update:
        weights = counts(arrivals) * (arrivals.samples if self.weights == "samples" else 1)
        weights = weights / jnp.maximum(jnp.sum(weights), 1)
        step, state = optax.sgd(self.learning_rate).update(weighted_sum(-weights, arrivals.delta), state, params)
        return Update(optax.apply_updates(params, step), state, {})


def fedavg(learning_rate: Any = 1.0, weights: str = "samples") -> FedAvg:
    """Federated averaging: x ← x + η Σ_i w_i Δ_i over the cohort.

    With η = 1 this is x ← Σ w_i x_i^K. FedProx is `fedavg` with `Client(proximal=μ)`. AsyncFedED's eq. (38) divides
    once more by the size of the cohort; that is a slip and is not done here.

    Args:
        learning_rate: η >= 0.
        weights: `"samples"`: w_i = n_i / Σ n over the cohort; `"uniform"`: all equal.

    References:
        McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017;
        Li et al., "Federated optimization in heterogeneous networks" (FedProx), MLSys 2020.
    """
    return FedAvg(learning_rate, weights)
