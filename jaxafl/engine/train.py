"""One segment of local training: load the runs that begin, make local steps in every lane, save the runs that end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from jaxafl.client import Lane, Timing, begin, computed_norm, local_step, sent_update
from jaxafl.device import buffers
from jaxafl.device.buffers import expand
from jaxafl.engine.members import over_members
from jaxafl.engine.plan import Segments
from jaxafl.engine.problem import DeviceData, Hyperparameters, Program, Shapes
from jaxafl.engine.state import State, Stored

Array = jax.Array
Train = Callable[..., State]


def build_train(program: Program, hyperparameters: Hyperparameters, device: DeviceData) -> Train:
    """Builds train(segment, state, max_steps=None) -> state: one segment.

    `max_steps` is an upper bound on the local steps of any lane. It is required under `vmap` over plans, where
    `active.max()` would be batched and a loop bound must not be.
    """
    client, own_models = hyperparameters.client, hyperparameters.server.needs.client_models
    shapes = program.shapes
    apply = program.model.bound(device.frozen)
    micro_batch: Any = client.micro_batch  # set by `Client.executed`

    def take_local_step(lane: Lane) -> Lane:
        def fetch(who: Array, positions: Array, keys: Array) -> tuple[Array, Array]:
            return program.data.fetch(device.arrays, who, positions, keys)

        return local_step(client, apply, fetch, micro_batch, device.counts[lane.client], lane)

    def begun(state: State, slot: Array, who: Array, run: Array, timing: Timing) -> Lane:
        """Returns the lane of a run that begins with the version in a ring slot, or with its client's own model."""
        version = buffers.read(state.ring, slot)
        params = state.clients.read(who) if own_models else version.params
        # without the barrier XLA reads rows of clients in what writes them, and copies all rows for every run
        memory = None if state.memory is None else jax.lax.optimization_barrier(state.memory.read(who))
        return begin(client, params, version.model_state, state.batch_key, who, run, timing, memory, version.shared)

    def loaded(segment: Segments, state: State) -> Lane:
        timing = Timing(*(getattr(segment, f"load_{name}") for name in Timing._fields))
        columns = segment.load_slot, segment.load_client, segment.load_run, timing
        new = over_members(lambda *run: begun(state, *run), shapes.lanes, (0, 0, 0, 0), 0)(*columns)
        return _where(segment.loads, new, state.lanes)

    def ended(state: State, lane: Lane, slot: Array) -> tuple[Stored, Any]:
        """Returns the update of a run, and the new row of its client's memory if there is one."""
        reference = state.clients.read(lane.client) if own_models else buffers.read(state.ring.params, slot)
        delta = jax.tree.map(jnp.subtract, lane.params, reference)
        computed = computed_norm(client, delta)
        delta, message, memory = sent_update(client, delta, lane, device.counts[lane.client])
        loss = jnp.where(lane.step > 0, lane.loss / jnp.maximum(lane.step, 1), jnp.nan)
        return Stored(delta, lane.model_state, loss, lane.step, message, computed), memory

    def saved(segment: Segments, lanes: Lane, state: State) -> State:
        update, memory = over_members(lambda *run: ended(state, *run), shapes.lanes, (0, 0), 0)(
            lanes, segment.save_slot
        )
        state = state._replace(store=buffers.write_many(state.store, segment.save_row, segment.saves, update))
        if not shapes.steady:  # otherwise no segment reads the lanes of another, and none copies them
            state = state._replace(lanes=lanes)
        if state.memory is None:
            return state
        return state._replace(memory=state.memory.write_many(lanes.client, segment.saves, memory))

    def train(segment: Segments, state: State, max_steps: Array | None = None) -> State:
        lanes = _on_devices(program, loaded(segment, state))
        lanes = _on_devices(program, run_lanes(shapes, take_local_step, segment.active, lanes, max_steps))
        return saved(segment, lanes, state)

    return train


def run_lanes(
    shapes: Shapes, take_local_step: Callable[[Lane], Lane], active: Array, lanes: Lane, max_steps: Array | None
) -> Lane:
    """Executes the local steps of all lanes: `shapes.chunk` of them in one `vmap`, the groups one after another."""

    def run_lane(lane: Lane, count: Array) -> Lane:
        """Executes `count` local steps of one run, or fewer if it stops early."""
        if lane.stopping is None:
            only = shapes.local_steps if shapes.lanes == 1 else None  # one of several lanes may be idle
            return jax.lax.fori_loop(0, only or count, lambda _, lane: take_local_step(lane), lane)
        return jax.lax.while_loop(
            lambda carry: (carry[0] < count) & ~_stopped(carry[1]),
            lambda carry: (carry[0] + 1, take_local_step(carry[1])),
            (jnp.int32(0), lane),
        )[1]

    def run_group(group: Lane, counts: Array) -> Lane:
        """Executes local steps of several lanes; lanes with fewer steps are masked (none, if `counts` is a scalar)."""

        def masked(index: Array, group: Lane) -> Lane:
            new = jax.vmap(take_local_step)(group)
            if not counts.ndim and group.stopping is None:
                return new
            return _where((index < counts) & ~_stopped(group), new, group)

        most = jnp.max(counts) if max_steps is None else max_steps
        return jax.lax.fori_loop(0, shapes.local_steps or most, masked, group)

    def at(index: Array, lanes: Lane) -> Lane:
        if shapes.chunk == 1:
            return buffers.write(lanes, index, run_lane(buffers.read(lanes, index), active[index]))
        begin = index * shapes.chunk
        part = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, begin, shapes.chunk), lanes)
        part = run_group(part, jax.lax.dynamic_slice_in_dim(active, begin, shapes.chunk))
        return jax.tree.map(lambda leaf, new: jax.lax.dynamic_update_slice_in_dim(leaf, new, begin, 0), lanes, part)

    if shapes.chunk == shapes.lanes and (shapes.lanes > 1 or max_steps is not None):
        return run_group(lanes, active)
    groups = shapes.lanes // shapes.chunk
    return at(jnp.int32(0), lanes) if groups == 1 else jax.lax.fori_loop(0, groups, at, lanes)


def _stopped(lane: Lane) -> Array:
    return jnp.bool_(False) if lane.stopping is None else lane.stopping.stopped


def _where(mask: Array | None, new: Lane, old: Lane) -> Lane:
    """Returns the new lanes where the mask is True; all if it is `None`."""
    return new if mask is None else jax.tree.map(lambda a, b: jnp.where(expand(mask, a), a, b), new, old)


def _on_devices(program: Program, lanes: Lane) -> Lane:
    """Divides the lanes over the devices of a run, which train them; what reads all lanes gathers them."""
    if program.mesh is None:
        return lanes
    return jax.lax.with_sharding_constraint(lanes, NamedSharding(program.mesh, PartitionSpec(program.mesh.axis_names)))
