"""LoRA: a low-rank term beside a dense layer that stays as it is."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

Array = jax.Array


class LoRA(nn.Module):
    """The low-rank term (α / r) · (x A) B, to be added to what a dense layer makes of the same x.

    The sum equals the dense layer with the kernel W + (α / r) A B, which is never formed: clients differ in A and B
    only, so that under `vmap` over clients the product with W stays one product of matrices for all of them.

    A starts uniform in ±1/√features_in and B at zero, so that the term starts at zero, as in the authors' code.

    Attributes:
        features: outputs of the dense layer.
        r: rank, at least 1.
        alpha: α; the scale is α / r.
        dtype: precision of the computation, see `jaxafl.models.options.compute_dtype`.

    References:
        Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022, section 4.1.
    """

    features: int
    r: int
    alpha: float
    dtype: Any = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """[..., features_in] to [..., features]."""
        a = self.param("a", _uniform, (x.shape[-1], self.r))
        b = self.param("b", nn.initializers.zeros, (self.r, self.features))
        x, a, b = nn.dtypes.promote_dtype(x, a, b, dtype=self.dtype)
        return (x @ a) @ b * (self.alpha / self.r)


def _uniform(key: Array, shape: tuple[int, int]) -> Array:
    bound = shape[0] ** -0.5
    return jax.random.uniform(key, shape, jnp.float32, -bound, bound)
