"""The BERT encoder with LoRA and its classification head as Flax modules."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxafl.models.model import Array

_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": functools.partial(nn.gelu, approximate=False),
    "gelu_new": functools.partial(nn.gelu, approximate=True),
    "gelu_pytorch_tanh": functools.partial(nn.gelu, approximate=True),
    "relu": nn.relu,
    "silu": nn.silu,
    "swish": nn.silu,
}


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Architecture of a checkpoint, with the names of its config.json."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int = 2
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-12
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    classifier_dropout: float | None = None  # before the head; None: hidden_dropout_prob
    initializer_range: float = 0.02


def read_config(folder: pathlib.Path) -> BertConfig:
    """Reads the architecture of a checkpoint.

    Args:
        folder: the checkpoint's folder.

    Raises:
        FileNotFoundError: the folder has no config.json.
        ValueError: the file is not a json object, lacks a size, or does not describe a BERT encoder with absolute
            positions.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} has no config.json, which describes the architecture of a checkpoint")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid json: {error}") from error
    if not isinstance(found, dict) or found.get("model_type") != "bert":
        kind = found.get("model_type") if isinstance(found, dict) else found
        raise ValueError(f'{path}: bert reads checkpoints with "model_type": "bert", this one has {kind!r}')
    fields = dataclasses.fields(BertConfig)
    absent = [field.name for field in fields if field.default is dataclasses.MISSING and field.name not in found]
    if absent:
        raise ValueError(f"{path} does not say {', '.join(absent)}")
    config = BertConfig(**{field.name: found[field.name] for field in fields if field.name in found})
    positions = found.get("position_embedding_type", "absolute")
    if positions != "absolute" or found.get("is_decoder") or found.get("add_cross_attention"):
        raise ValueError(
            f"{path} describes a decoder or position_embedding_type {positions!r}; bert is an encoder with absolute "
            "positions"
        )
    if config.hidden_act not in _ACTIVATIONS:
        raise ValueError(f"{path}: hidden_act {config.hidden_act!r} is not one of {', '.join(_ACTIVATIONS)}")
    size, heads = config.hidden_size, config.num_attention_heads
    if size % heads:
        raise ValueError(f"{path}: hidden_size {size} is no multiple of num_attention_heads {heads}")
    return config


class BertModule(nn.Module):
    """Base class of the parts of BERT.

    Attributes:
        config: the architecture, with the rates of dropout.
        r, alpha: rank and α of LoRA on the query and the value of every layer; rank 0 disables it.
    """

    config: BertConfig
    r: int
    alpha: float


class BertClassifier(BertModule, kw_only=True):
    """Encoder, pooler (tanh dense on the first token), dropout, dense head for `num_classes`."""

    num_classes: int

    @nn.compact
    def __call__(self, input_ids: Array, token_type_ids: Array, attention_mask: Array, train: bool = False) -> Array:
        """Computes logits [B, C] from tokens and token types, int [B, L], and a mask [B, L], True for real tokens."""
        encoder = BertEncoder(self.config, self.r, self.alpha, name="encoder")
        last = encoder(input_ids, token_type_ids, attention_mask, train)[-1]
        pooled = nn.tanh(nn.Dense(self.config.hidden_size, name="pooler")(last[:, 0]))
        rate = self.config.classifier_dropout
        rate = self.config.hidden_dropout_prob if rate is None else rate
        pooled = nn.Dropout(rate)(pooled, deterministic=not train)
        start = nn.initializers.normal(self.config.initializer_range)
        return nn.Dense(self.num_classes, kernel_init=start, name="classifier")(pooled)


class BertEncoder(BertModule):
    """Embeddings and layers."""

    @nn.compact
    def __call__(
        self, input_ids: Array, token_type_ids: Array, attention_mask: Array, train: bool = False
    ) -> list[Array]:
        """Computes hidden states [B, L, D] of the embeddings, then of every layer."""
        config = self.config

        def embed(name: str, size: int, indices: Array) -> Array:
            table = self.param(name, nn.initializers.normal(config.initializer_range), (size, config.hidden_size))
            return jnp.take(table, indices, axis=0, mode="fill")  # NaN for a token outside the vocabulary

        x = embed("word_embeddings", config.vocab_size, input_ids)
        x = x + embed("position_embeddings", config.max_position_embeddings, jnp.arange(input_ids.shape[1]))
        x = x + embed("token_type_embeddings", config.type_vocab_size, token_type_ids)
        x = _norm(config, "embeddings_norm")(x)
        states = [nn.Dropout(config.hidden_dropout_prob)(x, deterministic=not train)]
        for index in range(config.num_hidden_layers):
            layer = BertLayer(config, self.r, self.alpha, name=f"layer_{index}")
            states.append(layer(states[-1], attention_mask, train))
        return states


class BertLayer(BertModule):
    """Self-attention and a two-layer perceptron, each added to its input and normalised."""

    @nn.compact
    def __call__(self, x: Array, attention_mask: Array, train: bool) -> Array:
        config = self.config

        def adapted(name: str) -> Array:
            y = nn.Dense(config.hidden_size, name=name)(x)
            if self.r:
                y = y + LoRA(config.hidden_size, self.r, self.alpha, name=f"{name}_lora")(x)
            return y

        def residual(before: Array, y: Array, name: str) -> Array:
            y = nn.Dropout(config.hidden_dropout_prob)(y, deterministic=not train)
            return _norm(config, name)(before + y)

        queries, keys, values = adapted("query"), nn.Dense(config.hidden_size, name="key")(x), adapted("value")
        dropout = nn.Dropout(config.attention_probs_dropout_prob, deterministic=not train)
        y = _attend(queries, keys, values, attention_mask, config.num_attention_heads, dropout)
        x = residual(x, nn.Dense(config.hidden_size, name="attention_output")(y), "attention_norm")
        y = _ACTIVATIONS[config.hidden_act](nn.Dense(config.intermediate_size, name="intermediate")(x))
        return residual(x, nn.Dense(config.hidden_size, name="output")(y), "output_norm")


def _attend(queries: Array, keys: Array, values: Array, mask: Array, heads: int, dropout: nn.Dropout) -> Array:
    """Computes softmax(Q Kᵀ / √d) V per head over the real tokens, with the softmax in float32."""
    queries, keys, values = (z.reshape(*z.shape[:2], heads, -1) for z in (queries, keys, values))
    scores = jnp.einsum("blhd,bmhd->bhlm", queries * queries.shape[-1] ** -0.5, keys)
    scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    # a finite number, because -inf gives NaN in a row without real tokens
    scores = jnp.where(mask[:, None, None, :], scores, jnp.finfo(scores.dtype).min)
    weights = dropout(nn.softmax(scores).astype(values.dtype))
    return jnp.einsum("bhlm,bmhd->blhd", weights, values).reshape(*mask.shape, -1)


def _norm(config: BertConfig, name: str) -> nn.LayerNorm:
    # The fast variance cancels on large entries of trained encoders; E[(x - E x)²] does not.
    return nn.LayerNorm(config.layer_norm_eps, use_fast_variance=False, name=name)


class LoRA(nn.Module):
    """Low-rank term (α / r) · (x A) B, to be added to the result of a dense layer for x.

    The sum equals a dense layer with the kernel W + (α / r) A B, which is never formed. Clients differ in A and B only,
    so under `vmap` over clients the product with W stays one matrix product for all.

    A starts uniform in ±1/√features_in and B at zero, so the term starts at zero, as in the authors' code.

    Attributes:
        features: outputs of the dense layer.
        r: rank, at least 1.
        alpha: α; the scale is α / r.

    References:
        Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022, section 4.1.
    """

    features: int
    r: int
    alpha: float

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps [..., features_in] to [..., features]."""
        a = self.param("a", _uniform, (x.shape[-1], self.r))
        b = self.param("b", nn.initializers.zeros, (self.r, self.features))
        x, a, b = nn.dtypes.promote_dtype(x, a, b)
        return (x @ a) @ b * (self.alpha / self.r)


def _uniform(key: Array, shape: tuple[int, int]) -> Array:
    bound = shape[0] ** -0.5
    return jax.random.uniform(key, shape, jnp.float32, -bound, bound)
