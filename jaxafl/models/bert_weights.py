"""The weights of a BERT checkpoint in safetensors, as the tree of the Flax modules."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import numpy as np
from flax import traverse_util

from jaxafl.models.checkpoint import read_tensors

_LAYER = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention_output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
    "output_norm": "output.LayerNorm",
}
_EMBEDDINGS = {"embeddings_norm": "embeddings.LayerNorm"}
_LEAF = {"kernel": "weight", "scale": "weight", "bias": "bias"}
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def read_weights(folder: pathlib.Path, shapes: Any) -> tuple[dict[str, Any], list[str]]:
    """The tensors of a checkpoint in the places where the modules look for them.

    Names are those of the BertModel of `transformers`, with or without the prefix `bert.`, of its old releases
    (`LayerNorm.gamma`) too. bfloat16 and float16 become float32.

    Args:
        folder: The checkpoint's folder, with model.safetensors.
        shapes: Nested dict of arrays or shapes: the parameters of the modules, without a head. Its `"pooler"` is left
            out where the checkpoint has none.

    Returns:
        The nested dict of float32 arrays, and the names of the tensors that were not asked for.

    Raises:
        ImportError: If the safetensors package is not installed.
        ValueError: If tensors are missing or of the wrong shape: which, what was found and what is expected.
    """
    path = folder / "model.safetensors"
    tensors = read_tensors(path)
    own = {_own_name(name): name for name in tensors}
    wanted = {keys: _tensor_name(keys) for keys in traverse_util.flatten_dict(shapes)}
    if not any(name.startswith("pooler.") for name in own):
        wanted = {keys: name for keys, name in wanted.items() if keys[0] != "pooler"}
    missing = [name for name in wanted.values() if name not in own]
    if missing:
        raise ValueError(
            f"{path} lacks {len(missing)} of {len(wanted)} tensors: {', '.join(missing[:5])}"
            f"{' ...' if len(missing) > 5 else ''}; it has {', '.join(sorted(tensors)[:3])} ..."
        )
    flat, leaves = {}, traverse_util.flatten_dict(shapes)
    for keys, name in wanted.items():
        value = np.asarray(tensors[own[name]], np.float32)
        value = value.T if keys[-1] == "kernel" else value
        if value.shape != leaves[keys].shape:
            expected = leaves[keys].shape[::-1] if keys[-1] == "kernel" else leaves[keys].shape
            raise ValueError(
                f"{path}: tensor {own[name]} has shape {tensors[own[name]].shape}, the sizes in config.json ask for "
                f"{expected}"
            )
        flat[keys] = np.ascontiguousarray(value)
    ignored = sorted(set(tensors) - {own[name] for name in wanted.values()})
    return traverse_util.unflatten_dict(flat), ignored


def _own_name(name: str) -> str:
    name = name.removeprefix("bert.")
    for old, new in _OLD_NAMES.items():
        name = name.replace(old, new)
    return name


def _tensor_name(keys: tuple[str, ...]) -> str:
    """`("encoder", "layer_0", "query", "kernel")` as `encoder.layer.0.attention.self.query.weight`."""
    if keys[0] == "pooler":
        return f"pooler.dense.{_LEAF[keys[1]]}"
    layer = re.fullmatch(r"layer_(\d+)", keys[1])
    if layer:
        return f"encoder.layer.{layer[1]}.{_LAYER[keys[2]]}.{_LEAF[keys[3]]}"
    return f"{_EMBEDDINGS[keys[1]]}.{_LEAF[keys[2]]}" if len(keys) == 3 else f"embeddings.{keys[1]}.weight"
