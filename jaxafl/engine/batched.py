"""Several runs as one program: every program has a member axis at its boundary, and one run is one member."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxafl.client import Lane
from jaxafl.device.keys import Key
from jaxafl.engine.evaluate import Alone, evaluate
from jaxafl.engine.problem import DeviceData, Numbers, Program
from jaxafl.engine.state import State, Version, initial
from jaxafl.engine.step import observed
from jaxafl.server.contract import Tree

Array = jax.Array
_SAME_WORK = ("key", "shuffle_key", "client", "run", "step", "staleness", "duration")


def over_members(function: Callable[..., Any], count: int, in_axes: Any, out_axes: Any) -> Callable[..., Any]:
    """`jax.vmap` over P members; a single one runs without an axis of its own inside.

    Args:
        function: of one member.
        count: P.
        in_axes, out_axes: as of `jax.vmap`: 0, or `None` for what members share.
    """
    if count > 1:
        return jax.vmap(function, in_axes, out_axes)

    def alone(*arguments: Any) -> Any:
        taken = _where_own(lambda leaf: jax.lax.squeeze(leaf, (0,)), tuple(in_axes), arguments)
        return _where_own(lambda leaf: jnp.expand_dims(leaf, 0), out_axes, function(*taken))

    return alone


def number_axes(program: Program, numbers: Numbers) -> Numbers:
    """The member axes of `problem.stacked` numbers."""
    return jax.tree.unflatten(jax.tree.structure(numbers), [0 if own else None for own in program.varies])


def shared_axes(state: State) -> State:
    """Which parts of the state differ between members that share a plan.

    Members make the same local steps of the same runs, unless runs stop early: each member then by its own losses.
    """
    lanes: Any = dict.fromkeys(Lane._fields, 0)
    if state.lanes.stopping is None:
        lanes |= dict.fromkeys(_SAME_WORK)
    axes: Any = dict.fromkeys(State._fields, 0) | {"lanes": Lane(**lanes), "batch_key": None, "beside": None}
    return State(**axes)


def initial_members(program: Program, shared: bool, numbers: Numbers, device: DeviceData, keys: Key) -> State:
    """The first states of all members, one made after another as a single one is made.

    Args:
        program: static.
        shared: static, whether members share a plan (and a seed), so that parts of their states do not differ.
        numbers, device: of the members.
        keys: two uint32 [P].
    """
    axes = number_axes(program, numbers)

    def one(place: Array) -> State:
        own = _where_own(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, place, keepdims=False), axes, numbers)
        return initial(program, own, device, (keys[0][place], keys[1][place]))

    if program.members == 1:
        states = jax.tree.map(lambda leaf: leaf[None], one(jnp.int32(0)))
    else:
        states = jax.lax.map(one, jnp.arange(program.members, dtype=jnp.int32))
    if not shared:
        return states
    return jax.tree.map(
        lambda axis, part: part if axis == 0 else jax.tree.map(lambda leaf: leaf[0], part),
        shared_axes(states),
        states,
        is_leaf=lambda axis: axis is None,
    )


def evaluate_members(
    program: Program, of_test: bool, device: DeviceData, alone: Alone | None, model: Version
) -> dict[str, Array]:
    """`evaluate` of every member, one after another on a CPU.

    Args:
        program, of_test, device, alone: as there.
        model: of all members, each leaf [P, ...].
    """

    def member(model: Version) -> dict[str, Array]:
        return evaluate(program, of_test, device, alone, model)

    if program.members > 1 and program.sliced:
        return jax.lax.map(member, model)
    return over_members(member, program.members, (0,), 0)(model)


def observe_members(program: Program, params: Tree) -> dict[str, Array]:
    """What `observe` says of every member's parameters."""
    return jax.lax.map(lambda own: observed(program.recording.observe, own), params)


def _where_own(change: Callable[[Array], Array], axes: Any, tree: Any) -> Any:
    """The tree with its leaves changed where the axes (a prefix of it) have an axis."""

    def part(axis: int | None, below: Any) -> Any:
        return below if axis is None else jax.tree.map(change, below)

    return jax.tree.map(part, axes, tree, is_leaf=lambda axis: axis is None)
