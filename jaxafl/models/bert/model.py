"""BERT for classification: a frozen pretrained encoder with LoRA and a trained head."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxafl.device.keys import drawing_key
from jaxafl.models.adapters import outputs_of, tried
from jaxafl.models.bert.encoder import BertClassifier, BertConfig, read_config
from jaxafl.models.checkpoint import read_tensors
from jaxafl.models.model import Array, Batch, Model, Outputs, Params, softmax_cross_entropy
from jaxafl.options import check_number, check_whole
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
    matrices (see `LoRA`) and the head are trained, federated, kept in the ring and stepped by the server:
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
        ValueError: an option cannot work, config.json does not describe a BERT encoder, or a tensor is missing or does
            not have the shape in config.json.

    References:
        Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", NAACL 2019;
        Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022. FADAS (Wang et al., ICML 2024,
        section 6) uses r = 1, α = 8.
    """
    check_whole("bert", "num_classes", num_classes)
    check_whole("bert", "r", r, least=0)
    check_number("bert", "alpha", alpha, above=0)
    rates: dict[str, Any] = {}
    if dropout is not None:
        check_number("bert", "dropout", dropout, least=0, below=1)
        rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"), dropout)
    folder = pretrained_directory(checkpoint, ["model.safetensors"], data_dir)
    config = dataclasses.replace(read_config(folder), **rates)
    module = BertClassifier(config, int(r), float(alpha), num_classes=num_classes)
    shapes = flatten_dict(jax.eval_shape(module.init, jax.random.key(0), *_example())["params"])
    base, ignored = read_weights(folder, {keys: leaf for keys, leaf in shapes.items() if not _is_trained(keys)})
    description = {
        "network": "BertClassifier",
        "checkpoint": os.fspath(checkpoint),
        "num_classes": num_classes,
        "r": int(r),
        "alpha": float(alpha),
        "new_pooler": ("pooler", "kernel") not in base,
        "ignored_tensors": ignored,
        **dataclasses.asdict(config),
    }

    @jax.jit  # removes the computation of the base, which is not used
    def make(key: Array) -> Params:
        drawn = flatten_dict(module.init(key, *_example())["params"])
        return unflatten_dict({keys: leaf for keys, leaf in drawn.items() if keys not in base})

    def apply(
        params: Params, state: Params, batch: Batch, key: Array, train: bool, frozen: Params
    ) -> tuple[Outputs, Params]:
        variables = {"params": unflatten_dict(flatten_dict(frozen) | flatten_dict(params))}
        logits: Any = module.apply(variables, *_inputs(batch.x, config), train, rngs={"dropout": drawing_key(key)})
        return outputs_of(softmax_cross_entropy, logits, batch), state

    frozen = unflatten_dict(base)
    init = tried(lambda key, batch: (make(key), {}), apply, frozen)
    return Model("bert", init, apply, description, frozen, references=("devlin2019", "hu2022"))


def _is_trained(keys: tuple[str, ...]) -> bool:
    """Returns True if a parameter belongs to the head or to LoRA."""
    return keys[0] == "classifier" or keys[-2].endswith("_lora")


def _example() -> tuple[Array, Array, Array]:
    token = jnp.zeros((1, 1), jnp.int32)
    return token, token, token == 0


def _inputs(x: Any, config: BertConfig) -> tuple[Array, Array, Array]:
    """Checks the inputs, and returns tokens, token types and mask [B, L]."""
    names = ("input_ids", "token_type_ids", "attention_mask")
    if not isinstance(x, dict) or set(x) != set(names):
        found = f"a dict of {', '.join(map(str, x))}" if isinstance(x, dict) else f"an array of shape {jnp.shape(x)}"
        raise TypeError(
            f"bert needs tokens, a dict of {', '.join(names)}, got {found}; use a tokenised dataset such as glue_mrpc"
        )
    shapes = {jnp.shape(x[name]) for name in names}
    if len(shapes) > 1 or len(shape := shapes.pop()) != 2:
        raise ValueError(f"bert needs {', '.join(names)} of one shape [B, L], got {[jnp.shape(x[n]) for n in names]}")
    if not all(jnp.issubdtype(x[name].dtype, jnp.integer) for name in names[:2]):
        raise TypeError(f"bert needs integer tokens, got {x[names[0]].dtype} and {x[names[1]].dtype}")
    if shape[1] > config.max_position_embeddings:
        raise ValueError(
            f"bert: the inputs are {shape[1]} tokens long, the checkpoint has {config.max_position_embeddings} "
            "positions; load the dataset with a smaller max_length"
        )
    return x["input_ids"], x["token_type_ids"], x["attention_mask"] != 0


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
        raise ValueError(
            f"{path} lacks {len(missing)} of {len(wanted)} tensors: {', '.join(missing[:5])}"
            f"{' ...' if len(missing) > 5 else ''}; it has {', '.join(sorted(tensors)[:3])} ..."
        )
    found: Flat = {}
    for keys, name in wanted.items():
        tensor = tensors[by_name[name]]
        order = -1 if keys[-1] == "kernel" else 1  # kernels of a checkpoint are [out, in]
        expected = shapes[keys].shape[::order]
        if tensor.shape != expected:
            raise ValueError(
                f"{path}: tensor {by_name[name]} has shape {tensor.shape}, the sizes in config.json ask for {expected}"
            )
        value = np.asarray(tensor, np.float32)
        found[keys] = np.ascontiguousarray(value.T if order < 0 else value)
    return found, sorted(set(tensors) - {by_name[name] for name in wanted.values()})


def _current_name(name: str) -> str:
    name = name.removeprefix("bert.").replace("LayerNorm.gamma", "LayerNorm.weight")
    return name.replace("LayerNorm.beta", "LayerNorm.bias")


def _tensor_name(keys: tuple[str, ...]) -> str:
    """Maps `("encoder", "layer_0", "query", "kernel")` to `encoder.layer.0.attention.self.query.weight`."""
    parts = (_TENSORS.get(key) or key.replace("layer_", "encoder.layer.") for key in keys if key != "encoder")
    return ".".join(parts)
