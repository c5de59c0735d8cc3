"""Dense layers, logistic regression and the multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from jaxafl.models.linen import from_linen
from jaxafl.models.model import Array, Model
from jaxafl.options import named

_THIN, _WIDE = 20, 2**18  # examples of a batch, numbers of a kernel


def thin_product(x: Array, kernel: Array, dimension_numbers: Any, precision: Any = None, **how: Any) -> Array:
    """Computes `lax.dot_general` of [B, d] and [d, F], without storing the kernel's gradient if that is faster.

    On a CPU, the gradient of a large kernel from few examples, Σ_b x_b g_bᵀ, is written as a sum of products of
    numbers. XLA fuses the sum into the loop that updates the kernel, while a matrix product would be written to memory
    and read again. Below 32 bits it stays a matrix product, which accumulates in higher precision.

    Args:
        x: float [B, d]; other shapes, or other contracted dimensions, fall back to `lax.dot_general`.
        kernel: float [d, F].
        dimension_numbers, precision, how: arguments of `lax.dot_general`.

    Returns:
        float [B, F].
    """
    plain = x.ndim == kernel.ndim == 2 and dimension_numbers == (((1,), (0,)), ((), ())) and not how
    small = plain and len(x) <= _THIN and kernel.size >= _WIDE
    if small and jnp.finfo(kernel.dtype).bits >= 32 and jax.default_backend() == "cpu":
        return _thin(x, kernel, precision)
    return lax.dot_general(x, kernel, dimension_numbers, precision=precision, **how)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _thin(x: Array, kernel: Array, precision: Any) -> Array:
    return lax.dot(x, kernel, precision=precision)


def _thin_forward(x: Any, kernel: Any, precision: Any) -> tuple[Array, tuple[Array, Array, Array | None]]:
    awaited = jnp.zeros((), kernel.value.dtype) if x.perturbed else None  # None if no gradient of x is needed
    return _thin(x.value, kernel.value, precision), (x.value, kernel.value, awaited)


def _thin_backward(precision: Any, residuals: tuple[Array, Array, Array | None], gradient: Any) -> tuple[Any, Array]:
    x, kernel, awaited = residuals
    of_x = lax.dot(gradient, kernel.T, precision=precision)
    if awaited is not None:  # orders the update after the last use of the kernel; otherwise XLA copies the kernel
        gradient += awaited * of_x[0, 0]
    of_kernel = sum(x[b, :, None] * gradient[b] for b in range(1, len(x)))
    return of_x, x[0, :, None] * gradient[0] + of_kernel


_thin.defvjp(_thin_forward, _thin_backward, symbolic_zeros=True)
Dense = partial(nn.Dense, dot_general=thin_product)
"""`flax.linen.Dense`, y = x W + b, with equal parameters and names, computed by `thin_product`."""


@named
def logistic(num_classes: int) -> Model:
    """Builds multinomial logistic regression: one dense layer on the flattened input, (d + 1)·C parameters.

    The model of the Synthetic(α, β) data of FedProx (Li et al., "Federated Optimization in Heterogeneous Networks",
    MLSys 2020).

    Args:
        num_classes: number of classes C.

    Returns:
        The model; inputs [B, ...] float, labels [B] integers.
    """
    return from_linen(MLP(num_classes, ()), name="logistic")


@named
def mlp(num_classes: int, hidden: Sequence[int] = (200, 200)) -> Model:
    """Builds dense layers with ReLU between them, on the flattened input; three dense layers by default.

    The default widths are those of the "2NN" of McMahan et al., "Communication-Efficient Learning of Deep Networks
    from Decentralized Data" (AISTATS 2017). AsyncFedED (Wang et al., 2022) uses a perceptron of three dense layers on
    Synthetic-1-1.

    Args:
        num_classes: number of classes.
        hidden: widths of the hidden layers.

    Returns:
        The model; inputs [B, ...] float, labels [B] integers.
    """
    return from_linen(MLP(num_classes, tuple(hidden)), name="mlp")


class MLP(nn.Module):
    """Dense - ReLU - ... - dense."""

    num_classes: int
    hidden: tuple[int, ...]

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = x.reshape(len(x), -1)
        for width in self.hidden:
            x = nn.relu(Dense(width)(x))
        return Dense(self.num_classes)(x)
