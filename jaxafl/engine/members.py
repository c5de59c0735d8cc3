"""Members of a program: it has a member axis at its boundary, and one run is one member."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxafl.client import Lane
from jaxafl.device import buffers
from jaxafl.device.keys import Key
from jaxafl.engine.problem import DeviceData, Hyperparameters, Program
from jaxafl.engine.state import State, initial

Array = jax.Array
Change = Callable[[Array], Array]
_SAME_WORK = ("key", "shuffle_key", "client", "run", "step", "timing")


def over_axis(function: Callable[..., Any], count: int, in_axes: Any, out_axes: Any) -> Callable[..., Any]:
    """Returns `jax.vmap` of the function over members or lanes; a single one has no axis inside, as in a plain run.

    Args:
        function: of one member, or of one lane.
        count: number of members, or of lanes.
        in_axes, out_axes: as of `jax.vmap`: 0, or `None` for what they share.
    """
    if count > 1:
        return jax.vmap(function, in_axes, out_axes)

    def of_one(*arguments: Any) -> Any:
        squeezed = at_axes(tuple(in_axes), arguments, functools.partial(jax.lax.squeeze, dimensions=(0,)))
        return at_axes(out_axes, function(*squeezed), functools.partial(jnp.expand_dims, axis=0))

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


def initial_members(program: Program, shared: bool, members: Hyperparameters, device: DeviceData, keys: Key) -> State:
    """Initialises the states of all members sequentially, so that each gets the bits of a single run.

    Args:
        program: static.
        shared: static, True if the members share a plan (and a seed), so that parts of their states do not differ.
        members, device: hyperparameters and data.
        keys: two uint32 [P].
    """

    def one(place: Array) -> State:
        values, key = buffers.read((members, keys), place)
        return initial(program, values, device, key)

    states = jax.lax.map(one, jnp.arange(len(keys[0]), dtype=jnp.int32))
    return at_axes(state_axes(states, shared), states, shared=operator.itemgetter(0))


def at_axes(axes: Any, tree: Any, batched: Change | None = None, shared: Change | None = None) -> Any:
    """Changes leaves of a tree; `axes`, a prefix of it as `in_axes` of `jax.vmap`: leaves under 0 are batched.

    Args:
        axes, tree: the axes and the tree.
        batched, shared: what is done with the leaves that are batched, and with the others; `None` keeps them.
    """

    def part(axis: int | None, below: Any) -> Any:
        change = shared if axis is None else batched
        return below if change is None else jax.tree.map(change, below)

    return jax.tree.map(part, axes, tree, is_leaf=lambda axis: axis is None)
