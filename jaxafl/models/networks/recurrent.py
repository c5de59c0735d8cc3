"""An LSTM layer computed by matrix products, and a model for next-character prediction."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxafl.models.linen import from_linen
from jaxafl.models.model import Array, Model
from jaxafl.models.networks.convolution import with_backward
from jaxafl.models.networks.dense import Dense
from jaxafl.options import UserError, check_choice, check_whole, named


@named
def char_lstm(
    num_classes: int = 80,
    embedding: int = 8,
    hidden: int = 256,
    layers: int = 2,
    initialisation: Literal["leaf", "torch"] = "leaf",
) -> Model:
    """Builds LEAF's network for Shakespeare: embedding - LSTM - LSTM - dense on the last state.

    817,872 parameters with the defaults; an LSTM layer has one bias. AsyncFedED (Wang et al., 2022) does not state the
    sizes and initial parameters of its LSTM for Shakespeare. At its local rate, 1 with momentum 0.5, training from
    `initialisation="torch"` converges. From `"leaf"` the first steps saturate the gates.

    Args:
        num_classes: size of the vocabulary of inputs and labels.
        embedding: width of a character's embedding.
        hidden: width of the LSTM's state.
        layers: number of stacked LSTM layers.
        initialisation: distribution of initial parameters. `"leaf"`: matrices Glorot uniform, biases 0, but 1 for the
            forget gates. `"torch"`: PyTorch's defaults, with embeddings from N(0, 1) and all else uniform within
            ±1/√`hidden`; the bias of a gate is the sum of two such numbers.

    Returns:
        The model; inputs [B, L] integers, the characters before the predicted one, labels [B] integers, both in
        [0, `num_classes`). A character outside this range gives a loss of NaN.

    Raises:
        ValueError, TypeError: an option has another value.

    References:
        Caldas et al., "LEAF: A Benchmark for Federated Settings", arXiv:1812.01097, 2018; McMahan et al.,
        "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
    """
    sizes = {"num_classes": num_classes, "embedding": embedding, "hidden": hidden, "layers": layers}
    for name, value in sizes.items():
        check_whole("char_lstm", name, value)
    check_choice("char_lstm", "initialisation", initialisation, ("leaf", "torch"))
    network = CharLSTM(num_classes, embedding, hidden, layers, initialisation)
    return from_linen(network, name="char_lstm", references=("caldas2018",))


def in_vocabulary(owner: str, tokens: Array, size: int) -> Array:
    """Returns tokens for an embedding, which gives NaN for those outside 0 .. `size` - 1, also for negative ones.

    Raises:
        UserError: the tokens are not integers.
    """
    if not jnp.issubdtype(tokens.dtype, jnp.integer):
        why = "data of uint8 are taken for pixels and become floats, unless they have preprocessing=jaxafl.data.as_is()"
        raise UserError(f"{owner}: tokens must be integers, got {tokens.dtype}; {why}")
    return jnp.where(tokens < 0, size, tokens)  # a negative index would count from the end


class CharLSTM(nn.Module):
    """Embedding - LSTM - ... - LSTM - dense on the last state."""

    num_classes: int
    embedding: int
    hidden: int
    layers: int
    initialisation: str

    @nn.compact
    def __call__(self, x: Array) -> Array:
        embedding, kernel, bias, gates = _start(self.initialisation, self.hidden)
        embed = nn.Embed(self.num_classes, self.embedding, embedding_init=embedding)
        states = embed(in_vocabulary("char_lstm", x, self.num_classes).T)
        for _ in range(self.layers):
            states = LSTM(self.hidden, kernel_init=kernel, bias_init=gates)(states)
        return Dense(self.num_classes, kernel_init=kernel, bias_init=bias)(states[-1])


def _start(initialisation: str, hidden: int) -> tuple[Callable[..., Array], ...]:
    """Returns the initialisers of the embedding, the kernels, the dense bias and the gates' bias."""
    if initialisation == "leaf":
        glorot = nn.initializers.glorot_uniform()
        return glorot, glorot, nn.initializers.zeros_init(), forget_gate_open

    def uniform(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
        return jax.random.uniform(key, shape, dtype, -1, 1) / math.sqrt(hidden)

    def gates(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
        return uniform(key, (2, *shape), dtype).sum(0)

    return nn.initializers.normal(1.0), uniform, uniform, gates


def forget_gate_open(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """Initialises a bias [4H] to zeros, but to ones for the forget gate, so that the cell keeps its state at first."""
    width = shape[0] // 4
    return jnp.zeros(shape, dtype).at[width : 2 * width].set(1.0)


class LSTM(nn.Module):
    """Long short-term memory over a sequence, time axis first, from a state of zeros.

    With z = [x_t, h_{t-1}] · kernel + bias, split into i, f, g, o of width H in this order (PyTorch's order):

        c_t = sigmoid(f) · c_{t-1} + sigmoid(i) · tanh(g)
        h_t = sigmoid(o) · tanh(c_t)

    One kernel [F + H, 4H] holds the input's rows, then the state's. There is one bias [4H]; PyTorch has two, of which
    only the sum matters.

    The input's product and the kernel's gradient are computed once for all time steps. A step of the loop is one
    product of the state. The cell has at least float32. Derivatives are in reverse mode only.

    References:
        Hochreiter and Schmidhuber, "Long Short-Term Memory", Neural Computation 1997; the start of the forget gate:
        Jozefowicz, Zaremba and Sutskever, "An Empirical Exploration of Recurrent Network Architectures", ICML 2015.

    Attributes:
        features: H, width of the state.
        dtype: dtype of the products and the result; `None` takes the promoted dtype of input and parameters.
        kernel_init: initialiser of the kernel [F + H, 4H].
        bias_init: initialiser of the bias [4H].
    """

    features: int
    dtype: Any = None
    kernel_init: Callable[..., Any] = nn.initializers.glorot_uniform()
    bias_init: Callable[..., Any] = forget_gate_open

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Computes the states h of all steps, [L, B, H], from inputs [L, B, F]."""
        inputs = x.shape[-1]
        kernel = self.param("kernel", self.kernel_init, (inputs + self.features, 4 * self.features))
        bias = self.param("bias", self.bias_init, (4 * self.features,))
        dtype = jnp.promote_types(x.dtype, kernel.dtype) if self.dtype is None else jnp.dtype(self.dtype)
        wide = jnp.promote_types(bias.dtype, jnp.float32)
        projected = _product(x, kernel[:inputs], dtype, wide) + bias
        return _recurrence(dtype, projected, kernel[inputs:]).astype(dtype)


def _forward(dtype: Any, projected: Array, kernel: Array) -> tuple[Array, Any]:
    """Computes h [L, B, H] from the input's part of the gates [L, B, 4H] and the kernel of the state [H, 4H].

    The derivative is explicit. That of a scan would add up the kernel's gradient in every step, with a read and a write
    of [H, 4H], instead of one product of [H, L·B] and [L·B, 4H].
    """
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


_recurrence = with_backward(_forward, _backward, 0)


def _shifted(states: Array) -> Array:
    """Shifts states by one step, with zeros for the first."""
    return jnp.concatenate([jnp.zeros_like(states[:1]), states[:-1]])


def _product(left: Array, right: Array, dtype: Any, out: Any) -> Array:
    """Computes a matrix product of factors in `dtype`, accumulated and returned in `out`."""
    return jnp.matmul(left.astype(dtype), right.astype(dtype), preferred_element_type=out)
