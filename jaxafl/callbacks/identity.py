"""Fingerprints of runs (options, data, model, versions), which decide if a checkpoint may be resumed."""

from __future__ import annotations

import importlib.metadata
import json
import pathlib
import platform
import re
import warnings
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

from jaxafl.data.federated import FederatedData
from jaxafl.device.content import content
from jaxafl.device.switches import numerical_options
from jaxafl.engine.state import example_batch
from jaxafl.models.model import Model
from jaxafl.options import UserError, shown
from jaxafl.references import version


def identity(parts: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """Returns the fingerprint of a run: nested tables that JSON can hold.

    Args:
        parts: `data`, `model`, `client`, `server`, `clock` and, if there is one, `attack` of a simulation.
        **options: options of the run.
    """
    data = parts["data"]
    model = parts["model"]
    of_jax = {name: value for name, value in numerical_options().items() if name != "jax_enable_x64"}
    return {
        **{name: content(part) for name, part in parts.items() if name not in ("data", "model")},
        "data": _of_data(data),
        "model": _of_model(model, data),
        "run": content(options),
        "precision": str(jnp.result_type(float)),
        **of_jax,
        "versions": {
            "jaxafl": version(),
            "jax": jax.__version__,
            "jaxlib": jaxlib.__version__,
            "numpy": np.__version__,
            **{name: importlib.metadata.version(name) for name in ("flax", "optax", "orbax-checkpoint")},
            "python": platform.python_version(),
            "device": _device(),
        },
    }


def _of_data(data: FederatedData) -> dict[str, Any]:
    parts = (data.arrays, data.counts, data.x_test, data.y_test, data.test_clients, data.validation)
    leaves = jax.tree.leaves((*parts, list(data.test_sets.values())[1:]))
    steps = [data.preprocessing.transform, data.preprocessing.augment, data.gather]
    described = {"name": data.name, **content(data.description)}
    return {**described, "content": content([np.asarray(leaf) for leaf in leaves]), "steps": content(steps)}


def _of_model(model: Model, data: FederatedData) -> dict[str, Any]:
    """Returns the fingerprint of a model; `program` is the checksum of the jaxprs of its initialiser and its loss."""
    batch = example_batch(data.form)
    key = jax.random.key(0)
    initial = jax.make_jaxpr(model.init)(key, batch)
    params, state = jax.eval_shape(model.init, key, batch)

    def loss(params: Any, state: Any, frozen: Any, key: Any) -> Any:
        return model.bound(frozen)(params, state, batch, key, True)

    applied = jax.make_jaxpr(loss)(params, state, model.held(batch), key)
    constants = content([np.asarray(leaf) for one in (initial, applied) for leaf in one.consts])
    texts = (one.pretty_print(use_color=False) for one in (initial, applied))  # a terminal would get coloured ones
    program = zlib.crc32(_without_addresses(f"{' '.join(texts)} {constants}").encode())
    frozen = content([np.asarray(leaf) for leaf in jax.tree.leaves(model.held(batch))])
    return {"name": model.name, **content(model.description), "frozen": frozen, "program": f"{program:08x}"}


def _without_addresses(text: str) -> str:
    """Removes memory addresses, which differ between processes."""
    return re.sub(r"0x[0-9a-f]+", "", text)


def check_identity(folder: pathlib.Path, saved: Mapping[str, Any], current: Mapping[str, Any]) -> str:
    """Returns the versions that changed since a folder was written, and warns of them.

    Raises:
        ValueError: the folder belongs to another run; the message lists the differences.
    """
    before, now = json.loads(json.dumps([saved, current]))
    versions = _differing(before.pop("versions"), now.pop("versions"))
    if versions:  # other versions trace another program, and another Python has other bytecode
        other = {"program"} if set(versions) == {"device"} else {"program", "code"}
        before, now = _without(before, other), _without(now, other)
    if found := _differing(before, now):
        raise UserError(f"{folder} holds something else: {_listed(found)}; name another folder, or the same options")
    changed = _listed(versions)
    if changed:
        warnings.warn(f"{folder} goes on, though {changed}: last digits may differ", stacklevel=2)
    return changed


def _device() -> str:
    return jax.devices()[0].device_kind


def _without(table: Any, names: set[str]) -> Any:
    if isinstance(table, list):
        return [_without(value, names) for value in table]
    if not isinstance(table, dict):
        return table
    return {name: _without(value, names) for name, value in table.items() if name not in names}


def _differing(before: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> dict[str, tuple[Any, Any]]:
    """Returns path -> (before, now) of the entries in which nested tables differ."""
    found: dict[str, tuple[Any, Any]] = {}
    for name in dict.fromkeys([*before, *now]):
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            found |= _differing(old, new, f"{path}{name}.")
        elif old != new:
            found[f"{path}{name}"] = (old, new)
    return found


def _listed(found: Mapping[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{name} was {_short(old)} and is {_short(new)}" for name, (old, new) in found.items())


def _short(value: Any) -> str:
    return shown(value) if not isinstance(value, dict) else shown(value.get("name", value))
