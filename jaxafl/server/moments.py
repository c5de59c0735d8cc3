"""The step that FedAdagrad, FedAdam and FedYogi share; they differ in the second moment only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.checks import check_decay, check_number
from jaxafl.pytrees import pytree, static
from jaxafl.server.contract import Arrivals, Needs, Tree, Update, mean_delta

Array = jax.Array


class Moments(NamedTuple):
    """Server state."""

    mean: Tree  # m, as the parameters
    square: Tree  # v, as the parameters


@pytree
class AdaptiveServer:
    """x ← x + η m / (√v + ε) with m = β1 m + (1 - β1) D and v by `second_moment`; see `fedadam`."""

    learning_rate: Any
    b1: Any
    b2: Any
    eps: Any
    name: str = static(default="")
    second_moment: Callable[[Array, Array, Any], Array] = static(default=None)

    clocks: ClassVar[frozenset[str]] = frozenset({"synchronous"})
    references: ClassVar[tuple[str, ...]] = ("reddi2021",)
    needs: ClassVar[Needs] = Needs()

    def check(self, clock: Any, client: Any, num_clients: int) -> None:
        check_number(self.name, "learning_rate", self.learning_rate, least=0)
        check_decay(self.name, "b1", self.b1)
        check_decay(self.name, "b2", self.b2)
        check_number(self.name, "eps", self.eps, above=0)

    def init(self, params: Tree, samples: Array) -> Moments:
        square = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.square(self.eps).astype(leaf.dtype)), params)
        return Moments(jax.tree.map(jnp.zeros_like, params), square)

    def update(self, params: Tree, state: Moments, arrivals: Arrivals) -> Update:
        delta = mean_delta(arrivals)
        mean = jax.tree.map(lambda m, d: self.b1 * m + (1 - self.b1) * d, state.mean, delta)
        square = jax.tree.map(lambda v, d: self.second_moment(v, jnp.square(d), self.b2), state.square, delta)
        params = jax.tree.map(
            lambda x, m, v: x + self.learning_rate * m / (jnp.sqrt(v) + self.eps), params, mean, square
        )
        return Update(params, Moments(mean, square), {})
