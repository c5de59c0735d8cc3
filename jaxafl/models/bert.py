"""BERT for classification: a frozen pretrained encoder with LoRA and a trained head."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util

from jaxafl.checks import check_decay, check_number, check_whole
from jaxafl.data.pretrained import pretrained_directory
from jaxafl.models.bert_encoder import BertClassifier, BertConfig, read_config
from jaxafl.models.bert_weights import read_weights
from jaxafl.models.losses import softmax_cross_entropy
from jaxafl.models.model import Array, Batch, Key, Model, Outputs, Params, State
from jaxafl.models.options import compute_dtype


def bert(
    checkpoint: str = "bert-base-uncased",
    num_classes: int = 2,
    r: int = 1,
    alpha: float = 8.0,
    dropout: float | None = None,
    dtype: str = "float32",
    data_dir: str | os.PathLike[str] | None = None,
) -> Model:
    """A pretrained BERT encoder with LoRA on the query and the value of every layer, and a new classification head.

    logits = head(dropout(tanh(pooler(h_[CLS]))), as BertForSequenceClassification of `transformers`. Only the LoRA
    matrices (see `jaxafl.models.lora`) and the head are trained, federated, kept in the ring and stepped by the server:
    2 r (D + D) numbers a layer and (D + 1) C of the head. The encoder, the pooler included, is one shared copy in
    `Model.frozen`. A checkpoint without a pooler gets a new one, which then belongs to the head: it is trained.
    Whatever head a checkpoint carries is left aside.

    Args:
        checkpoint: A folder with config.json and model.safetensors of any BERT-architecture encoder, or a name that
            `jaxafl.data.pretrained.pretrained_directory` finds.
        num_classes: Number of classes C.
        r: Rank of LoRA; 0 trains the head alone.
        alpha: α of LoRA; the low-rank term is scaled by α / r.
        dropout: Rate in [0, 1) of all dropout in training; `None` takes the checkpoint's own rates (0.1 as a rule).
        dtype: Precision of the computation, `"float32"` or `"bfloat16"`; trained parameters are float32 either way,
            and the kernels of the frozen encoder are stored in it.
        data_dir: Data directory in which a name is looked for; by default `$JAXAFL_DATA_DIR`, else TFDS's own default.

    Returns:
        The model. Inputs are a dict of integers [B, L], as `glue_mrpc` and its neighbours make it: `input_ids`,
        `token_type_ids` and `attention_mask` (1 for a token, 0 for padding); labels [B] integers. A token outside the
        vocabulary gives a loss of NaN.

    Raises:
        FileNotFoundError: If the checkpoint is not found: where it was looked for.
        ImportError: If the safetensors package is not installed.
        ValueError: If an option cannot work, config.json does not describe a BERT encoder, or a tensor is missing or of
            another shape than config.json says (which).

    References:
        Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", NAACL 2019;
        Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022. FADAS (Wang et al., ICML 2024,
        section 6) uses r = 1, α = 8.
    """
    check_whole("bert", "num_classes", num_classes)
    _check_lora(r, alpha, dropout)
    precision = compute_dtype(dtype)
    folder = pretrained_directory(checkpoint, ["model.safetensors"], data_dir)
    config = _with_dropout(read_config(folder), dropout)
    module = BertClassifier(config, num_classes, int(r), float(alpha), precision)
    made = jax.eval_shape(module.init, jax.random.key(0), *_example())["params"]
    weights, ignored = read_weights(folder, _of_the_base(made))
    description = {
        "network": "BertClassifier",
        "checkpoint": os.fspath(checkpoint),
        "num_classes": num_classes,
        "r": int(r),
        "alpha": float(alpha),
        "dtype": dtype,
        "new_pooler": "pooler" not in weights,
        "ignored_tensors": ignored,
        **dataclasses.asdict(config),
    }
    return _model(module, _stored(weights, precision), description)


def _check_lora(r: Any, alpha: Any, dropout: Any) -> None:
    check_whole("bert", "r", r, least=0)
    check_number("bert", "alpha", alpha, above=0)
    if dropout is not None:
        check_decay("bert", "dropout", dropout)


def _with_dropout(config: BertConfig, dropout: float | None) -> BertConfig:
    if dropout is None:
        return config
    return dataclasses.replace(
        config, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, classifier_dropout=dropout
    )


def _of_the_base(params: Params) -> Params:
    """Without the LoRA matrices and the head."""
    flat = traverse_util.flatten_dict(params)
    return traverse_util.unflatten_dict(
        {keys: leaf for keys, leaf in flat.items() if keys[0] != "classifier" and not keys[-2].endswith("_lora")}
    )


def _stored(weights: Params, precision: Any) -> Params:
    """Kernels in the precision of the products they enter: rounding them once or in every step is the same."""
    flat = traverse_util.flatten_dict(weights)
    stored = {keys: leaf.astype(precision or leaf.dtype) for keys, leaf in flat.items() if keys[-1] == "kernel"}
    return traverse_util.unflatten_dict(flat | stored)


def _model(module: BertClassifier, frozen: Params, description: dict[str, Any]) -> Model:
    base = traverse_util.flatten_dict(frozen)

    @jax.jit  # which leaves out the base that module.init makes
    def make(key: Key) -> Params:
        made = traverse_util.flatten_dict(module.init(key, *_example())["params"])
        return traverse_util.unflatten_dict({keys: leaf for keys, leaf in made.items() if keys not in base})

    def init(key: Key, batch: Batch) -> tuple[Params, State]:
        params = make(key)
        jax.eval_shape(lambda frozen: apply(params, {}, batch, key, False, frozen), frozen)
        return params, {}

    def apply(
        params: Params, state: State, batch: Batch, key: Key, train: bool, frozen: Params
    ) -> tuple[Outputs, State]:
        merged = traverse_util.flatten_dict(frozen) | traverse_util.flatten_dict(params)
        variables = {"params": traverse_util.unflatten_dict(merged)}
        inputs = _inputs(batch.x, module.config)
        logits: Any = module.apply(variables, *inputs, train, rngs={"dropout": key})
        outputs = softmax_cross_entropy(logits, batch)
        return jax.tree.map(lambda values: jnp.where(batch.mask, values, 0), outputs), state

    return Model("bert", init, apply, description, frozen, references=("devlin2019", "hu2022"))


def _example() -> tuple[Array, Array, Array]:
    token = jnp.zeros((1, 1), jnp.int32)
    return token, token, token == 0


def _inputs(x: Any, config: BertConfig) -> tuple[Array, Array, Array]:
    """Tokens, token types and mask [B, L], checked."""
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
