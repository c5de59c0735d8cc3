"""Frozen parameters, neither trained nor federated, selected by their paths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.models.leaves import path_of
from jaxafl.models.model import Batch, Key, Outputs, Params, State
from jaxafl.options import UserError, shown

Frozen: TypeAlias = Callable[[str], bool] | Mapping[str, Any] | Any
"""Selection of parameters: a function of the path, `"encoder/Dense_0/kernel"` -> bool, or a tree of bools or of arrays.
Arrays are the frozen values. The tree may end above the parameters."""
Make: TypeAlias = Callable[[Key, Batch], tuple[Params, State]]


class Held(NamedTuple):
    """Frozen arrays of a model whose frozen layers have statistics.

    Attributes:
        params: frozen parameters.
        state: statistics of frozen layers.
    """

    params: Any
    state: Any


def split_off(
    make: Make, apply: Callable[..., tuple[Outputs, State]], frozen: Frozen, owner: str, collections: bool = False
) -> tuple[Make, Callable[..., tuple[Outputs, State]], Callable[[Batch], Any]]:
    """Separates frozen parameters, and the statistics of frozen layers, from the arrays that a model trains.

    Both parts keep the structure of the full tree, with `None` for leaves of the other part. Frozen values that are not
    given are drawn by `make`, under one key for all seeds.

    Args:
        make: `(key, batch) -> (params, state)` of the full model.
        apply: `(params, state, batch, key, train) -> (Outputs, state)` of the full model; if layers with statistics are
            frozen, it is also passed `still`, the paths of these layers.
        frozen: the selection of parameters.
        owner: the adapter, for messages.
        collections: True if paths in the state begin with the name of a collection.

    Returns:
        `init`, `apply` and `frozen` of `Model`.
    """

    def trained(key: Key, batch: Batch) -> tuple[Params, State]:
        params, state = make(key, batch)
        still = still_statistics(params, state, frozen, owner, collections)
        kept = {name: value is None for name, value in _chosen(params, frozen, owner).items()}
        return _part(params, kept), _part(state, lambda name: name not in still)

    def merged(params: Params, state: State, batch: Batch, key: Key, train: bool, held: Any) -> tuple[Outputs, State]:
        if not isinstance(held, Held):
            return apply(_merged(params, held), state, batch, key, train)
        still = {_layer(name, collections) for name in map(path_of, _paths(held.state))}
        full = _merged(params, held.params), _merged(state, held.state)
        outputs, new = apply(*full, batch, key, train, still=tuple(sorted(still)))
        return outputs, jax.tree.map(lambda old, leaf: None if old is None else leaf, state, new, is_leaf=_is_none)

    def held(batch: Batch) -> Any:
        params, state = make(jax.random.key(0, impl="threefry2x32"), batch)
        chosen = _chosen(params, frozen, owner)
        part = _part(params, {name: value is not None for name, value in chosen.items()})
        given = jax.tree_util.tree_map_with_path(lambda path, leaf: _given(path, leaf, chosen, owner), part)
        still = still_statistics(params, state, frozen, owner, collections)
        return Held(given, _part(state, still.__contains__)) if still else given

    return trained, merged, held


def still_statistics(params: Params, state: State, frozen: Frozen, owner: str, collections: bool) -> frozenset[str]:
    """Returns the paths of the statistics of frozen layers.

    Statistics belong to the innermost enclosing layer that has parameters. They are frozen if all its parameters are.
    """
    if frozen is None:
        return frozenset()
    chosen = _chosen(params, frozen, owner)

    def is_still(name: str) -> bool:
        layer = _layer(name, collections)
        while layer and not any(one.startswith(f"{layer}/") for one in chosen):
            layer = layer.rpartition("/")[0]
        return bool(layer) and all(value is not None for one, value in chosen.items() if one.startswith(f"{layer}/"))

    return frozenset(name for name in map(path_of, _paths(state)) if is_still(name))


def described(frozen: Frozen) -> Any:
    """Converts the selection to JSON."""
    if callable(frozen):
        return getattr(frozen, "__qualname__", type(frozen).__name__)
    return sorted(name for name, value in _named(frozen).items() if not _is(value, False))


def _chosen(params: Params, frozen: Frozen, owner: str) -> dict[str, Any]:
    """Returns the frozen value of every parameter by path: `True` for the model's value, `None` if it is trained."""
    names = [path_of(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    if callable(frozen):
        found = {name: _said(frozen(name), name, owner) for name in names}
    else:
        given = _named(frozen)
        for name, value in given.items():
            if not (value is None or isinstance(value, bool | float) or hasattr(value, "shape")):
                raise UserError(
                    f"{owner}: frozen must be a function of a path, such as lambda path: path.startswith('encoder/'), "
                    f"or a tree of bools or of the arrays themselves, such as {{'encoder': True}}; got {shown(value)}"
                    + (f" for {name!r}" if name else "")
                )
        foreign = [one for one in given if one and not any(name == one or name.startswith(f"{one}/") for name in names)]
        if foreign:
            raise UserError(f"{owner}: frozen names {foreign[0]!r}, its parameters are {_listed(names)}")
        above = {name: [one for one in given if f"{name}/".startswith(f"{one}/" if one else "")] for name in names}
        found = {name: given[max(ones, key=len)] if ones else False for name, ones in above.items()}
    chosen = {name: None if value is None or _is(value, False) else value for name, value in found.items()}
    if all(value is None for value in chosen.values()):
        raise UserError(f"{owner}: frozen selects no parameter of {_listed(names)}; leave it out to train all of them")
    if all(value is not None for value in chosen.values()):
        raise UserError(f"{owner}: frozen selects all parameters, {_listed(names)}, so that nothing is left to train")
    return chosen


def _said(value: Any, name: str, owner: str) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError(
            f"{owner}: frozen must say True or False of a path, it said {value!r} of {name!r}; bool(...) makes it so"
        )
    return bool(value)


def _given(path: Any, leaf: Any, chosen: dict[str, Any], owner: str) -> Any:
    name = path_of(path)
    value = leaf if _is(chosen[name], True) else chosen[name]
    if jnp.shape(value) != jnp.shape(leaf):
        raise UserError(
            f"{owner}: the frozen {name!r} has shape {jnp.shape(value)}, the network needs {jnp.shape(leaf)}"
        )
    return value


def _named(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda value: value is None)
    return {path_of(path): value for path, value in leaves}


def _part(tree: Any, keep: Mapping[str, bool] | Callable[[str], bool]) -> Any:
    kept = keep if callable(keep) else keep.__getitem__
    return jax.tree_util.tree_map_with_path(lambda path, leaf: leaf if kept(path_of(path)) else None, tree)


def _merged(trained: Any, held: Any) -> Any:
    return jax.tree.map(lambda one, base: base if one is None else one, trained, held, is_leaf=_is_none)


def _paths(tree: Any) -> list[Any]:
    return [path for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def _layer(name: str, collections: bool) -> str:
    """Returns the path of the layer around an array of the state."""
    return "/".join(name.split("/")[int(collections) : -1])


def _is_none(value: Any) -> bool:
    return value is None


def _is(value: Any, truth: bool) -> bool:
    return isinstance(value, bool | np.bool_) and bool(value) is truth


def _listed(names: Iterable[str]) -> str:
    known = list(names)
    return ", ".join(known[:8]) + (f" and {len(known) - 8} more" if len(known) > 8 else "")
