"""Batch normalisation over the real samples of a batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

Array = jax.Array


class BatchNorm(nn.Module):
    """Batch normalisation with the constants of `torch.nn.BatchNorm2d`, over the real samples of a batch.

    y = γ (x - μ) / √(σ² + ε) + β per channel. In training, μ and σ² are the mean and the biased variance over the
    samples with `mask` True and over all pixels, and the running statistics follow them,

        running_mean ← (1 - momentum) running_mean + momentum μ
        running_var  ← (1 - momentum) running_var + momentum σ² n / (n - 1),   n = real samples × pixels;

    in evaluation the running statistics are used. With n = 1 the factor n / (n - 1) is omitted. A batch without a real
    sample does not change the running statistics. `flax.linen.BatchNorm` keeps the biased variance instead, and gives
    NaN for a batch without a real sample. Statistics and normalisation are computed in float32, even if `dtype` is
    lower, and in float64 under `jax_enable_x64`.

    The running statistics are non-trainable model state (collection `batch_stats`), which the engine averages over the
    arrivals of a server step; γ and β are trained.

    Attributes:
        momentum: weight of the new batch in the running statistics.
        epsilon: ε.
        dtype: dtype of the result; `None` takes the dtype of the input.

    References:
        Ioffe and Szegedy, "Batch Normalization: Accelerating Deep Network Training by Reducing Internal Covariate
        Shift", ICML 2015.
    """

    momentum: float = 0.1
    epsilon: float = 1e-5
    dtype: Any = None

    @nn.compact
    def __call__(self, x: Array, train: bool, mask: Array | None = None) -> Array:
        """Normalises x [B, ..., C]; `mask` is bool [B], all True if left out."""
        channels = x.shape[-1:]
        scale = self.param("scale", nn.initializers.ones_init(), channels, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros_init(), channels, jnp.float32)
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, channels, jnp.float32)
        running_var = self.variable("batch_stats", "var", jnp.ones, channels, jnp.float32)
        values = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        if train:
            mean, var, count = _statistics(values, mask)
            if not self.is_initializing():
                unbiased = var * count / jnp.maximum(count - 1, 1)
                for running, new in ((running_mean, mean), (running_var, unbiased)):
                    moved = running.value + self.momentum * (new - running.value)
                    running.value = jnp.where(count > 0, moved, running.value).astype(running.value.dtype)
        else:
            mean, var = running_mean.value, running_var.value
        y = (values - mean) * (jax.lax.rsqrt(var + self.epsilon) * scale) + bias
        return y.astype(self.dtype or x.dtype)


def _statistics(values: Array, mask: Array | None) -> tuple[Array, Array, Array]:
    """Computes mean and biased variance per channel over the real samples (0 without any), and the number of values."""
    axes = tuple(range(values.ndim - 1))
    pixels = values.size // (values.shape[0] * values.shape[-1])
    if mask is None:
        mask = jnp.ones(values.shape[0], bool)
    count = jnp.sum(mask).astype(values.dtype) * pixels
    real = mask.reshape(-1, *(1,) * (values.ndim - 1))
    divisor = jnp.maximum(count, 1)
    mean = jnp.sum(jnp.where(real, values, 0), axes) / divisor
    var = jnp.sum(jnp.where(real, jnp.square(values - mean), 0), axes) / divisor
    return mean, var, count
