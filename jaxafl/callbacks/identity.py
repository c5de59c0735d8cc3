"""Fingerprints of runs (options, data, model, versions), which decide if a checkpoint may be resumed."""

from __future__ import annotations

import importlib.metadata
import json
import pathlib
import platform
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

from jaxafl.callbacks.content import content
from jaxafl.data.federated import FederatedData
from jaxafl.engine.state import example_batch
from jaxafl.models.model import Model
from jaxafl.options import UserError, shown, warn
from jaxafl.references import version


def identity(parts: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """Returns the fingerprint of a run: nested tables that JSON can hold.

    Args:
        parts: `data`, `model`, `client`, `server`, `clock` and, if there is one, `attack` of a simulation.
        **options: options of the run.
    """
    libraries, data = ("jax", "jaxlib", "numpy", "flax", "optax"), parts["data"]
    steps = [data.preprocessing.transform, data.preprocessing.augment, data.gather]
    return {
        **{name: content(part) for name, part in parts.items() if name not in ("data", "model")},
        "data": {"name": data.name, **content(data.description), "content": content_of(data), "steps": content(steps)},
        "model": _of_model(parts["model"], data),
        "run": content(options),
        "precision": str(jnp.result_type(float)),
        "versions": {
            "jaxafl": version(),
            **{name: importlib.metadata.version(name) for name in libraries},
            "python": platform.python_version(),
            "device": _device(),
        },
    }


def content_of(data: FederatedData) -> Any:
    """Returns the checksums of all samples, and of the clients that own them."""
    parts = (data.arrays, data.counts, data.x_test, data.y_test, data.test_clients, data.validation)
    leaves = jax.tree.leaves((*parts, list(data.test_sets.values())[1:]))
    return content([np.asarray(leaf) for leaf in leaves])


def _of_model(model: Model, data: FederatedData) -> dict[str, Any]:
    """Returns the fingerprint of a model: its description, the shapes of its leaves, and its frozen arrays."""
    batch = example_batch(data.form)
    shapes = jax.tree_util.tree_leaves_with_path(jax.eval_shape(model.init, jax.random.key(0), batch))
    frozen = content([np.asarray(leaf) for leaf in jax.tree.leaves(model.held(batch))])
    leaves = {jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in shapes}
    described = {"name": model.name, **content(model.description), "frozen": frozen, "leaves": leaves}
    return described | {"source": content([model.init, model.apply])}


def check_identity(folder: pathlib.Path, about: Mapping[str, Any], current: Mapping[str, Any]) -> str:
    """Returns the versions that have changed since a folder was begun, and warns of the last changes.

    Args:
        folder: the folder.
        about: what it holds: `identity`, and the versions that had `changed` before.
        current: the fingerprint of this run.

    Raises:
        ValueError: the folder belongs to another run; the message lists the differences.
    """
    tables = about["identity"], json.loads(json.dumps(current))
    before, now = (flatten_dict(table, sep=".", keep_empty_nodes=True) for table in tables)
    found = {one: (before.get(one), now.get(one)) for one in before | now if before.get(one) != now.get(one)}
    versions = {one.removeprefix("versions."): found.pop(one) for one in [*found] if one.startswith("versions.")}
    if found:
        raise UserError(f"{folder} holds something else: {_listed(found)}; name another folder, or the same options")
    changed = _listed(versions)
    if changed:
        warn(f"{folder} goes on, though {changed}: last digits may differ")
    return "; ".join(filter(None, (about["changed"], changed)))


def _device() -> str:
    return jax.devices()[0].device_kind


def _listed(found: Mapping[str, tuple[Any, Any]]) -> str:
    code = [f"the code of {name.removesuffix('.source')} has changed" for name in found if name.endswith(".source")]
    values = {name: values for name, values in found.items() if not name.endswith(".source")}
    return ", ".join([*code, *(f"{name} was {shown(old)} and is {shown(new)}" for name, (old, new) in values.items())])
