"""Parameters in safetensors files, and models that start from given parameters."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

from jaxafl.models.frozen import Held
from jaxafl.models.model import Batch, Key, Model, Params, State
from jaxafl.options import as_path
from jaxafl.readers.replacing import replacing


def save_parameters(path: str | os.PathLike[str], params: Params) -> None:
    """Writes parameters to a safetensors file, for example `params` of the result of `Simulation.train`.

    A tensor's name is its path in the tree, joined by `/`; shapes, dtypes and bits are kept. An existing file is
    replaced only when the new one is complete.

    Args:
        path: the file to write; its folder must exist.
        params: pytree of arrays.

    Raises:
        ImportError: the safetensors package is not installed.
        FileNotFoundError: the folder does not exist.
        ValueError: a key of the tree contains `/`.
    """
    target = as_path(path)
    _require_safetensors(f"writing {target}")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {target}: the folder {target.parent} does not exist")
    from safetensors.numpy import save_file

    with replacing(target) as unfinished:
        # the library writes an array's memory, so another order would be saved transposed
        save_file({name: np.asarray(leaf, order="C") for name, leaf in named_leaves(params).items()}, unfinished)


def load_parameters(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads a file of `save_parameters`.

    Args:
        path: the safetensors file.

    Returns:
        Nested dict of numpy arrays; lists and tuples of the saved tree become dicts with the keys `"0"`, `"1"`, ...
        (`initialised` restores the structure of the model).

    Raises:
        ImportError: the safetensors package is not installed.
        FileNotFoundError: the file does not exist.
        ValueError: the file is not a complete safetensors file.
    """
    return unflatten_dict(read_tensors(path), sep="/")


def initialised(model: Model, params: Any, model_state: Any = None) -> Model:
    """Returns a model that starts from given parameters instead of drawing them.

    Args:
        model: the model.
        params: a file of `save_parameters`, or a pytree of arrays such as `Trained.params`; frozen parameters may be
            included or not.
        model_state: a file or a pytree of the non-trainable state (batch statistics, `Trained.model_state`), with or
            without the state of frozen layers; `None` takes the initial state of the model.

    Returns:
        The model with another `init`, which raises `ValueError` if names, shapes or dtypes do not match the model.

    Raises:
        ImportError, FileNotFoundError, ValueError: a file cannot be read.
    """
    given = _named(params)
    given_state = None if model_state is None else _named(model_state)

    def init(key: Key, batch: Batch) -> tuple[Params, State]:
        drawn_params, drawn_state = model.init(key, batch)
        base, base_state = map(named_leaves, _both(jax.eval_shape(lambda: held(batch))))
        trained = {name: leaf for name, leaf in given.items() if name not in base}
        placed = _placed(model.name, "parameters", trained, drawn_params)
        if given_state is not None:
            trained = {name: leaf for name, leaf in given_state.items() if name not in base_state}
            drawn_state = _placed(model.name, "model state", trained, drawn_state)
        return placed, drawn_state

    def held(batch: Batch) -> Any:
        frozen = model.frozen(batch) if callable(model.frozen) else model.frozen
        parts = _both(frozen)
        places = ((given, "frozen parameters", parts.params), (given_state or {}, "frozen model state", parts.state))
        both = Held(
            *(
                _placed(
                    model.name, what, {name: new.get(name, leaf) for name, leaf in named_leaves(part).items()}, part
                )
                for new, what, part in places
            )
        )
        return both if isinstance(frozen, Held) else both.params

    source = os.fspath(params) if isinstance(params, str | os.PathLike) else "given parameters"
    described = model.description | {"initialised": source}
    frozen = None if model.frozen is None else held
    return dataclasses.replace(model, init=init, description=described, frozen=frozen)


def read_tensors(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Reads the tensors of a safetensors file by name; raises the errors of `load_parameters`."""
    source = as_path(path)
    _require_safetensors(f"reading {source}")
    if not source.is_file():
        raise FileNotFoundError(f"there is no file {source}")
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(source)
    except SafetensorError as error:
        raise ValueError(f"{source} is not a complete safetensors file: {error}") from error


def named_leaves(tree: Any) -> dict[str, Any]:
    """Returns the leaves of a pytree by path, joined by `/`."""
    leaves = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        parts = [jax.tree_util.keystr((key,), simple=True) for key in path]
        if any("/" in part for part in parts):
            raise ValueError(f"tensor names join the keys of the tree by '/', so that no key may contain it: {parts}")
        leaves["/".join(parts)] = leaf
    return leaves


def _both(held: Any) -> Held:
    return held if isinstance(held, Held) else Held(held, None)


def _require_safetensors(purpose: str) -> None:
    if importlib.util.find_spec("safetensors") is None:
        raise ImportError(f'{purpose} needs the safetensors package: pip install "jaxafl[bert]"')


def _named(source: Any) -> dict[str, np.ndarray]:
    if isinstance(source, str | os.PathLike):
        return read_tensors(source)
    return {name: np.asarray(leaf) for name, leaf in named_leaves(source).items()}


def _placed(model: str, what: str, given: dict[str, np.ndarray], tree: Any) -> Any:
    """Returns the given arrays in the structure of `tree`, after checking names, shapes and dtypes."""
    expected = named_leaves(tree)
    missing, unexpected = sorted(expected.keys() - given.keys()), sorted(given.keys() - expected.keys())
    if missing or unexpected:
        raise ValueError(
            f"the given {what} are not those of {model}: missing {_listed(missing)}; unexpected {_listed(unexpected)}"
        )
    given = dict(given)
    for name, leaf in expected.items():
        found = given[name]
        if (found.dtype, leaf.dtype) == (np.float32, np.float64):  # with jax_enable_x64
            given[name] = found = found.astype(np.float64)
        if found.shape != leaf.shape or found.dtype != leaf.dtype:
            same = found.shape == leaf.shape
            cast = f"; write jax.tree.map(lambda leaf: leaf.astype('{leaf.dtype}'), ...) of them" if same else ""
            raise ValueError(
                f"the given {what} do not fit {model}: tensor {name} is {found.dtype}{list(found.shape)}, expected "
                f"{leaf.dtype}{list(leaf.shape)}{cast}"
            )
    return jax.tree.unflatten(jax.tree.structure(tree), [jnp.asarray(given[name]) for name in expected])


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''}" if names else "none"
