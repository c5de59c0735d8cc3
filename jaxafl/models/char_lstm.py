"""Next-character prediction with an LSTM."""

from __future__ import annotations

import jax.numpy as jnp
from flax import linen as nn

from jaxafl.models.adapters import from_linen
from jaxafl.models.layers import Array
from jaxafl.models.model import Model
from jaxafl.models.options import check_positive, compute_dtype
from jaxafl.models.recurrent import LSTM


def char_lstm(
    num_classes: int = 80, embedding: int = 8, hidden: int = 256, layers: int = 2, dtype: str = "float32"
) -> Model:
    """Embedding - LSTM - LSTM - dense on the last state: LEAF's network for Shakespeare.

    817,872 parameters with the defaults. As in LEAF, matrices start Glorot uniform, and biases at 0 but for that of
    the forget gates, 1; an LSTM layer has one bias. AsyncFedED (Wang et al., 2022) uses an LSTM on Shakespeare whose
    sizes it does not state.

    Args:
        num_classes: size of the vocabulary, of the characters read and of those predicted.
        embedding: width of a character's embedding.
        hidden: width of the LSTM's state.
        layers: LSTM layers, one on the other.
        dtype: precision of the matrix products, `"float32"` or `"bfloat16"`; parameters and cells are float32 either
            way.

    Returns:
        The model; inputs [B, L] integers, the characters before the one to predict, labels [B] integers, both in
        [0, `num_classes`). A character outside gives a loss of NaN rather than that of another character.

    Raises:
        ValueError: where an option is not a whole number >= 1, or `dtype` is another name.

    References:
        Caldas et al., "LEAF: A Benchmark for Federated Settings", arXiv:1812.01097, 2018; McMahan et al.,
        "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
    """
    options = {"num_classes": num_classes, "embedding": embedding, "hidden": hidden, "layers": layers}
    for option, value in options.items():
        check_positive(option, value)
    compute_dtype(dtype)
    return from_linen(CharLSTM(num_classes, embedding, hidden, layers, dtype), name="char_lstm")


class CharLSTM(nn.Module):
    """Embedding - LSTM - ... - LSTM - dense on the last state."""

    num_classes: int
    embedding: int
    hidden: int
    layers: int
    dtype: str

    @nn.compact
    def __call__(self, x: Array) -> Array:
        _require_characters(x)
        x = x.astype(jnp.int32)
        dtype, glorot = compute_dtype(self.dtype), nn.initializers.glorot_uniform()
        embed = nn.Embed(self.num_classes, self.embedding, dtype=dtype, embedding_init=glorot)
        states = embed(jnp.where(x < 0, self.num_classes, x).T)  # a negative index would count from the end
        for _ in range(self.layers):
            states = LSTM(self.hidden, dtype)(states)
        return nn.Dense(self.num_classes, dtype=dtype, kernel_init=glorot)(states[-1])


def _require_characters(x: Array) -> None:
    if x.ndim != 2 or not jnp.issubdtype(x.dtype, jnp.integer):
        raise ValueError(
            f"char_lstm reads characters as integers [batch, length], got inputs of shape {list(x.shape)} and dtype "
            f"{x.dtype}; use it with text such as jaxafl.data.shakespeare()"
        )
