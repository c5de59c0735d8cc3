"""Programs over several devices: what of its arguments each of them holds.

Either the devices share the members, each advancing some of them on its own; or they share one run: each has some of
its lanes and trains in them, with what is kept per client for its share of the clients and, where only sums of updates
are needed, with those that it has made; and all have the rest.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxafl.data.federated import FederatedData
from jaxafl.device import Rows, available_bytes, compiled, on_device
from jaxafl.device.buffers import num_bytes
from jaxafl.device.rows import AXIS
from jaxafl.engine.batched import number_axes, shared_axes
from jaxafl.engine.problem import DeviceData, Layout, Program
from jaxafl.engine.state import State
from jaxafl.models.model import Batch, Model

OF_MEMBERS, ROWS, ALL, NUMBERS, DATA, STATE, SHARED_STATE = range(7)
"""What an argument is: with a leading member axis; rows, three arrays with one behind the first and others without; the
same for all; `Numbers`; `DeviceData`; the state of members, or of members that share a plan."""


def layout_of(data: FederatedData, devices: Sequence[Any], members: bool) -> Layout:
    """How several devices go about runs: the training samples are divided where copies would take more than half of
    their memory.

    Args:
        data: of the runs.
        devices: several, or none.
        members: whether they share members of a sweep, or one run.
    """
    if len(devices) < 2:
        return Layout()
    mesh = Mesh(np.asarray(devices), (AXIS,))
    if members:
        return Layout(mesh)
    room = available_bytes(len(devices))
    divided = room is not None and 2 * num_bytes(data.arrays) > room and data.divisible
    return Layout(mesh, len(devices), divided)


def placed(data: FederatedData, model: Model, layout: Layout = Layout()) -> DeviceData:  # noqa: B008 (immutable)
    """The data and the model's frozen arrays on the devices: placed once, and again only where x64 is switched."""
    places = _placed.setdefault(data, weakref.WeakKeyDictionary()).setdefault(model, {})
    where = layout, jnp.result_type(float) == jnp.float64
    if where not in places:
        arrays = data.divided(layout.shares).arrays if layout.divided else data.arrays
        counts = np.asarray(data.counts, np.int32)
        one: Any = (*data.form.example, np.ones(1, bool))
        parts: Any = arrays, counts, model.held(Batch(*one)), data.test_arrays(), data.validation
        given = DeviceData(*parts)
        places[where] = spread(layout, (DATA,), (given,))[0] if layout.mesh else on_device(given)
    return places[where]


_placed: weakref.WeakKeyDictionary[FederatedData, weakref.WeakKeyDictionary[Model, dict[Any, DeviceData]]]
_placed = weakref.WeakKeyDictionary()


def compiled_over(
    function: Callable[..., Any],
    static: tuple[Any, ...],
    kinds: tuple[int, ...],
    arguments: tuple[Any, ...],
    result: int,
    records: bool = False,
    **how: Any,
) -> tuple[Any, float]:
    """`device.compiled` of a function whose first static argument is a program, for all devices of its mesh.

    Args:
        function, static, arguments, how: as there.
        kinds: of the arguments.
        result: kind of what it returns.
        records: whether that comes with something whose axis of members is the first.
    """
    if static[0].mesh is None:
        return compiled(function, static, arguments, **how)
    return compiled(_on_every_device, (function, static, kinds, result, records), arguments, **how)


def spread(program: Program | Layout, kinds: Sequence[int], arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Arguments on the devices of a program."""
    if program.mesh is None:
        return tuple(arguments)
    mesh = program.mesh
    specs = tuple(_specs(program, kind, argument) for kind, argument in zip(kinds, arguments, strict=True))
    places = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=_is_spec)
    return jax.device_put(tuple(arguments), places)


def alone(program: Program, tree: Any) -> Any:
    """Arrays that all devices have, of one of them; where devices share the members, all as they are."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), tree) if program.shares > 1 else tree


def _on_every_device(
    function: Callable[..., Any],
    static: tuple[Any, ...],
    kinds: tuple[int, ...],
    result: int,
    records: bool,
    *arguments: Any,
) -> Any:
    program: Program = static[0]
    specs = tuple(_specs(program, kind, argument) for kind, argument in zip(kinds, arguments, strict=True))
    if result in kinds or result == OF_MEMBERS:
        end = _specs(program, OF_MEMBERS, None) if result == OF_MEMBERS else specs[kinds.index(result)]
    else:  # a first state, whose form its function knows
        whole = dataclasses.replace(program, mesh=None, shares=1, members=program.members * _parts(program))
        end = _specs(program, result, jax.eval_shape(functools.partial(function, whole, *static[1:]), *arguments))
    ends = (end, _specs(program, OF_MEMBERS, None)) if records else end
    made = functools.partial(function, *static)
    return jax.shard_map(made, mesh=program.mesh, in_specs=specs, out_specs=ends, check_vma=False)(*arguments)


def _parts(program: Program) -> int:
    """Devices that share the members."""
    return program.mesh.size if program.mesh is not None and program.shares == 1 else 1


def _specs(program: Any, kind: int, value: Any) -> Any:
    """By which axis an argument is split, a prefix of it."""
    members = P(AXIS) if program.shares == 1 else P()
    if kind == NUMBERS:
        return _of_axes(number_axes(program, value), members, P())
    if kind == DATA:
        return DeviceData(**(_each(DeviceData, P()) | {"arrays": P(AXIS) if program.divided else P()}))
    if kind in (STATE, SHARED_STATE):
        return _state(program, kind, value, members)
    if kind == ROWS:
        return jax.tree.map(lambda leaf: P(None, *members) if leaf.ndim == 2 else P(), value)
    return members if kind == OF_MEMBERS else P()


def _state(program: Program, kind: int, state: State, members: P) -> State:
    axes = shared_axes(state) if kind == SHARED_STATE else State(**_each(State, 0))
    if program.shares == 1:
        return _of_axes(axes, members, P())
    split = P(None, AXIS)

    def rows(tree: Any) -> Any:
        return jax.tree.map(
            lambda leaf: split if isinstance(leaf, Rows) else P(), tree, is_leaf=lambda leaf: isinstance(leaf, Rows)
        )

    own = {"lanes": _of_axes(axes.lanes, split, P(AXIS)), "server": rows(state.server), "clients": rows(state.clients)}
    own |= {"store": split} if program.apart else {}
    return State(**(_each(State, P()) | own))


def _each(record: Any, value: Any) -> dict[str, Any]:
    return dict.fromkeys(record._fields, value)


def _of_axes(axes: Any, own: P, same: P) -> Any:
    return jax.tree.map(lambda axis: same if axis is None else own, axes, is_leaf=lambda axis: axis is None)


def _is_spec(value: Any) -> bool:
    return isinstance(value, P)
