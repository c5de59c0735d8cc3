"""Servers with adaptive steps: FedAdagrad, FedAdam, FedYogi, and FADAS and FedAMS with AMSGrad."""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from jaxafl.clock.contract import Delivery
from jaxafl.options import Number, number, static
from jaxafl.server.contract import Array, Arrivals, Tree
from jaxafl.server.fedopt import OptaxServer
from jaxafl.server.scheduled import Rate

Correction = Literal["none", "authors", "optax"]


class _Adaptive(OptaxServer):
    """x ← x + η m / (√v + ε) with m = β1 m + (1 - β1) D and v by `second_moment`; no bias correction, v_0 = ε².

    The state is (m, v), as the parameters.
    """

    accepts = Delivery.MULTIPLE
    references = ("reddi2021",)

    learning_rate: Rate = number(default=0.1, least=0)
    b1: Number = number(default=0.9, least=0, below=1)

    def second_moment(self, v: Array, square: Array) -> Any:
        """Returns v_{t+1} from v_t and D²."""
        raise NotImplementedError(f"the server {self.name} has no second_moment(v, square)")

    def optimizer_of(self, rate: Number) -> optax.GradientTransformation:
        eps = self.eps  # type: ignore[attr-defined]

        def init(params: Tree) -> tuple[Tree, Tree]:
            square = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.square(eps).astype(leaf.dtype)), params)
            return optax.tree.zeros_like(params), square

        def update(gradient: Tree, state: tuple[Tree, Tree], params: Tree = None) -> tuple[Tree, tuple[Tree, Tree]]:
            mean = jax.tree.map(lambda m, g: self.b1 * m - (1 - self.b1) * g, state[0], gradient)
            square = jax.tree.map(lambda v, g: self.second_moment(v, jnp.square(g)), state[1], gradient)
            step = jax.tree.map(lambda m, v: rate * m / (jnp.sqrt(v) + eps), mean, square)
            return step, (mean, square)

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


class _AMSGrad(OptaxServer):
    """Base of servers with x ← x + η_t m / (√v̂ + ε) on the mean update, computed by `scale_by_amsgrad`."""

    learning_rate: Rate = number(default=1e-3, least=0)
    b1: Number = number(default=0.9, least=0, below=1)
    b2: Number = number(default=0.99, least=0, below=1)
    eps: Number = number(default=1e-8, least=0)
    bias_correction: Correction = static(default="none")

    def optimizer_of(self, rate: Number) -> optax.GradientTransformation:
        direction = scale_by_amsgrad(self.b1, self.b2, self.eps, self.bias_correction, getattr(self, "max_init", 0.0))
        down = optax.stateless_with_tree_map(lambda leaf, _: -jnp.asarray(rate, leaf.dtype) * leaf)
        return optax.chain(direction, down)


class fadas(_AMSGrad):
    """FADAS: an AMSGrad step on the mean update of a buffer of M arrivals.

    D = (1/M) Σ Δ_i; m = β1 m + (1 - β1) D; v = β2 v + (1 - β2) D²; v̂ = max(v̂, v); x ← x + η_t m / (√v̂ + ε), all from
    0.

    With τ_max the largest staleness in the buffer, the delay-adaptive rate is η if τ_max <= τ_c. Otherwise it is
    min(η, 1/τ_max) for `delay_scaling="eq4"` (without effect before τ_max = 333 if η <= 3e-3), or η/τ_max for `"eq77"`
    (used in the paper's experiments).

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.
        b1: decay β1 of the first moment, in [0, 1).
        b2: decay β2 of the second moment, in [0, 1).
        eps: constant ε in the denominator; at least 0.
        bias_correction: bias correction of the moments. `"none"`: as in the paper. `"authors"`: as in the authors'
            code, (m / (1 - β1^k)) / (√v̂ / √(1 - β2^k) + ε) at the k-th step, AFTER the maximum. `"optax"`: as in Optax,
            before the maximum.
        delay_scaling: reduction of the rate by staleness. `"eq4"`: min(η, 1/τ_max). `"eq77"`: η/τ_max. `None`: no
            reduction.
        tau_c: largest staleness τ_c without reduction of the rate; at least 0. The value of the paper's tables is
            unpublished; 8 is best in its Figure 1a.

    References:
        Wang et al., "FADAS: Towards federated adaptive asynchronous optimization", ICML 2024, Algorithm 1, eqs. (4) and
        (77).
    """

    delay_scaling: Literal["eq4", "eq77"] | None = static(default=None)
    tau_c: Number = number(default=1.0, least=0)

    buffer = 10
    references = ("wang2024fadas",)

    def rate(self, arrivals: Arrivals) -> Array:
        worst = jnp.max(jnp.where(arrivals.mask, arrivals.staleness, 0)).astype(arrivals.loss.dtype)
        rate = jnp.asarray(self.learning_rate, worst.dtype)
        if self.delay_scaling is None:
            return rate
        # avoids 1 / 0: a staleness of 0 never exceeds the threshold, so its reduced rate is not used
        safe = jnp.maximum(worst, 1)
        reduced = jnp.minimum(rate, 1 / safe) if self.delay_scaling == "eq4" else rate / safe
        return jnp.where(worst <= self.tau_c, rate, reduced)


class fedams(_AMSGrad):
    """FedAMS: FADAS's AMSGrad step on a synchronous cohort.

    D = (1/n) Σ Δ_i; m = β1 m + (1 - β1) D; v = β2 v + (1 - β2) D²; v̂ = max(v̂, v); x ← x + η m / (√v̂ + ε), with v̂_0
    = max_init.

    Args:
        learning_rate: server learning rate η; at least 0, or an Optax schedule of server steps.
        b1: decay β1 of the first moment, in [0, 1).
        b2: decay β2 of the second moment, in [0, 1).
        eps: constant ε in the denominator; at least 0.
        bias_correction: bias correction of the moments. `"none"`: as in the paper. `"authors"`: as in the authors'
            code, AFTER the maximum (formula in `fadas`). `"optax"`: as in Optax, before the maximum.
        max_init: initial value v̂_0 of the running maximum, which never falls below it; at least 0. The authors' code
            uses 1e-3 with ε = 0.

    References:
        Wang et al., "Communication-efficient adaptive federated learning", ICML 2022.
    """

    max_init: Number = number(default=0.0, least=0)

    accepts = Delivery.MULTIPLE
    references = ("wang2022fedams",)


def scale_by_amsgrad(
    b1: Number, b2: Number, eps: Number, bias_correction: Correction, max_init: Number
) -> optax.GradientTransformation:
    """Returns `optax.scale_by_amsgrad` with the bias corrections of `fadas` and a running maximum from `max_init` on.

    Args:
        b1, b2, eps: decays of the moments, and the constant in the denominator.
        bias_correction: `"none"`, `"authors"` or `"optax"`, see `fadas`.
        max_init: initial value v̂_0 of the running maximum.
    """
    corrected = bias_correction == "optax"
    amsgrad = optax.scale_by_amsgrad(b1, b2, eps, bias_correction_mu=corrected, bias_correction_nu=corrected)

    def init(params: Tree) -> Any:
        state = amsgrad.init(params)
        # the running maximum starts at its floor and never falls below it
        return state._replace(nu_max=jax.tree.map(lambda leaf: jnp.full_like(leaf, max_init), state.nu_max))

    def update(gradient: Tree, state: Any, params: Tree = None) -> tuple[Tree, Any]:
        direction, state = amsgrad.update(gradient, state, params)
        if bias_correction == "authors":
            count = state.count.astype(jnp.result_type(float))
            first = 1 - b1**count
            second = jnp.sqrt(1 - b2**count)
            direction = jax.tree.map(lambda m, v: (m / first) / (jnp.sqrt(v) / second + eps), state.mu, state.nu_max)
        return direction, state

    return optax.GradientTransformation(init, update)
