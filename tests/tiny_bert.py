"""A BERT checkpoint of two small layers with random weights, as a folder, and a slow encoder in float64 to check it."""

from __future__ import annotations

import functools
import json
import math
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.models.model import Batch
from jaxafl.models.networks.bert import bert

CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "film", "the", "a", "was", "##s", ".", "cafe", "Film"]


def tensors(config: dict[str, Any] = CONFIG, seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights under the names of transformers' BertModel."""
    rng = np.random.default_rng(seed)
    width, inner = config["hidden_size"], config["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], width),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], width),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], width),
    }
    dense = {"pooler.dense": (width, width)}
    norms = ["embeddings.LayerNorm"]
    for layer in range(config["num_hidden_layers"]):
        own = f"encoder.layer.{layer}"
        dense |= {f"{own}.attention.self.{name}": (width, width) for name in ("query", "key", "value")}
        dense |= {f"{own}.attention.output.dense": (width, width)}
        dense |= {f"{own}.intermediate.dense": (inner, width), f"{own}.output.dense": (width, inner)}
        norms += [f"{own}.attention.output.LayerNorm", f"{own}.output.LayerNorm"]
    for name, shape in dense.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    made = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    for name in norms:
        made[f"{name}.weight"] = rng.uniform(0.5, 1.5, width).astype(np.float32)
        made[f"{name}.bias"] = rng.normal(0, 0.3, width).astype(np.float32)
    return made


def write(folder: pathlib.Path, weights: dict[str, np.ndarray] | None = None, **changes: Any) -> pathlib.Path:
    """Writes config.json (with changes), model.safetensors and vocab.txt; returns the folder."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIG | changes
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    save_file(tensors(config) if weights is None else weights, folder / "model.safetensors")
    return folder


def tokens(rows: int = 3, length: int = 7, seed: int = 0) -> dict[str, np.ndarray]:
    """Random examples of random lengths."""
    rng = np.random.default_rng(seed)
    mask = (np.arange(length) < rng.integers(2, length + 1, (rows, 1))).astype(np.int32)
    ids = rng.integers(4, 40, (rows, length)).astype(np.int32) * mask
    return {"input_ids": ids, "token_type_ids": rng.integers(0, 2, ids.shape).astype(np.int32), "attention_mask": mask}


def batch_of(x: dict[str, np.ndarray], seed: int = 0) -> Batch:
    rows = len(x["input_ids"])
    labels = np.random.default_rng(seed).integers(0, 2, rows).astype(np.int32)
    return Batch({name: jnp.asarray(leaf) for name, leaf in x.items()}, jnp.asarray(labels), jnp.ones(rows, bool))


@functools.cache
def made(path: pathlib.Path, dropout: float | None = 0.0, **options):
    """One model per set of options, so that its programs are compiled once."""
    return bert(str(path), dropout=dropout, **options)


def started(model, batch, away_from_zero=True):
    """Parameters with B of LoRA away from zero, so that it counts."""
    params, state = model.init(jax.random.key(0), batch)
    assert state == {}
    if away_from_zero:
        params = jax.tree.map(lambda leaf: leaf + 0.05 * jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape), params)
    return params


@functools.partial(jax.jit, static_argnums=(0, 3))
def _losses(model, params, batch, train, key, frozen):
    return model.bound(frozen)(params, {}, batch, key, train)[0].loss


def losses(model, params, batch, train=False, key=1):
    return _losses(model, params, batch, train, jax.random.key(key), model.frozen)


def hidden_states(weights: dict[str, np.ndarray], ids: np.ndarray, types: np.ndarray, mask: np.ndarray) -> list[Any]:
    """Hidden states [L, D] of one example: of the embeddings, then of every layer; one head at a time, in float64."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}

    def dense(name: str, x: np.ndarray) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        scale = np.sqrt((centred**2).mean(-1, keepdims=True) + CONFIG["layer_norm_eps"])
        return centred / scale * w[f"{name}.weight"] + w[f"{name}.bias"]

    tables = (w[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type"))
    x = sum(table[rows] for table, rows in zip(tables, (ids, np.arange(len(ids)), types), strict=True))
    states, layer = [norm("embeddings.LayerNorm", x)], "encoder.layer.0"
    while f"{layer}.output.dense.weight" in w:
        x = states[-1]
        queries, keys, values = (dense(f"{layer}.attention.self.{one}", x) for one in ("query", "key", "value"))
        context = np.zeros_like(x)
        for part in np.split(np.arange(x.shape[1]), CONFIG["num_attention_heads"]):
            scores = np.exp(queries[:, part] @ keys[:, part].T / math.sqrt(len(part))) * mask
            context[:, part] = scores / scores.sum(1, keepdims=True) @ values[:, part]
        x = norm(f"{layer}.attention.output.LayerNorm", x + dense(f"{layer}.attention.output.dense", context))
        inner = dense(f"{layer}.intermediate.dense", x)
        inner = 0.5 * inner * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
        states.append(norm(f"{layer}.output.LayerNorm", x + dense(f"{layer}.output.dense", inner)))
        layer = f"encoder.layer.{len(states) - 1}"
    return states
