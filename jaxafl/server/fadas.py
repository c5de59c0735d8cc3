"""FADAS."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from jaxafl.checks import check_choice, check_decay, check_number
from jaxafl.pytrees import pytree, static
from jaxafl.server.contract import Arrivals, Needs, Tree, Update, mean_delta

Array = jax.Array


@pytree
class FADAS:
    """See `fadas`."""

    learning_rate: Any = 1e-3
    b1: Any = 0.9
    b2: Any = 0.99
    eps: Any = 1e-8
    tau_c: Any = 1.0
    bias_correction: str = static(default="none")
    delay_scaling: str | None = static(default=None)

    name: ClassVar[str] = "fadas"
    clocks: ClassVar[frozenset[str]] = frozenset({"synchronous", "free_running", "bernoulli", "stale_rounds"})
    references: ClassVar[tuple[str, ...]] = ("wang2024fadas",)
    needs: ClassVar[Needs] = Needs()

    def check(self, clock: Any, client: Any, num_clients: int) -> None:
        check_number("fadas", "learning_rate", self.learning_rate, least=0)
        check_decay("fadas", "b1", self.b1)
        check_decay("fadas", "b2", self.b2)
        check_number("fadas", "eps", self.eps, least=0)
        check_number("fadas", "tau_c", self.tau_c, least=0)
        check_choice("fadas", "bias_correction", self.bias_correction, ("none", "authors", "optax"))
        check_choice("fadas", "delay_scaling", self.delay_scaling, (None, "eq4", "eq77"))

    def init(self, params: Tree, samples: Array) -> optax.OptState:
        return self._amsgrad().init(params)

    def update(self, params: Tree, state: optax.OptState, arrivals: Arrivals) -> Update:
        gradient = jax.tree.map(jnp.negative, mean_delta(arrivals))
        direction, state = self._amsgrad().update(gradient, state, params)
        if self.bias_correction == "authors":
            direction = self._corrected_after_the_maximum(state)
        worst = jnp.max(jnp.where(arrivals.mask, arrivals.staleness, 0)).astype(arrivals.loss.dtype)
        rate = self._rate(worst)
        params = jax.tree.map(lambda x, d: x - rate.astype(x.dtype) * d, params, direction)
        return Update(params, state, {"server_rate": rate})

    def _amsgrad(self) -> optax.GradientTransformation:
        corrected = self.bias_correction == "optax"
        return optax.scale_by_amsgrad(
            self.b1, self.b2, self.eps, bias_correction_mu=corrected, bias_correction_nu=corrected
        )

    def _corrected_after_the_maximum(self, state: Any) -> Tree:
        count = state.count.astype(jnp.result_type(float))
        first, second = 1 - self.b1**count, jnp.sqrt(1 - self.b2**count)
        return jax.tree.map(lambda m, v: (m / first) / (jnp.sqrt(v) / second + self.eps), state.mu, state.nu_max)

    def _rate(self, worst: Array) -> Array:
        rate = jnp.asarray(self.learning_rate, worst.dtype)
        if self.delay_scaling is None:
            return rate
        safe = jnp.maximum(
            worst, 1
        )  # only a staleness of 0 is raised, where a threshold of at least 0 never divides by it
        reduced = jnp.minimum(rate, 1 / safe) if self.delay_scaling == "eq4" else rate / safe
        return jnp.where(worst <= self.tau_c, rate, reduced)


def fadas(
    learning_rate: Any = 1e-3,
    b1: Any = 0.9,
    b2: Any = 0.99,
    eps: Any = 1e-8,
    bias_correction: str = "none",
    delay_scaling: str | None = None,
    tau_c: Any = 1.0,
) -> FADAS:
    """FADAS: an AMSGrad step on the mean update of a buffer of M arrivals.

    D = (1/M) Σ Δ_i; m = β1 m + (1 - β1) D; v = β2 v + (1 - β2) D²; v̂ = max(v̂, v); x ← x + η_t m / (√v̂ + ε), all from
    0.

    With τ_max the largest staleness in the buffer, the delay-adaptive rate is η if τ_max <= τ_c, else min(η, 1/τ_max)
    for `delay_scaling="eq4"` (for η <= 3e-3 it never acts before τ_max = 333) or η/τ_max for `"eq77"` (what the
    experiments used).

    Args:
        learning_rate: η >= 0.
        b1: β1 in [0, 1).
        b2: β2 in [0, 1).
        eps: ε >= 0.
        bias_correction: `"none"` (the paper); `"authors"` (their code): (m / (1 - β1^k)) / (√v̂ / √(1 - β2^k) + ε) at
            the k-th step, the correction AFTER the maximum; `"optax"`: Optax's default, before it.
        delay_scaling: `None`, `"eq4"` or `"eq77"`.
        tau_c: τ_c >= 0 (unpublished for the paper's tables; 8 is best in its Figure 1a).

    References:
        Wang et al., "FADAS: Towards federated adaptive asynchronous optimization", ICML 2024, Algorithm 1, eqs. (4) and
        (77).
    """
    return FADAS(learning_rate, b1, b2, eps, tau_c, bias_correction, delay_scaling)
