"""FedBuff."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from jaxafl.checks import check_choice, check_decay, check_number
from jaxafl.pytrees import pytree, static
from jaxafl.server.contract import Arrivals, Needs, Tree, Update, counts, weighted_sum

Array = jax.Array


@pytree
class FedBuff:
    """See `fedbuff`."""

    learning_rate: Any = 1.0
    momentum: Any = None
    staleness: str = static(default="none")
    reduce: str = static(default="mean")

    name: ClassVar[str] = "fedbuff"
    clocks: ClassVar[frozenset[str]] = frozenset({"synchronous", "free_running", "bernoulli", "stale_rounds"})
    references: ClassVar[tuple[str, ...]] = ("nguyen2022",)
    needs: ClassVar[Needs] = Needs()

    def check(self, clock: Any, client: Any, num_clients: int) -> None:
        check_number("fedbuff", "learning_rate", self.learning_rate, least=0)
        if self.momentum is not None:
            check_decay("fedbuff", "momentum", self.momentum)
        check_choice("fedbuff", "staleness", self.staleness, ("none", "polynomial"))
        check_choice("fedbuff", "reduce", self.reduce, ("mean", "sum"))

    def init(self, params: Tree, samples: Array) -> optax.OptState:
        return optax.sgd(self.learning_rate, self.momentum).init(params)

    def update(self, params: Tree, state: optax.OptState, arrivals: Arrivals) -> Update:
        weights = counts(arrivals)
        total = jnp.maximum(jnp.sum(weights), 1)
        if self.staleness == "polynomial":
            weights = weights / jnp.sqrt(1 + arrivals.staleness.astype(weights.dtype))
        if self.reduce == "mean":
            weights = weights / total
        step, state = optax.sgd(self.learning_rate, self.momentum).update(
            weighted_sum(-weights, arrivals.delta), state, params
        )
        return Update(optax.apply_updates(params, step), state, {})


def fedbuff(learning_rate: Any = 1.0, staleness: str = "none", momentum: Any = None, reduce: str = "mean") -> FedBuff:
    """FedBuff: x ← x + η D with D = (1/M) Σ s(τ_i) Δ_i over a buffer of M arrivals.

    Args:
        learning_rate: η >= 0.
        staleness: `"none"`: s = 1 (as FADAS and DeFedAvg use it); `"polynomial"`: s = 1/√(1 + τ) (the original).
        momentum: β in [0, 1) of a server momentum m ← βm + D, x ← x + ηm; `None` for none.
        reduce: `"mean"` divides by M, `"sum"` does not.

    References:
        Nguyen et al., "Federated learning with buffered asynchronous aggregation", AISTATS 2022.
    """
    return FedBuff(learning_rate, momentum, staleness, reduce)
