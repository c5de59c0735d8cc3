"""FedAdagrad, FedAdam and FedYogi: adaptive server steps on the mean update of a cohort."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxafl.clock.contract import Delivery
from jaxafl.options import Number, number
from jaxafl.server.contract import Array, Tree
from jaxafl.server.fedopt import OptaxServer
from jaxafl.server.scheduled import Rate


class Moments(NamedTuple):
    """Server state."""

    mean: Tree  # m, as the parameters
    square: Tree  # v, as the parameters


class _Adaptive(OptaxServer):
    """x ← x + η m / (√v + ε) with m = β1 m + (1 - β1) D and v by `second_moment`; no bias correction, v_0 = ε²."""

    accepts = Delivery.MULTIPLE
    references = ("reddi2021",)

    learning_rate: Rate = number(default=0.1, least=0)
    b1: Number = number(default=0.9, least=0, below=1)

    def second_moment(self, v: Array, square: Array) -> Any:
        """Returns v_{t+1} from v_t and D²."""
        raise NotImplementedError(f"the server {self.name} has no second_moment(v, square)")

    def optimizer_of(self, rate: Number) -> optax.GradientTransformation:
        eps = self.eps  # type: ignore[attr-defined]

        def init(params: Tree) -> Moments:
            square = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.square(eps).astype(leaf.dtype)), params)
            return Moments(jax.tree.map(jnp.zeros_like, params), square)

        def update(gradient: Tree, state: Moments, params: Tree = None) -> tuple[Tree, Moments]:
            mean = jax.tree.map(lambda m, g: self.b1 * m - (1 - self.b1) * g, state.mean, gradient)
            square = jax.tree.map(lambda v, g: self.second_moment(v, jnp.square(g)), state.square, gradient)
            step = jax.tree.map(lambda m, v: self.learning_rate * m / (jnp.sqrt(v) + eps), mean, square)
            return step, Moments(mean, square)

        return optax.GradientTransformation(init, update)


class fedadagrad(_Adaptive):
    """FedAdagrad: an adaptive server step on the mean update of a cohort.

    D = (1/n) Σ Δ_i; m = β1 m + (1 - β1) D; v = v + D²; x ← x + η m / (√v + ε), with m_0 = 0 and
    v_0 = ε². No bias correction; cohort members are averaged without weights.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.
        b1: decay β1 of the first moment, in [0, 1).
        eps: constant ε > 0 in the denominator, the paper's degree of adaptivity τ. A smaller value adapts more.

    References:
        Reddi et al., "Adaptive federated optimization", ICLR 2021, Algorithm 2.
    """

    eps: Number = number(default=1e-3, above=0)

    def second_moment(self, v: Array, square: Array) -> Any:
        return v + square


class fedadam(_Adaptive):
    """FedAdam: an adaptive server step on the mean update of a cohort.

    D = (1/n) Σ Δ_i; m = β1 m + (1 - β1) D; v = β2 v + (1 - β2) D²; x ← x + η m / (√v + ε), with m_0 = 0 and
    v_0 = ε². No bias correction; cohort members are averaged without weights.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.
        b1: decay β1 of the first moment, in [0, 1).
        b2: decay β2 of the second moment, in [0, 1).
        eps: constant ε > 0 in the denominator, the paper's degree of adaptivity τ. A smaller value adapts more.

    References:
        Reddi et al., "Adaptive federated optimization", ICLR 2021, Algorithm 2.
    """

    b2: Number = number(default=0.99, least=0, below=1)
    eps: Number = number(default=1e-3, above=0)

    def second_moment(self, v: Array, square: Array) -> Any:
        return self.b2 * v + (1 - self.b2) * square


class fedyogi(fedadam):
    """FedYogi: an adaptive server step on the mean update of a cohort.

    D = (1/n) Σ Δ_i; m = β1 m + (1 - β1) D; v = v - (1 - β2) D² sign(v - D²); x ← x + η m / (√v + ε), with m_0 = 0 and
    v_0 = ε². No bias correction; cohort members are averaged without weights.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.
        b1: decay β1 of the first moment, in [0, 1).
        b2: decay β2 of the second moment, in [0, 1).
        eps: constant ε > 0 in the denominator, the paper's degree of adaptivity τ. A smaller value adapts more.

    References:
        Reddi et al., "Adaptive federated optimization", ICLR 2021, Algorithm 2.
    """

    def second_moment(self, v: Array, square: Array) -> Any:
        return v - (1 - self.b2) * square * jnp.sign(v - square)
