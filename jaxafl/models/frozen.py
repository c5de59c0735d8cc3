"""Frozen parameters, neither trained nor federated, selected by their paths."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from jaxafl.models.model import Batch, Key, Model, Outputs, Params, State, path_of
from jaxafl.options import UserError

Frozen: TypeAlias = Callable[[str], Any] | Mapping[str, Any] | None
"""Selection of parameters: a function of the path, such as `"encoder/Dense_0/kernel"`, to True if the parameter is
frozen, or to an array, its frozen value; or a tree of such values that may end above the parameters. `None` selects
none."""
Where: TypeAlias = Callable[[str], bool] | None
"""Selection of parameters by path."""


class Held(NamedTuple):
    """Frozen arrays of a model whose frozen layers have statistics.

    Attributes:
        params: frozen parameters.
        state: statistics of frozen layers.
    """

    params: Any
    state: Any


def with_frozen(owner: str, model: Model, frozen: Frozen, collections: bool = False) -> Model:
    """Separates frozen parameters, and the statistics of frozen layers, from the arrays that a model trains.

    Both parts keep the structure of the full tree, with `None` for leaves of the other part. Frozen values that are not
    given are drawn by `model.init`, under one key for all seeds.

    Args:
        owner: the adapter, for messages.
        model: the full model; if layers with statistics are frozen, its `apply` is also passed `still`, the paths of
            these layers.
        frozen: the selection of parameters.
        collections: True if paths in the state begin with the name of a collection.
    """
    if frozen is None:
        return model
    if isinstance(frozen, Mapping):
        frozen = _of_tree(frozen)
    make, apply = model.init, model.apply

    def trained(key: Key, batch: Batch) -> tuple[Params, State]:
        params, state = make(key, batch)
        chosen = _chosen(params, frozen, owner)
        still = _still(chosen, state, collections)
        return _part(params, lambda name: chosen[name] is None), _part(state, lambda name: name not in still)

    def merged(params: Params, state: State, batch: Batch, key: Key, train: bool, held: Any) -> tuple[Outputs, State]:
        if not isinstance(held, Held):
            return apply(filled(params, held), state, batch, key, train)
        still = tuple(sorted({_layer(name, collections) for name in named_leaves(held.state)}))
        full = filled(params, held.params), filled(state, held.state)
        outputs, new = apply(*full, batch, key, train, still=still)
        return outputs, jax.tree.map(lambda old, leaf: None if old is None else leaf, state, new, is_leaf=_is_none)

    def held(batch: Batch) -> Any:
        params, state = make(jax.random.key(0, impl="threefry2x32"), batch)
        chosen = _chosen(params, frozen, owner)
        still = _still(chosen, state, collections)

        def value(path: Any, leaf: Any) -> Any:
            given = chosen[path_of(path)]
            return leaf if given is True else given

        base = jax.tree_util.tree_map_with_path(value, model.as_made(params))
        return Held(base, _part(state, still.__contains__)) if still else base

    described = {**model.description, "frozen": getattr(frozen, "__qualname__", type(frozen).__name__)}
    return dataclasses.replace(model, init=trained, apply=merged, frozen=held, description=described)


def _of_tree(tree: Mapping[str, Any]) -> Callable[[str], Any]:
    values = named_leaves(tree)

    def frozen(path: str) -> Any:
        return next((value for name, value in values.items() if f"{path}/".startswith(f"{name}/")), False)

    return frozen


def named_leaves(tree: Any) -> dict[str, Any]:
    """Returns the leaves of a pytree by path, joined by `/`."""
    return {path_of(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def filled(part: Any, tree: Any) -> Any:
    """Returns a tree with the leaves of `part` that are not `None`, and else those of `tree`."""
    return jax.tree.map(lambda new, old: old if new is None else new, part, tree, is_leaf=_is_none)


def kernels_of(owner: str, leaves: dict[str, Any], where: Where) -> dict[str, Any]:
    """Returns the parameters, arrays or their shapes by path, that get low-rank factors: by default those of two axes.

    Raises:
        UserError: `where` chooses none, or one of fewer than two axes.
    """
    chosen = where or (lambda name: len(leaves[name].shape) == 2)
    found = {name: leaf for name, leaf in leaves.items() if chosen(name)}
    if not found or min(len(leaf.shape) for leaf in found.values()) < 2:
        raise UserError(f"{owner}: where chooses {[*found]} of {[*leaves]}; expected kernels, with at least two axes")
    return found


def _chosen(params: Params, frozen: Callable[[str], Any], owner: str) -> dict[str, Any]:
    """Returns the frozen value of every parameter by path: `True` for the model's value, `None` if it is trained."""
    chosen = {}
    for name in named_leaves(params):
        value = frozen(name)
        chosen[name] = value if isinstance(value, np.ndarray | jax.Array) else True if value else None
    if len({value is None for value in chosen.values()}) < 2:
        raise UserError(f"{owner}: frozen selects none or all of the parameters {', '.join(chosen)}; expected some")
    return chosen


def _still(chosen: Mapping[str, Any], state: State, collections: bool) -> set[str]:
    """Returns the paths of the statistics of frozen layers.

    Statistics belong to the innermost enclosing layer that has parameters. They are frozen if all its parameters are.
    """

    def is_still(name: str) -> bool:
        layer = _layer(name, collections)
        while layer:
            if of_layer := [value for one, value in chosen.items() if one.startswith(f"{layer}/")]:
                return all(value is not None for value in of_layer)
            layer = layer.rpartition("/")[0]
        return False

    return {*filter(is_still, named_leaves(state))}


def _part(tree: Any, keep: Callable[[str], bool]) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, leaf: leaf if keep(path_of(path)) else None, tree)


def _layer(name: str, collections: bool) -> str:
    """Returns the path of the layer around an array of the state."""
    return "/".join(name.split("/")[int(collections) : -1])


def _is_none(value: Any) -> bool:
    return value is None
