"""Parameters to and from safetensors files, and a model that starts from them."""

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
    """Write parameters as a safetensors file, for example the `params` of what `Simulation.train` returns.

    A tensor's name is its path in the tree, joined by `/`; shapes, dtypes and bits are kept. A file of that name is
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
        # the library writes the memory of an array as it lies there
        save_file({name: np.asarray(leaf, order="C") for name, leaf in named_leaves(params).items()}, unfinished)


def load_parameters(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a file of `save_parameters`.

    Args:
        path: the safetensors file.

    Returns:
        Nested dict of numpy arrays; lists and tuples of the saved tree come back as dicts with the keys `"0"`, `"1"`,
        ... (`initialised` puts them back into the model's own structure).

    Raises:
        ImportError: the safetensors package is not installed.
        FileNotFoundError: the file does not exist.
        ValueError: it is no complete safetensors file.
    """
    return unflatten_dict(read_tensors(path), sep="/")


def initialised(model: Model, params: Any, model_state: Any = None) -> Model:
    """A model that starts from given parameters instead of drawing them.

    Args:
        model: the model.
        params: a file of `save_parameters`, or a pytree of arrays such as `Trained.params`; for a model with frozen
            parameters, with all, some or none of these.
        model_state: the same for the non-trainable state (batch statistics, `Trained.model_state`), with or without
            that of frozen layers; `None` leaves it as the model makes it.

    Returns:
        The model with another `init`. Making the first model raises `ValueError` where names, shapes or dtypes are not
        those of the model: which tensors are missing or unexpected, or what was found and what is expected.

    Raises:
        ImportError, FileNotFoundError, ValueError: a file cannot be read.
    """
    given = _named(params)
    given_state = None if model_state is None else _named(model_state)

    def init(key: Key, batch: Batch) -> tuple[Params, State]:
        made_params, made_state = model.init(key, batch)
        base, base_state = map(named_leaves, _both(jax.eval_shape(lambda: held(batch))))
        own = {name: leaf for name, leaf in given.items() if name not in base}
        placed = _placed(model.name, "parameters", own, made_params)
        if given_state is not None:
            own = {name: leaf for name, leaf in given_state.items() if name not in base_state}
            made_state = _placed(model.name, "model state", own, made_state)
        return placed, made_state

    def held(batch: Batch) -> Any:
        made = model.frozen(batch) if callable(model.frozen) else model.frozen
        parts = _both(made)
        places = ((given, "frozen parameters", parts.params), (given_state or {}, "frozen model state", parts.state))
        both = Held(
            *(
                _placed(
                    model.name, what, {name: own.get(name, leaf) for name, leaf in named_leaves(part).items()}, part
                )
                for own, what, part in places
            )
        )
        return both if isinstance(made, Held) else both.params

    source = os.fspath(params) if isinstance(params, str | os.PathLike) else "given parameters"
    described = model.description | {"initialised": source}
    frozen = None if model.frozen is None else held
    return dataclasses.replace(model, init=init, description=described, frozen=frozen)


def read_tensors(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file by name; raises as `load_parameters` does."""
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
    """The leaves of a pytree by their path, joined by `/`."""
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


def _placed(model: str, what: str, given: dict[str, np.ndarray], made: Any) -> Any:
    """The given arrays in the structure that the model made."""
    expected = named_leaves(made)
    missing, unexpected = sorted(expected.keys() - given.keys()), sorted(given.keys() - expected.keys())
    if missing or unexpected:
        raise ValueError(
            f"the given {what} are not those of {model}: missing {_listed(missing)}; unexpected {_listed(unexpected)}"
        )
    given = dict(given)
    for name, leaf in expected.items():
        found = given[name]
        if (found.dtype, leaf.dtype) == (np.float32, np.float64):  # where JAX computes in float64
            given[name] = found = found.astype(np.float64)
        if found.shape != leaf.shape or found.dtype != leaf.dtype:
            raise ValueError(
                f"the given {what} do not fit {model}: tensor {name} is {found.dtype}{list(found.shape)}, expected "
                f"{leaf.dtype}{list(leaf.shape)}"
            )
    return jax.tree.unflatten(jax.tree.structure(made), [jnp.asarray(given[name]) for name in expected])


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''}" if names else "none"
