"""One run over several devices: its lanes are divided over them, and everything else has a copy on each.

XLA divides the local training of the lanes by itself, and gathers the updates that end in a segment.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxafl.data.federated import FederatedData
from jaxafl.data.held_out import owned_rows
from jaxafl.device import on_device
from jaxafl.engine.members import state_axes
from jaxafl.engine.problem import BATCH, DeviceData
from jaxafl.engine.state import State
from jaxafl.models.model import Batch, Model

_AXIS = "lanes"


def mesh_of(devices: Sequence[Any]) -> Mesh | None:
    """Returns the mesh of several devices; `None` for one, or for JAX's default."""
    return Mesh(np.asarray(devices), (_AXIS,)) if len(devices) > 1 else None


def placed(mesh: Mesh | None, tree: Any) -> Any:
    """Puts a tree on the devices: the lanes of a `State` are divided over them, everything else is copied to each."""
    return tree if mesh is None else jax.device_put(tree, _places(mesh, tree))


def constrained(mesh: Mesh, state: State) -> State:
    """Returns a traced state that is placed as `placed` places it."""
    return jax.lax.with_sharding_constraint(state, _places(mesh, state))


def on_first_device(tree: Any) -> Any:
    """Returns the first device's copy of arrays that every device of a mesh has."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), tree)


def _places(mesh: Mesh, tree: Any) -> Any:
    copied = NamedSharding(mesh, P())
    if not isinstance(tree, State):
        return copied
    # leaves [P, L, ...], or [L, ...] if all members have the same
    axes = state_axes(tree, shared=tree.batch_key[0].ndim == 0).lanes
    specs = {0: P(None, _AXIS), None: P(_AXIS)}
    lanes = jax.tree.map(lambda axis: NamedSharding(mesh, specs[axis]), axes, is_leaf=lambda axis: axis is None)
    places: Any = dict.fromkeys(State._fields, copied) | {"lanes": lanes}
    return State(**places)


def put_data(data: FederatedData, model: Model, mesh: Mesh | None = None, owned: bool = False) -> DeviceData:
    """Puts the data and the model's frozen arrays on the devices, once for each mesh and setting of x64.

    Args:
        data, model, mesh: of the run.
        owned: True if the clients' own models are evaluated.
    """
    places = _placed.setdefault(data, weakref.WeakKeyDictionary()).setdefault(model, {})
    where = mesh, jnp.result_type(float) == jnp.float64, owned, jax.config.jax_default_device  # type: ignore[attr-defined]
    if where not in places:
        one: Any = (*data.form.example, np.ones(1, bool))
        further = list(data.test_sets.values())[1:]
        counts = np.asarray(data.counts, np.int32)
        parts: Any = data.arrays, counts, model.held(Batch(*one)), (data.x_test, data.y_test), data.validation, further
        given = DeviceData(*parts)
        if owned:
            prefix = "" if data.owners.of_test else "validation_"
            given = given._replace(owned={prefix: owned_rows(data.owners, data.num_clients, BATCH)})
        places[where] = on_device(given) if mesh is None else placed(mesh, given)
    return places[where]


_placed: weakref.WeakKeyDictionary[FederatedData, weakref.WeakKeyDictionary[Model, dict[Any, DeviceData]]]
_placed = weakref.WeakKeyDictionary()
