"""FedAMS."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from jaxafl.checks import check_number
from jaxafl.pytrees import pytree, static
from jaxafl.server.contract import Arrivals, Needs, Tree, Update
from jaxafl.server.fadas import FADAS

Array = jax.Array


@pytree
class FedAMS:
    """See `fedams`."""

    learning_rate: Any
    b1: Any
    b2: Any
    eps: Any
    max_init: Any
    bias_correction: str = static(default="none")

    name: ClassVar[str] = "fedams"
    clocks: ClassVar[frozenset[str]] = frozenset({"synchronous"})
    references: ClassVar[tuple[str, ...]] = ("wang2022fedams",)
    needs: ClassVar[Needs] = Needs()

    def check(self, clock: Any, client: Any, num_clients: int) -> None:
        check_number("fedams", "max_init", self.max_init, least=0)
        self._step().check(clock, client, num_clients)

    def init(self, params: Tree, samples: Array) -> optax.OptState:
        state: Any = self._step().init(params, samples)
        # the running maximum starts at its floor and never falls below it
        return state._replace(nu_max=jax.tree.map(lambda leaf: jnp.full_like(leaf, self.max_init), state.nu_max))

    def update(self, params: Tree, state: optax.OptState, arrivals: Arrivals) -> Update:
        return self._step().update(params, state, arrivals)

    def _step(self) -> FADAS:
        return FADAS(self.learning_rate, self.b1, self.b2, self.eps, 0.0, self.bias_correction)


def fedams(
    learning_rate: Any = 1e-3,
    b1: Any = 0.9,
    b2: Any = 0.99,
    eps: Any = 1e-8,
    bias_correction: str = "none",
    max_init: Any = 0.0,
) -> FedAMS:
    """FedAMS: FADAS's AMSGrad step on a synchronous cohort.

    D = (1/n) Σ Δ_i; m = β1 m + (1 - β1) D; v = β2 v + (1 - β2) D²; v̂ = max(v̂, v); x ← x + η m / (√v̂ + ε), with v̂_0
    = max_init.

    Args:
        learning_rate: η >= 0.
        b1: β1 in [0, 1).
        b2: β2 in [0, 1).
        eps: ε >= 0.
        bias_correction: as in `fadas`; the authors' code corrects (`"authors"`).
        max_init: v̂_0, which is also the floor of v̂ (1e-3 in the authors' code, with ε = 0).

    References:
        Wang et al., "Communication-efficient adaptive federated learning", ICML 2022.
    """
    return FedAMS(learning_rate, b1, b2, eps, max_init, bias_correction)
