"""A small causal transformer that predicts the next token of a text, as GPT does."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxafl.models.linen import from_linen
from jaxafl.models.model import Array, Model
from jaxafl.options import UserError, check_choice, check_whole, named

_PERIOD = 10_000.0  # base of the wavelengths of rotary positions
_SPREAD = 0.02  # standard deviation of initial parameters in GPT-2


@named
def decoder(
    num_classes: int = 256,
    width: int = 256,
    layers: int = 4,
    heads: int = 4,
    norm: Literal["rms", "layer"] = "rms",
    positions: Literal["rotary", "learned"] = "rotary",
    length: int = 1024,
) -> Model:
    """Builds a decoder: tied embeddings, then layers of causal attention and a perceptron, each behind a norm.

    With x = E[token] (plus P[position] if positions are learned), every layer computes

        x = x + W_o attention(norm(x)),    x = x + W_2 gelu(W_1 norm(x)),

    and logits = norm(x) Eᵀ. Attention is softmax(Q Kᵀ / √d) V of each head, of d = D / `heads` numbers, over this and
    earlier tokens. W_1 has 4 D outputs, and no product has a bias. The model has V D + layers (12 D² + 2 n) + n
    parameters, where n is D for the norm `"rms"` and 2 D for `"layer"`, plus `length` · D for learned positions:
    3,213,568 by default, 29,368,832 with V = 8192, D = 512 and 8 layers.

    Parameters start from N(0, 0.02²), as in GPT-2; W_o and W_2 are divided by √(2 · `layers`). The loss is
    `"next_token"`, with the metrics accuracy and perplexity per token. `Simulation(..., precision="bfloat16")` computes
    in bfloat16, but softmax, norms' statistics and the loss in float32.

    Args:
        num_classes: V, size of the vocabulary; 256 for bytes.
        width: D, numbers per token; a multiple of `heads`, for rotary positions of 2 · `heads`.
        layers: number of layers.
        heads: number of heads of attention.
        norm: `"rms"`, x / √(mean x² + 1e-6) times a scale, or `"layer"`, which also subtracts the mean and adds a bias.
        positions: `"rotary"` turns the pair (i, i + d/2) of every query and key by p · 10000^(-2i/d) at position p;
            `"learned"` adds a table to the embeddings.
        length: the most tokens of a text with learned positions.

    Returns:
        The model; inputs and labels [B, L] integers in [0, V), where a label is the token after the input's. A negative
        label is padding, and does not count. An input outside the vocabulary gives a loss of NaN.

    Raises:
        ValueError: an option is invalid, or a text is longer than `length` with learned positions.

    References:
        Vaswani et al., "Attention Is All You Need", NeurIPS 2017; Radford et al., "Language Models are Unsupervised
        Multitask Learners", 2019; Su et al., "RoFormer", Neurocomputing 2024, equation 34; Zhang and Sennrich, "Root
        Mean Square Layer Normalization", NeurIPS 2019, equation 4.
    """
    for name, value in {"num_classes": num_classes, "layers": layers, "heads": heads, "length": length}.items():
        check_whole("decoder", name, value)
    check_choice("decoder", "norm", norm, ("rms", "layer"))
    check_choice("decoder", "positions", positions, ("rotary", "learned"))
    least = 2 * heads if positions == "rotary" else heads
    if check_whole("decoder", "width", width, least=least) % least:
        raise UserError(f"decoder: width is {width}; expected a multiple of {least} for {heads} heads, {positions}")
    module = Decoder(num_classes, width, layers, heads, norm, positions, length)
    references = ("vaswani2017", "radford2019", "su2024", "zhang2019")
    return from_linen(module, "next_token", name="decoder", references=references)


class Decoder(nn.Module):
    """The network of `decoder`, which describes its attributes."""

    num_classes: int
    width: int
    layers: int
    heads: int
    norm: str
    positions: str
    length: int

    @nn.compact
    def __call__(self, tokens: Array) -> Array:
        """Computes logits [B, L, V] of the next tokens from tokens, int [B, L]."""
        start = nn.initializers.normal(_SPREAD)
        table = self.param("embedding", start, (self.num_classes, self.width))
        outside = jnp.int32(self.num_classes)  # a negative index would count from the end
        x = jnp.take(table, jnp.where(tokens < 0, outside, tokens), axis=0, mode="fill")
        if self.positions == "learned":
            if tokens.shape[1] > self.length:
                raise UserError(f"decoder: a text has {tokens.shape[1]} tokens; expected up to length={self.length}")
            x = x + self.param("positions", start, (self.length, self.width))[: tokens.shape[1]]
        for index in range(self.layers):
            x = x + self._attended(self._normalised(x, f"attention_norm_{index}"), index)
            inner = self._product(4 * self.width, f"expand_{index}")(self._normalised(x, f"perceptron_norm_{index}"))
            x = x + self._product(self.width, f"contract_{index}", last=True)(nn.gelu(inner))
        return self._normalised(x, "norm") @ table.T

    def _attended(self, x: Array, index: int) -> Array:
        """Computes causal attention of one layer from [B, L, D] to [B, L, D]."""
        parts = [self._product(self.width, f"{name}_{index}")(x) for name in ("query", "key", "value")]
        queries, keys, values = (part.reshape(*x.shape[:2], self.heads, -1) for part in parts)
        if self.positions == "rotary":
            queries, keys = rotated(queries), rotated(keys)
        found = jax.nn.dot_product_attention(queries, keys, values, is_causal=True)
        return self._product(self.width, f"attention_{index}", last=True)(found.reshape(x.shape))

    def _product(self, features: int, name: str, last: bool = False) -> nn.Dense:
        spread = _SPREAD / (2 * self.layers) ** 0.5 if last else _SPREAD
        return nn.Dense(features, use_bias=False, kernel_init=nn.initializers.normal(spread), name=name)

    def _normalised(self, x: Array, name: str) -> Array:
        return nn.RMSNorm(name=name)(x) if self.norm == "rms" else nn.LayerNorm(name=name)(x)


def rotated(x: Array) -> Array:
    """Turns the pairs (i, i + d/2) of queries or keys [B, L, heads, d] by their positions p · 10000^(-2i/d)."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * _PERIOD ** (-jnp.arange(half) / half)
    cos, sin = (part[:, None].astype(x.dtype) for part in (jnp.cos(angles), jnp.sin(angles)))
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)
