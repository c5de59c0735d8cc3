"""Sharding of programs over several devices.

Either the members are sharded, and each device advances its own; or one run is: its lanes, the per-client tables, and
the updates, if the server needs sums of them only. Everything else is replicated.
"""

from __future__ import annotations

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
from jaxafl.data.held_out import owned_rows
from jaxafl.device import Rows, available_bytes, compiled, on_device
from jaxafl.device.buffers import num_bytes
from jaxafl.device.rows import AXIS
from jaxafl.engine.batched import state_axes
from jaxafl.engine.evaluate import BATCH
from jaxafl.engine.plan import Tables
from jaxafl.engine.problem import DeviceData, Layout, MemberHyperparameters, Program
from jaxafl.engine.state import State, Version
from jaxafl.models.model import Batch, Model


def layout_of(data: FederatedData, devices: Sequence[Any], members: bool) -> Layout:
    """Returns the layout of runs on several devices: the training samples are sharded if a replica would take more
    than half of a device's memory.

    Args:
        data: of the runs.
        devices: several, or none.
        members: True if they share the members of a sweep, False if they share one run.
    """
    if len(devices) < 2:
        return Layout()
    mesh = Mesh(np.asarray(devices), (AXIS,))
    if members:
        return Layout(mesh)
    memory = available_bytes(len(devices))
    divided = memory is not None and 2 * num_bytes(data.arrays) > memory and data.divisible
    return Layout(mesh, len(devices), divided)


def put_data(
    data: FederatedData,
    model: Model,
    layout: Layout = Layout(),  # noqa: B008 (immutable)
    owned: bool = False,
) -> DeviceData:
    """Puts the data and the model's frozen arrays on the devices, once for each layout and setting of x64.

    Args:
        data, model, layout: of the run.
        owned: True if the clients' own models are evaluated.
    """
    places = _placed.setdefault(data, weakref.WeakKeyDictionary()).setdefault(model, {})
    where = layout, jnp.result_type(float) == jnp.float64, owned
    if where not in places:
        arrays = data.divided(layout.shares).arrays if layout.divided else data.arrays
        counts = np.asarray(data.counts, np.int32)
        one: Any = (*data.form.example, np.ones(1, bool))
        further = list(data.test_sets.values())[1:]
        parts: Any = arrays, counts, model.held(Batch(*one)), data.test_arrays(), data.validation, further
        given = DeviceData(*parts)
        if owned:
            prefix = "" if data.owners.of_test else "validation_"
            given = given._replace(owned={prefix: owned_rows(data.owners, data.num_clients, BATCH)})
        places[where] = shard(layout, (given,))[0] if layout.mesh else on_device(given)
    return places[where]


_placed: weakref.WeakKeyDictionary[FederatedData, weakref.WeakKeyDictionary[Model, dict[Any, DeviceData]]]
_placed = weakref.WeakKeyDictionary()


def compiled_over(
    function: Callable[..., Any],
    static: tuple[Any, ...],
    arguments: tuple[Any, ...],
    of_members: tuple[int, ...] = (),
    *,
    state: bool = False,
    records: bool = False,
    **how: Any,
) -> tuple[Any, float]:
    """Returns `device.compiled` of a function whose first static argument is a program, for all devices of its mesh.

    Args:
        function, static, arguments, how: see `device.compiled`.
        of_members: see `shard`.
        state: True if the result is a `State`; else it has a leading member axis.
        records: True if records with a leading member axis come with it.
    """
    if static[0].layout.mesh is None:
        return compiled(function, static, arguments, **how)
    return compiled(_on_every_device, (function, static, of_members, state, records), arguments, **how)


def shard(layout: Layout, arguments: tuple[Any, ...], of_members: tuple[int, ...] = ()) -> tuple[Any, ...]:
    """Puts arguments on the devices of a layout; their types tell how they are sharded.

    Args:
        layout: the devices.
        arguments: hyperparameters, data, tables, states and models; others are replicated.
        of_members: positions of other arguments with a leading member axis.
    """
    mesh = layout.mesh
    if mesh is None:
        return arguments
    specs = _all_specs(layout, arguments, of_members)
    places = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=_is_spec)
    return jax.device_put(arguments, places)


def on_first_device(layout: Layout, tree: Any) -> Any:
    """Returns the first device's copy of replicated arrays. Arrays sharded over members are returned unchanged."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), tree) if layout.shares > 1 else tree


def _on_every_device(
    function: Callable[..., Any],
    static: tuple[Any, ...],
    of_members: tuple[int, ...],
    state: bool,
    records: bool,
    *arguments: Any,
) -> Any:
    program: Program = static[0]
    layout = program.layout
    specs, members = _all_specs(layout, arguments, of_members), _member_spec(layout)
    end: Any = members
    if state:
        given = [spec for spec, argument in zip(specs, arguments, strict=True) if isinstance(argument, State)]
        build = functools.partial(function, program.unsharded, *static[1:])
        # only the function knows the form of an initial state
        end = given[0] if given else _specs(layout, jax.eval_shape(build, *arguments))
    ends = (end, members) if records else end
    built = functools.partial(function, *static)
    return jax.shard_map(built, mesh=layout.mesh, in_specs=specs, out_specs=ends, check_vma=False)(*arguments)


def _all_specs(layout: Layout, arguments: tuple[Any, ...], of_members: tuple[int, ...]) -> tuple[Any, ...]:
    return tuple(
        _member_spec(layout) if place in of_members else _specs(layout, argument)
        for place, argument in enumerate(arguments)
    )


def _member_spec(layout: Layout) -> P:
    """Returns the spec of arrays with a leading member axis."""
    return P(AXIS) if layout.shares == 1 else P()


def _specs(layout: Layout, value: Any) -> Any:
    """Returns the partition specs of an argument, a tree prefix of it."""
    members = _member_spec(layout)
    if isinstance(value, State):
        return _state_specs(layout, value, members)
    if isinstance(value, MemberHyperparameters):  # an option that is None has no spec: classes take one for a number
        specs = [members if many else P() for many in value.batched]
        return MemberHyperparameters(jax.tree.unflatten(jax.tree.structure(value.values), specs), value.batched)
    if isinstance(value, DeviceData):
        return DeviceData(**(_each(DeviceData, P()) | {"arrays": P(AXIS) if layout.divided else P()}))
    if isinstance(value, Tables):
        return _at_axes(value.axes, members)
    return members if isinstance(value, Version) else P()


def _state_specs(layout: Layout, state: State, members: P) -> State:
    axes = state_axes(state, shared=state.batch_key[0].ndim == 0)
    if layout.shares == 1:
        return _at_axes(axes, members)
    split = P(None, AXIS)

    def rows(tree: Any) -> Any:
        return jax.tree.map(
            lambda leaf: split if isinstance(leaf, Rows) else P(), tree, is_leaf=lambda leaf: isinstance(leaf, Rows)
        )

    sharded = {
        "lanes": jax.tree.map(lambda axis: P(AXIS) if axis is None else split, axes.lanes, is_leaf=_is_none),
        "server": rows(state.server),
        "clients": rows(state.clients),
        "memory": rows(state.memory),
    }
    sharded |= {"store": split} if layout.local_updates else {}
    return State(**(_each(State, P()) | sharded))


def _each(record: Any, value: Any) -> dict[str, Any]:
    return dict.fromkeys(record._fields, value)


def _at_axes(axes: Any, members: P) -> Any:
    """Returns the specs of arrays with member axes: those without one are replicated."""
    return jax.tree.map(lambda axis: P() if axis is None else members, axes, is_leaf=_is_none)


def _is_none(value: Any) -> bool:
    return value is None


def _is_spec(value: Any) -> bool:
    return isinstance(value, P)
