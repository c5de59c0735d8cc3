"""AsySG."""

from __future__ import annotations

from typing import Any, ClassVar

import jax

from jaxafl.checks import check_number
from jaxafl.pytrees import pytree
from jaxafl.server.contract import Arrivals, Needs, Tree, Update, check_gradients, mean_delta

Array = jax.Array


@pytree
class AsySG:
    """See `asysg`."""

    learning_rate: Any

    name: ClassVar[str] = "asysg"
    clocks: ClassVar[frozenset[str]] = frozenset({"free_running"})
    references: ClassVar[tuple[str, ...]] = ("lian2015",)
    needs: ClassVar[Needs] = Needs()

    def check(self, clock: Any, client: Any, num_clients: int) -> None:
        check_number("asysg", "learning_rate", self.learning_rate, least=0)
        check_gradients("asysg", client, full_batch=False)

    def init(self, params: Tree, samples: Array) -> tuple[()]:
        return ()

    def update(self, params: Tree, state: tuple[()], arrivals: Arrivals) -> Update:
        params = jax.tree.map(lambda x, d: x + self.learning_rate * d, params, mean_delta(arrivals))
        return Update(params, state, {})


def asysg(learning_rate: Any = 0.1) -> AsySG:
    """Asynchronous parallel stochastic gradient: x ← x - η · mean over the n arrivals of ∇f_i(x_s).

    One mini-batch gradient per run and no local rate: `Client(optax.sgd, learning_rate=1.0, steps=1)`, so that Δ = -∇f.

    Args:
        learning_rate: η >= 0.

    References:
        Lian et al., "Asynchronous parallel stochastic gradient for nonconvex optimization", NeurIPS 2015; the IID
        baseline of DeFedAvg.
    """
    return AsySG(learning_rate)
