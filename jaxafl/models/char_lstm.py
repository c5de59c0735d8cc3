"""Next-character prediction with an LSTM."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxafl.checks import check_choice, check_whole
from jaxafl.models.adapters import from_linen
from jaxafl.models.layers import Array
from jaxafl.models.model import Model
from jaxafl.models.options import compute_dtype
from jaxafl.models.recurrent import LSTM, forget_gate_open


def char_lstm(
    num_classes: int = 80,
    embedding: int = 8,
    hidden: int = 256,
    layers: int = 2,
    initialisation: Literal["leaf", "torch"] = "leaf",
    dtype: str = "float32",
) -> Model:
    """Embedding - LSTM - LSTM - dense on the last state: LEAF's network for Shakespeare.

    817,872 parameters with the defaults; an LSTM layer has one bias. AsyncFedED (Wang et al., 2022) uses an LSTM on
    Shakespeare whose sizes and initial parameters it does not state. At its local rate, 1 with momentum 0.5, training
    from `initialisation="torch"` goes well, while from `"leaf"` the first steps throw the gates into saturation.

    Args:
        num_classes: size of the vocabulary, of the characters read and of those predicted.
        embedding: width of a character's embedding.
        hidden: width of the LSTM's state.
        layers: LSTM layers, one on the other.
        initialisation: how parameters start. `"leaf"`: matrices Glorot uniform, biases 0 but for that of the forget
            gates, 1. `"torch"`: as PyTorch's layers do, embeddings from N(0, 1), all else uniform within ±1/√`hidden`
            (the bias of a gate being the sum of two such numbers).
        dtype: precision of the matrix products, `"float32"` or `"bfloat16"`; parameters and cells are float32 either
            way.

    Returns:
        The model; inputs [B, L] integers, the characters before the one to predict, labels [B] integers, both in
        [0, `num_classes`). A character outside gives a loss of NaN rather than that of another character.

    Raises:
        ValueError: where a number is below 1, or `initialisation` or `dtype` is another name.
        TypeError: where a number is not a whole one.

    References:
        Caldas et al., "LEAF: A Benchmark for Federated Settings", arXiv:1812.01097, 2018; McMahan et al.,
        "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
    """
    options = {"num_classes": num_classes, "embedding": embedding, "hidden": hidden, "layers": layers}
    for option, value in options.items():
        check_whole("char_lstm", option, value)
    check_choice("char_lstm", "initialisation", initialisation, ("leaf", "torch"))
    compute_dtype(dtype)
    network = CharLSTM(num_classes, embedding, hidden, layers, initialisation, dtype)
    return from_linen(network, name="char_lstm", references=("caldas2018",))


class CharLSTM(nn.Module):
    """Embedding - LSTM - ... - LSTM - dense on the last state."""

    num_classes: int
    embedding: int
    hidden: int
    layers: int
    initialisation: str
    dtype: str

    @nn.compact
    def __call__(self, x: Array) -> Array:
        _require_characters(x)
        x = x.astype(jnp.int32)
        dtype, start = compute_dtype(self.dtype), _start(self.initialisation, self.hidden)
        embed = nn.Embed(self.num_classes, self.embedding, dtype=dtype, embedding_init=start.embedding)
        states = embed(jnp.where(x < 0, self.num_classes, x).T)  # a negative index would count from the end
        for _ in range(self.layers):
            states = LSTM(self.hidden, dtype, start.kernel, start.gates)(states)
        dense = nn.Dense(self.num_classes, dtype=dtype, kernel_init=start.kernel, bias_init=start.bias)
        return dense(states[-1])


class _Start(NamedTuple):
    """Initialisers."""

    embedding: Callable[..., Array]
    kernel: Callable[..., Array]
    bias: Callable[..., Array]
    gates: Callable[..., Array]


def _start(initialisation: str, hidden: int) -> _Start:
    if initialisation == "leaf":
        glorot = nn.initializers.glorot_uniform()
        return _Start(glorot, glorot, nn.initializers.zeros_init(), forget_gate_open)

    def uniform(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
        return jax.random.uniform(key, shape, dtype, -1, 1) / math.sqrt(hidden)

    def gates(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
        return uniform(key, (2, *shape), dtype).sum(0)

    return _Start(nn.initializers.normal(1.0), uniform, uniform, gates)


def _require_characters(x: Array) -> None:
    if x.ndim != 2 or not jnp.issubdtype(x.dtype, jnp.integer):
        raise ValueError(
            f"char_lstm reads characters as integers [batch, length], got inputs of shape {list(x.shape)} and dtype "
            f"{x.dtype}; use it with text such as jaxafl.data.shakespeare(), or with integers of your own "
            "(from_arrays turns uint8 into floats unless given preprocessing=jaxafl.data.as_is())"
        )
