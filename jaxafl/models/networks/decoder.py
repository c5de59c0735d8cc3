"""A small causal transformer that predicts the next token of a text, as GPT does."""

from __future__ import annotations

import functools
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxafl.models.linen import from_linen
from jaxafl.models.model import Array, Model
from jaxafl.models.networks.recurrent import in_vocabulary
from jaxafl.options import UserError, check_choice, check_whole, named


@named
def decoder(
    num_classes: int = 256,
    width: int = 256,
    layers: int = 4,
    heads: int = 4,
    norm: Literal["rms", "layer"] = "rms",
    positions: Literal["rotary", "learned"] = "rotary",
) -> Model:
    """Builds a decoder: tied embeddings, then layers of causal attention and a perceptron, each behind a norm.

    With x = E[token] (plus P[position] if positions are learned), every layer computes

        x = x + W_o attention(norm(x)),    x = x + W_2 gelu(W_1 norm(x)),

    and logits = norm(x) Eᵀ. Attention is softmax(Q Kᵀ / √d) V of each head, of d = D / `heads` numbers, over this and
    earlier tokens. W_1 has 4 D outputs, and no product has a bias. The model has V D + layers (12 D² + 2 n) + n
    parameters, where n is D for the norm `"rms"` and 2 D for `"layer"`, plus L D for learned positions:
    3,213,568 by default, 29,368,832 with V = 8192, D = 512 and 8 layers.

    Parameters start from N(0, 0.02²), as in GPT-2; W_o and W_2 are divided by √(2 · `layers`). The loss is
    `"next_token"`, with the metrics accuracy and perplexity. `Simulation(..., precision="bfloat16")` computes
    in bfloat16, but softmax, norms' statistics and the loss in float32. The softmax of the attention is always computed
    in float32, also with `jax_enable_x64`.

    Args:
        num_classes: V, size of the vocabulary; 256 for bytes.
        width: D, numbers per token; a multiple of `heads`, for rotary positions of 2 · `heads`.
        layers: number of layers.
        heads: number of heads of attention.
        norm: `"rms"`, x / √(mean x² + 1e-6) times a scale, or `"layer"`, which also subtracts the mean and adds a bias.
        positions: `"rotary"` turns the pair (i, i + d/2) of every query and key by p · 10000^(-2i/d) at position p;
            `"learned"` adds a table of L rows to the embeddings, where L is the length of the data's texts.

    Returns:
        The model; inputs and labels [B, L] integers in [0, V), where a label is the token after the input's. A negative
        label is padding: a text's loss is the mean over its other tokens, see `next_token`. An input outside the
        vocabulary gives a loss of NaN.

    Raises:
        TypeError, ValueError: an option is invalid.

    References:
        Vaswani et al., "Attention Is All You Need", NeurIPS 2017; Radford et al., "Language Models are Unsupervised
        Multitask Learners", 2019; Su et al., "RoFormer", Neurocomputing 2024, equation 34 with other pairs; Zhang and
        Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019, equation 4.
    """
    for name, value in {"num_classes": num_classes, "layers": layers, "heads": heads}.items():
        check_whole("decoder", name, value)
    check_choice("decoder", "norm", norm, ("rms", "layer"))
    check_choice("decoder", "positions", positions, ("rotary", "learned"))
    least = 2 * heads if positions == "rotary" else heads
    if check_whole("decoder", "width", width, least=least) % least:
        raise UserError(f"decoder: width is {width}; expected a multiple of {least} for {heads} heads, {positions}")
    module = Decoder(num_classes, width, layers, heads, norm, positions)
    return from_linen(module, "next_token", name="decoder", references=("vaswani2017", "su2024", "zhang2019"))


class Decoder(nn.Module):
    """The network of `decoder`, which describes its attributes."""

    num_classes: int
    width: int
    layers: int
    heads: int
    norm: str
    positions: str

    @nn.compact
    def __call__(self, tokens: Array) -> Array:
        """Computes logits [B, L, V] of the next tokens from tokens, int [B, L]."""
        start, small = (nn.initializers.normal(0.02 / by) for by in (1, (2 * self.layers) ** 0.5))  # as in GPT-2
        norm = nn.RMSNorm if self.norm == "rms" else nn.LayerNorm
        product = functools.partial(nn.Dense, use_bias=False, kernel_init=start)
        last = functools.partial(nn.Dense, self.width, use_bias=False, kernel_init=small)
        embed = nn.Embed(self.num_classes, self.width, embedding_init=start, name="embed")
        x = embed(in_vocabulary("decoder", tokens, self.num_classes))
        if self.positions == "learned":
            x = x + self.param("positions", start, (tokens.shape[1], self.width))
        for index in range(self.layers):
            y = norm(name=f"attention_norm_{index}")(x)
            parts = [product(self.width, name=f"{name}_{index}")(y) for name in ("query", "key", "value")]
            x = x + last(name=f"attention_{index}")(self.attended(*parts))
            inner = product(4 * self.width, name=f"expand_{index}")(norm(name=f"perceptron_norm_{index}")(x))
            x = x + last(name=f"contract_{index}")(nn.gelu(inner))
        return embed.attend(norm(name="norm")(x))

    def attended(self, *parts: Array) -> Array:
        """Computes causal attention [B, L, D] from queries, keys and values, [B, L, D] each."""
        queries, keys, values = (part.reshape(*part.shape[:2], self.heads, -1) for part in parts)
        if self.positions == "rotary":
            queries, keys = rotated(queries), rotated(keys)
        return jax.nn.dot_product_attention(queries, keys, values, is_causal=True).reshape(parts[0].shape)


def rotated(x: Array) -> Array:
    """Turns the pairs (i, i + d/2) of queries or keys [B, L, heads, d] by their positions p · 10000^(-2i/d)."""
    angles = jnp.arange(x.shape[1])[:, None] * 10_000.0 ** -jnp.linspace(0, 1, x.shape[-1] // 2, endpoint=False)
    cos, sin = (part[:, None].astype(x.dtype) for part in (jnp.cos(angles), jnp.sin(angles)))
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)
