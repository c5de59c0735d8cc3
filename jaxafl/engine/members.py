"""Members of a program: it has a member axis at its boundary, and one run is one member."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxafl.client import Lane
from jaxafl.device.keys import Key
from jaxafl.engine.problem import DeviceData, MemberHyperparameters, Program
from jaxafl.engine.state import State, initial

Array = jax.Array
_SAME_WORK = ("key", "shuffle_key", "client", "run", "step", "timing")


def over_members(function: Callable[..., Any], count: int, in_axes: Any, out_axes: Any) -> Callable[..., Any]:
    """Returns `jax.vmap` of the function over P members; a single member has no axis inside.

    Args:
        function: of one member.
        count: P.
        in_axes, out_axes: as of `jax.vmap`: 0, or `None` for what members share.
    """
    if count > 1:
        return jax.vmap(function, in_axes, out_axes)

    def of_one(*arguments: Any) -> Any:
        squeezed = at_axes(lambda leaf: jax.lax.squeeze(leaf, (0,)), tuple(in_axes), arguments)
        return at_axes(lambda leaf: jnp.expand_dims(leaf, 0), out_axes, function(*squeezed))

    return of_one


def state_axes(state: State, shared: bool) -> State:
    """Returns the member axes of a state; `shared`: the members share a plan.

    Members that share a plan make the same local steps of the same runs. If runs stop early, each does by its own
    losses.
    """
    axes: Any = dict.fromkeys(State._fields, 0)
    if shared:
        lanes: Any = dict.fromkeys(Lane._fields, 0)
        if state.lanes.stopping is None:
            lanes |= dict.fromkeys(_SAME_WORK)
        axes |= {"lanes": Lane(**lanes), "batch_key": None}
    return State(**axes)


def initial_members(
    program: Program,
    shared: bool,
    members: MemberHyperparameters,
    device: DeviceData,
    keys: Key,
) -> State:
    """Initialises the states of all members sequentially, so that each gets the bits of a single run.

    Args:
        program: static.
        shared: static, True if the members share a plan (and a seed), so that parts of their states do not differ.
        members, device: hyperparameters and data.
        keys: two uint32 [P].
    """

    def one(place: Array) -> State:
        values = at_axes(
            lambda leaf: jax.lax.dynamic_index_in_dim(leaf, place, keepdims=False), members.axes, members.values
        )
        return initial(program, values, device, (keys[0][place], keys[1][place]))

    states = jax.lax.map(one, jnp.arange(len(keys[0]), dtype=jnp.int32))
    return jax.tree.map(
        lambda axis, part: part if axis == 0 else jax.tree.map(lambda leaf: leaf[0], part),
        state_axes(states, shared),
        states,
        is_leaf=lambda axis: axis is None,
    )


def at_axes(change: Callable[[Array], Array], axes: Any, tree: Any) -> Any:
    """Applies `change` to the leaves that `axes`, a tree prefix of `in_axes` form, marks as batched."""

    def part(axis: int | None, below: Any) -> Any:
        return below if axis is None else jax.tree.map(change, below)

    return jax.tree.map(part, axes, tree, is_leaf=lambda axis: axis is None)
