"""Parameters in safetensors files, and models that start from given parameters."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

from jaxafl.models.frozen import Held, named_leaves
from jaxafl.models.model import Batch, Key, Model, Params, State
from jaxafl.options import UserError, as_path, required
from jaxafl.readers.replacing import replacing

_SAFETENSORS = ("safetensors.numpy", "bert", "a file of parameters")


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
    """
    # the library writes an array's memory, so another order would be saved transposed
    arrays = {name: np.asarray(leaf, order="C") for name, leaf in named_leaves(params).items()}
    content = required(*_SAFETENSORS).save(arrays)
    with replacing(path) as unfinished:
        unfinished.write_bytes(content)


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
        params: what `Simulation.train` returns, with parameters and state; or a file of `save_parameters`, or a pytree
            of arrays such as `Trained.params`. Frozen parameters may be included or not.
        model_state: a file or a pytree of the non-trainable state (batch statistics, `Trained.model_state`), with or
            without the state of frozen layers. A model that has one needs it: statistics of other parameters would
            give other outputs.

    Returns:
        The model with another `init`, which raises `ValueError` if names, shapes or dtypes do not match the model, or
        if its state is not given.

    Raises:
        ImportError, FileNotFoundError, ValueError: a file cannot be read.
    """
    if hasattr(params, "params") and hasattr(params, "model_state"):
        params, model_state = params.params, params.model_state if model_state is None else model_state
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
        elif jax.tree.leaves(drawn_state):
            raise UserError(
                f"initialised: {model.name} has a state beside its parameters, {', '.join(named_leaves(drawn_state))}, "
                "which is not given; expected initialised(model, trained), the result of sim.train, or model_state=..."
            )
        return placed, drawn_state

    def held(batch: Batch) -> Any:
        frozen = model.frozen(batch) if callable(model.frozen) else model.frozen
        parts = _both(frozen)
        params = _placed(model.name, "frozen parameters", named_leaves(parts.params) | given, parts.params, True)
        new_state = named_leaves(parts.state) | (given_state or {})
        state = _placed(model.name, "frozen model state", new_state, parts.state, True)
        return Held(params, state) if isinstance(frozen, Held) else params

    source = os.fspath(params) if isinstance(params, str | os.PathLike) else "given parameters"
    described = model.description | {"initialised": source}
    frozen = None if model.frozen is None else held
    return dataclasses.replace(model, init=init, description=described, frozen=frozen)


def read_tensors(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Reads the tensors of a safetensors file by name; raises the errors of `load_parameters`."""
    library = required(*_SAFETENSORS)
    from safetensors import SafetensorError

    try:
        return library.load_file(as_path(path))
    except SafetensorError as error:
        raise UserError(f"{path} is not a complete safetensors file: {error}") from error


def _both(held: Any) -> Held:
    return held if isinstance(held, Held) else Held(held, None)


def _named(source: Any) -> dict[str, np.ndarray]:
    if isinstance(source, str | os.PathLike):
        return read_tensors(source)
    if wrong := [leaf for leaf in jax.tree.leaves(source) if not (hasattr(leaf, "dtype") and hasattr(leaf, "shape"))]:
        raise UserError(
            f"initialised: got {type(wrong[0]).__name__}; expected the result of Simulation.train (that of run has no "
            "parameters), a file of save_parameters, or arrays"
        )
    return {name: np.asarray(leaf) for name, leaf in named_leaves(source).items()}


def _placed(model: str, what: str, given: Mapping[str, np.ndarray], tree: Any, some: bool = False) -> Any:
    """Returns the given arrays in the structure of `tree`, after checking names, shapes and dtypes.

    Args:
        model, what: the model and the kind of the arrays, for messages.
        given: the arrays by path.
        tree: arrays or shapes.
        some: if True, further arrays may be given.
    """
    expected = named_leaves(tree)
    different = sorted(expected.keys() - given.keys() if some else expected.keys() ^ given.keys())
    if different:
        raise UserError(
            f"initialised: the {what} {', '.join(different[:5])} are not in both the given tree and {model}; expected "
            f"{', '.join(expected)}"
        )
    for name, leaf in expected.items():
        found = given[name]
        # float32 becomes float64 with jax_enable_x64, and bfloat16 becomes float32 in training, but not if it is frozen
        floats = all(jnp.issubdtype(one.dtype, jnp.floating) for one in (found, leaf))
        fits = floats and (found.dtype.itemsize < leaf.dtype.itemsize or leaf.dtype.itemsize < 4)
        if found.shape != leaf.shape or (found.dtype != leaf.dtype and not fits):
            raise UserError(
                f"initialised: {what} {name} is {found.dtype}{[*found.shape]}; expected "
                f"{leaf.dtype}{[*leaf.shape]}, as in {model}"
            )
    leaves = [jnp.asarray(given[name], leaf.dtype) for name, leaf in expected.items()]
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)
