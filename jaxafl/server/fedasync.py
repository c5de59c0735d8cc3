"""FedAsync."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxafl.checks import check_choice, check_number
from jaxafl.pytrees import pytree, static
from jaxafl.server.contract import Arrivals, Needs, Tree, Update

Array = jax.Array


@pytree
class FedAsync:
    """See `fedasync`."""

    alpha: Any = 0.5
    a: Any = 0.5
    b: Any = 4.0
    staleness: str = static(default="constant")
    mix: str = static(default="model")

    name: ClassVar[str] = "fedasync"
    clocks: ClassVar[frozenset[str]] = frozenset({"free_running", "stale_rounds"})
    references: ClassVar[tuple[str, ...]] = ("xie2019",)

    @property
    def needs(self) -> Needs:
        return Needs(start=self.mix == "model")

    def check(self, clock: Any, client: Any, num_clients: int) -> None:
        check_number("fedasync", "alpha", self.alpha, least=0)
        check_number("fedasync", "a", self.a, least=0)
        check_number("fedasync", "b", self.b, least=0)
        check_choice("fedasync", "staleness", self.staleness, ("constant", "polynomial", "hinge"))
        check_choice("fedasync", "mix", self.mix, ("model", "delta"))

    def init(self, params: Tree, samples: Array) -> tuple[()]:
        return ()

    def update(self, params: Tree, state: tuple[()], arrivals: Arrivals) -> Update:
        capacity = arrivals.mask.shape[0]
        order = jnp.argsort(jnp.where(arrivals.mask, arrivals.client, jnp.iinfo(jnp.int32).max))
        rank = jnp.zeros(capacity, jnp.int32).at[order].set(jnp.arange(capacity, dtype=jnp.int32))
        staleness = arrivals.staleness * capacity + rank  # every arrival makes a version of its own
        rate = jnp.where(arrivals.mask, self.alpha * self._discount(staleness.astype(arrivals.loss.dtype)), 0)

        def apply(position: Array, params: Tree) -> Tree:
            entry = order[position]
            alpha = rate[entry]
            if self.mix == "delta":
                return jax.tree.map(lambda x, d: x + alpha.astype(x.dtype) * d[entry], params, arrivals.delta)
            return jax.tree.map(
                lambda x, d, s: x + alpha.astype(x.dtype) * (s[entry] + d[entry] - x),
                params,
                arrivals.delta,
                arrivals.start,
            )

        params = jax.lax.fori_loop(0, capacity, apply, params)
        return Update(params, state, {"server_rate": rate})

    def _discount(self, staleness: Array) -> Array:
        if self.staleness == "constant":
            return jnp.ones_like(staleness)
        if self.staleness == "polynomial":
            return (1 + staleness) ** (-jnp.asarray(self.a, staleness.dtype))
        late = jnp.maximum(staleness - self.b, 0)
        return jnp.where(staleness <= self.b, 1.0, 1 / (self.a * late + 1))


def fedasync(alpha: Any = 0.5, staleness: str = "constant", a: Any = 0.5, b: Any = 4.0, mix: str = "model") -> FedAsync:
    """FedAsync: x ← (1 - α_t) x + α_t x_i^K with α_t = α · s(τ).

    `constant` s = 1; `polynomial` s = (1 + τ)^(-a); `hinge` s = 1 if τ <= b, else 1 / (a (τ - b) + 1). The model x_i^K
    is mixed in, not Δ_i: the step is α_t (x_s + Δ_i - x). With `mix="delta"`: x ← x + α_t Δ_i (what FADAS's code calls
    FedAsync, with α = 1).

    τ counts versions. Several arrivals in one server step (a buffer of A) are applied one after another in client
    order, each its own version: the j-th of them sees τ = A (t - s) + j.

    Args:
        alpha: α >= 0 (0.5 by default; the value that AsyncFedED used with `hinge` is unpublished).
        staleness: `"constant"`, `"polynomial"` or `"hinge"`.
        a: exponent of `polynomial`, slope of `hinge`, >= 0.
        b: staleness that `hinge` tolerates, >= 0.
        mix: `"model"` or `"delta"`.

    References:
        Xie et al., "Asynchronous federated optimization", 2019; AsyncFedED (Wang et al., 2022), eqs. (40) and (41).
    """
    return FedAsync(alpha, a, b, staleness, mix)
