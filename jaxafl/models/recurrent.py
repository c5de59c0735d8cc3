"""A recurrent layer whose work is matrix products: the LSTM."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

Array = jax.Array


def forget_gate_open(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """A bias [4H] of zeros, but ones for the forget gate, so that the cell remembers at first."""
    width = shape[0] // 4
    return jnp.zeros(shape, dtype).at[width : 2 * width].set(1.0)


class LSTM(nn.Module):
    """Long short-term memory over a sequence, time first, from a state of zeros.

    With z = [x_t, h_{t-1}] · kernel + bias, cut into four parts i, f, g, o of width H in this order (PyTorch's order):

        c_t = sigmoid(f) · c_{t-1} + sigmoid(i) · tanh(g)
        h_t = sigmoid(o) · tanh(c_t)

    One kernel [F + H, 4H] holds the input's rows, then the state's, and there is one bias [4H], not PyTorch's two of
    which only the sum counts.

    The input's product is made once for all time steps, and so is the kernel's gradient; a step of the loop is one
    product of the state. The cell is kept in float32 whatever `dtype` is. Derivatives are in reverse mode only.

    References:
        Hochreiter and Schmidhuber, "Long Short-Term Memory", Neural Computation 1997; the start of the forget gate:
        Jozefowicz, Zaremba and Sutskever, "An Empirical Exploration of Recurrent Network Architectures", ICML 2015.

    Attributes:
        features: H, width of the state.
        dtype: of the products; `None` is that of the parameters.
        kernel_init: initialiser of the kernel [F + H, 4H].
        bias_init: initialiser of the bias [4H].
    """

    features: int
    dtype: Any = None
    kernel_init: Callable[..., Any] = nn.initializers.glorot_uniform()
    bias_init: Callable[..., Any] = forget_gate_open

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """States h of all steps, [L, B, H], of inputs [L, B, F]."""
        inputs = x.shape[-1]
        kernel = self.param("kernel", self.kernel_init, (inputs + self.features, 4 * self.features))
        bias = self.param("bias", self.bias_init, (4 * self.features,))
        dtype = jnp.promote_types(x.dtype, kernel.dtype) if self.dtype is None else jnp.dtype(self.dtype)
        projected = _product(x, kernel[:inputs], dtype, bias.dtype) + bias
        return _recurrence(dtype, projected, kernel[inputs:])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _recurrence(dtype: Any, projected: Array, kernel: Array) -> Array:
    """h [L, B, H] from the input's part of the gates [L, B, 4H] and the kernel of the state [H, 4H].

    The derivative is written out because that of a scan would add up the kernel's gradient step by step, a read and a
    write of [H, 4H] each, in the place of one product of [H, L·B] and [L·B, 4H].
    """
    return _forward(dtype, projected, kernel)[0]


def _forward(dtype: Any, projected: Array, kernel: Array) -> tuple[Array, Any]:
    zero = jnp.zeros((projected.shape[1], kernel.shape[0]), projected.dtype)

    def step(carry: tuple[Array, Array], inputs: Array) -> tuple[tuple[Array, Array], Any]:
        c, h = carry
        i, f, g, o = jnp.split(inputs + _product(h, kernel, dtype, inputs.dtype), 4, axis=-1)
        i, f, g, o = nn.sigmoid(i), nn.sigmoid(f), jnp.tanh(g), nn.sigmoid(o)
        c = f * c + i * g
        h = o * jnp.tanh(c)
        return (c, h), (h, c, (i, f, g, o))

    _, (h, c, gates) = jax.lax.scan(step, (zero, zero), projected)
    return h, (h, c, gates, kernel)


def _backward(dtype: Any, saved: Any, gradient: Array) -> tuple[Array, Array]:
    h, c, gates, kernel = saved
    transposed = kernel.T

    def step(carry: tuple[Array, Array], inputs: Any) -> tuple[tuple[Array, Array], Array]:
        dc, dh = carry
        from_above, (i, f, g, o), c, c_before = inputs
        dh = dh + from_above
        squashed = jnp.tanh(c)
        dc = dc + dh * o * (1 - squashed * squashed)
        dz = jnp.concatenate(
            [dc * g * i * (1 - i), dc * c_before * f * (1 - f), dc * i * (1 - g * g), dh * squashed * o * (1 - o)], -1
        )
        return (dc * f, _product(dz, transposed, dtype, dz.dtype)), dz

    zero = jnp.zeros_like(h[0])
    _, dz = jax.lax.scan(step, (zero, zero), (gradient, gates, c, _shifted(c)), reverse=True)
    width = h.shape[-1]
    return dz, _product(_shifted(h).reshape(-1, width).T, dz.reshape(-1, 4 * width), dtype, kernel.dtype)


_recurrence.defvjp(_forward, _backward)


def _shifted(states: Array) -> Array:
    """The states one step before."""
    return jnp.concatenate([jnp.zeros_like(states[:1]), states[:-1]])


def _product(left: Array, right: Array, dtype: Any, out: Any) -> Array:
    """A matrix product of factors in `dtype`, added up and returned in `out`."""
    return jnp.matmul(left.astype(dtype), right.astype(dtype), preferred_element_type=out)
