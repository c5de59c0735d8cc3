"""BERT for classification: a frozen pretrained encoder with LoRA and a trained head."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxafl.device.keys import drawing_key
from jaxafl.models.adapters.checkpoint import read_tensors
from jaxafl.models.adapters.lora import lora
from jaxafl.models.losses import softmax_cross_entropy
from jaxafl.models.model import Array, Batch, Model, Outputs, Params, judged
from jaxafl.options import UserError, check_choice, check_number, user_errors
from jaxafl.readers.pretrained import pretrained_directory

Flat: TypeAlias = dict[tuple[str, ...], Any]
"""Parameters or their shapes by path, in the form of `flax.traverse_util.flatten_dict`."""
_TENSORS = {
    "word_embeddings": "embeddings.word_embeddings.weight",
    "position_embeddings": "embeddings.position_embeddings.weight",
    "token_type_embeddings": "embeddings.token_type_embeddings.weight",
    "embeddings_norm": "embeddings.LayerNorm",
    **{name: f"attention.self.{name}" for name in ("query", "key", "value")},
    "attention_output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
    "output_norm": "output.LayerNorm",
    "pooler": "pooler.dense",
    "kernel": "weight",
    "scale": "weight",
}
"""Names in a checkpoint of the parts of module paths; `layer_0` is `encoder.layer.0`."""
_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": functools.partial(nn.gelu, approximate=False),
    "gelu_new": functools.partial(nn.gelu, approximate=True),
    "gelu_pytorch_tanh": functools.partial(nn.gelu, approximate=True),
    "relu": nn.relu,
    "silu": nn.silu,
    "swish": nn.silu,
}


def bert(
    checkpoint: str = "bert-base-uncased",
    num_classes: int = 2,
    r: int = 1,
    alpha: float = 8.0,
    dropout: float | None = None,
    data_dir: str | os.PathLike[str] | None = None,
) -> Model:
    """Builds a pretrained BERT encoder with LoRA on query and value of every layer, and a new classification head.

    logits = head(dropout(tanh(pooler(h_[CLS])))), as in BertForSequenceClassification of `transformers`. Only the LoRA
    factors (see `lora`) and the head are trained, federated, kept in the ring and stepped by the server:
    2 r (D + D) numbers per layer and (D + 1) C of the head. The encoder, including the pooler, is one shared copy in
    `Model.frozen`. A checkpoint without a pooler gets a new one, which is trained with the head. A head in the
    checkpoint is ignored.

    Args:
        checkpoint: a folder with config.json and model.safetensors of any BERT-architecture encoder, or a name that
            `jaxafl.readers.pretrained.pretrained_directory` finds.
        num_classes: number of classes C.
        r: rank of LoRA; 0 trains the head alone.
        alpha: α of LoRA; the low-rank term is scaled by α / r.
        dropout: rate in [0, 1) of all dropout in training; `None` takes the rates of the checkpoint (usually 0.1).
        data_dir: data directory to search for a name; by default `$JAXAFL_DATA_DIR`, else TFDS's default.

    Returns:
        The model. Inputs are a dict of integers [B, L], such as those of `glue_mrpc`: `input_ids`, `token_type_ids` and
        `attention_mask` (1 for a token, 0 for padding); labels [B] integers. A token outside the vocabulary gives a
        loss of NaN.

    Raises:
        FileNotFoundError: the checkpoint is not found; the message lists the places searched.
        ImportError: the safetensors package is not installed.
        ValueError: an option is invalid, config.json does not describe a BERT encoder, or a tensor is missing or does
            not have the shape in config.json.

    References:
        Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", NAACL 2019;
        Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022. FADAS (Wang et al., ICML 2024,
        section 6) uses r = 1, α = 8.
    """
    rates: dict[str, Any] = {}
    if dropout is not None:
        check_number("bert", "dropout", dropout, least=0, below=1)
        rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"), dropout)
    folder = pretrained_directory(checkpoint, ["model.safetensors"], data_dir)
    config = dataclasses.replace(read_config(folder), **rates)
    module = BertClassifier(config, num_classes)
    shapes = flatten_dict(jax.eval_shape(module.init, jax.random.key(0), *_example())["params"])
    base, ignored = read_weights(folder, {keys: shape for keys, shape in shapes.items() if keys[0] != "classifier"})
    new = {"/".join(keys) for keys in shapes if keys not in base}
    description = {
        "network": "BertClassifier",
        "checkpoint": os.fspath(checkpoint),
        "num_classes": num_classes,
        "r": int(r),
        "alpha": float(alpha),
        "new_pooler": "pooler/kernel" in new,
        "ignored_tensors": ignored,
        **dataclasses.asdict(config),
    }

    @jax.jit  # removes the computation of the base, which is not used
    def drawn(key: Array) -> Flat:
        leaves = flatten_dict(module.init(key, *_example())["params"])
        return {keys: leaf for keys, leaf in leaves.items() if keys not in base}

    def init(key: Array, batch: Batch) -> tuple[Params, Params]:
        return unflatten_dict(base | drawn(key)), {}

    def apply(params: Params, state: Params, batch: Batch, key: Array, train: bool) -> tuple[Outputs, Params]:
        inputs = batch.x["input_ids"], batch.x["token_type_ids"], batch.x["attention_mask"] != 0
        logits: Any = module.apply({"params": params}, *inputs, train, rngs={"dropout": drawing_key(key)})
        return judged(softmax_cross_entropy, logits, batch), state

    whole = Model("bert", init, apply, description, references=("devlin2019",))
    adapted = lora(
        whole, r, alpha, lambda path: path.endswith(("query/kernel", "value/kernel")), trained=new.__contains__
    )

    def apply_adapted(params: Params, *given: Any) -> tuple[Outputs, Params]:
        pretrained = given[-1]
        return adapted.apply(params, *given[:-1], {"base": {**params, **pretrained}, "frozen": None})

    return dataclasses.replace(adapted, apply=apply_adapted, frozen=unflatten_dict(base))


def _example() -> tuple[Array, Array, Array]:
    token = jnp.zeros((1, 1), jnp.int32)
    return token, token, token == 0


def read_weights(folder: pathlib.Path, shapes: Flat) -> tuple[Flat, list[str]]:
    """Reads the tensors of a checkpoint into the paths of the modules.

    Tensors have the names of BertModel of `transformers`, with or without the prefix `bert.`; names of old releases
    (`LayerNorm.gamma`) are accepted. bfloat16 and float16 become float32.

    Args:
        folder: the checkpoint's folder, with model.safetensors.
        shapes: arrays or shapes of the modules' parameters by path, without a head. Its `"pooler"` is ignored if the
            checkpoint has none.

    Returns:
        The float32 arrays by path, and the names of the unused tensors.

    Raises:
        ImportError: the safetensors package is not installed.
        ValueError: tensors are missing or have the wrong shape.
    """
    path = folder / "model.safetensors"
    tensors = read_tensors(path)
    by_name = {_current_name(name): name for name in tensors}
    wanted = {keys: _tensor_name(keys) for keys in shapes}
    if not any(name.startswith("pooler.") for name in by_name):
        wanted = {keys: name for keys, name in wanted.items() if keys[0] != "pooler"}
    missing = [name for name in wanted.values() if name not in by_name]
    if missing:
        raise UserError(f"bert: {path} lacks {len(missing)} of {len(wanted)} tensors: {', '.join(missing[:5])} ...")
    found: Flat = {}
    for keys, name in wanted.items():
        value = np.asarray(tensors[by_name[name]], np.float32)
        found[keys] = np.ascontiguousarray(value.T if keys[-1] == "kernel" else value)  # in a checkpoint [out, in]
    return found, sorted(set(tensors) - {by_name[name] for name in wanted.values()})


def _current_name(name: str) -> str:
    name = name.removeprefix("bert.").replace("LayerNorm.gamma", "LayerNorm.weight")
    return name.replace("LayerNorm.beta", "LayerNorm.bias")


def _tensor_name(keys: tuple[str, ...]) -> str:
    """Maps `("encoder", "layer_0", "query", "kernel")` to `encoder.layer.0.attention.self.query.weight`."""
    parts = (_TENSORS.get(key) or key.replace("layer_", "encoder.layer.") for key in keys if key != "encoder")
    return ".".join(parts)


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
        ValueError: the file is no JSON object, lacks a size, or does not describe a BERT encoder with absolute
            positions.
    """
    path = folder / "config.json"
    with user_errors(f"bert: {path} does not describe the architecture of an encoder"):
        found = json.loads(path.read_text(encoding="utf-8"))
        fields = {field.name for field in dataclasses.fields(BertConfig)}
        config = BertConfig(**{name: value for name, value in found.items() if name in fields})
    usual: dict[str, tuple[Any, ...]] = {"model_type": ("bert",), "position_embedding_type": ("absolute",)}
    usual |= {"is_decoder": (False,), "add_cross_attention": (False,), "hidden_act": tuple(_ACTIVATIONS)}
    for name, allowed in usual.items():
        check_choice("bert", f"{name} in {path}", found.get(name, allowed[0]), allowed)
    return config


class BertClassifier(nn.Module):
    """Encoder, pooler (tanh dense on the first token), dropout, dense head for `num_classes`."""

    config: BertConfig
    num_classes: int

    @nn.compact
    def __call__(self, input_ids: Array, token_type_ids: Array, attention_mask: Array, train: bool = False) -> Array:
        """Computes logits [B, C] from tokens and token types, int [B, L], and a mask [B, L], True for real tokens."""
        encoder = BertEncoder(self.config, name="encoder")
        last = encoder(input_ids, token_type_ids, attention_mask, train)[-1]
        pooled = nn.tanh(nn.Dense(self.config.hidden_size, name="pooler")(last[:, 0]))
        rate = self.config.classifier_dropout
        rate = self.config.hidden_dropout_prob if rate is None else rate
        pooled = nn.Dropout(rate)(pooled, deterministic=not train)
        start = nn.initializers.normal(self.config.initializer_range)
        return nn.Dense(self.num_classes, kernel_init=start, name="classifier")(pooled)


class BertEncoder(nn.Module):
    """Embeddings and layers."""

    config: BertConfig

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
            layer = BertLayer(config, name=f"layer_{index}")
            states.append(layer(states[-1], attention_mask, train))
        return states


class BertLayer(nn.Module):
    """Self-attention and a two-layer perceptron, each added to its input and normalised."""

    config: BertConfig

    @nn.compact
    def __call__(self, x: Array, attention_mask: Array, train: bool) -> Array:
        config = self.config

        def residual(before: Array, y: Array, name: str) -> Array:
            y = nn.Dropout(config.hidden_dropout_prob)(y, deterministic=not train)
            return _norm(config, name)(before + y)

        queries, keys, values = (nn.Dense(config.hidden_size, name=name)(x) for name in ("query", "key", "value"))
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
