"""Discounts of stale updates, for every server that weighs updates by their staleness."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp

from jaxafl.options import Number

Array = jax.Array
Staleness: TypeAlias = Literal["none", "polynomial", "hinge", "exponential"] | Callable[[Array], Array]


def discount(rule: str | Callable[[Array], Array], tau: Array, exponent: Number | None, threshold: Number) -> Array:
    """Computes the discounts s(τ) of updates, float [A].

    Args:
        rule: `"none"` and `"constant"`: s = 1. `"polynomial"`: s = (1 + τ)^(-a). `"hinge"`: s = 1 if τ <= b, else
            1 / (a (τ - b) + 1). `"exponential"`: s = e^(-aτ). A function returns s for τ, both float [A].
        tau: staleness τ, float [A].
        exponent: exponent or slope a; `None` stands for 1/2, and for 10 with `"hinge"`.
        threshold: largest staleness b that `"hinge"` does not discount.
    """
    if callable(rule):
        return jnp.broadcast_to(jnp.asarray(rule(tau), tau.dtype), tau.shape)
    if rule == "polynomial":
        return 1 / jnp.sqrt(1 + tau) if exponent is None else (1 + tau) ** -jnp.asarray(exponent, tau.dtype)
    if rule == "hinge":
        late = jnp.maximum(tau - threshold, 0)
        return jnp.where(tau <= threshold, 1.0, 1 / ((10.0 if exponent is None else exponent) * late + 1))
    if rule == "exponential":
        return jnp.exp(-jnp.asarray(0.5 if exponent is None else exponent, tau.dtype) * tau)
    return jnp.ones_like(tau)
