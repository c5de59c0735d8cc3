"""One segment of local training: load the runs that begin, make local steps in every lane, save the runs that end."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxafl.client import Lane, Timing, begin, local_step
from jaxafl.device import buffers
from jaxafl.device.buffers import expand
from jaxafl.engine.members import over_axis
from jaxafl.engine.plan import Segments
from jaxafl.engine.problem import DeviceData, Hyperparameters, Program, Shapes
from jaxafl.engine.state import State, Stored, stored_of

Array = jax.Array


def train_segment(
    program: Program,
    hyperparameters: Hyperparameters,
    device: DeviceData,
    segment: Segments,
    state: State,
    max_steps: Array | None,
) -> State:
    """Executes one segment: loads the runs that begin, makes local steps in every lane, saves the runs that end.

    Args:
        program: static.
        hyperparameters, device: of the run.
        segment: the segment.
        state: of the run.
        max_steps: upper bound on the local steps of any lane. It is required under `vmap` over plans, where
            `active.max()` would be batched and a loop bound must not be.
    """
    client, own_models = hyperparameters.client, hyperparameters.server.needs.client_models
    shapes, apply = program.shapes, program.model.bound(device.frozen)
    fetch, micro_batch = functools.partial(program.data.fetch, device.arrays), cast(int, client.micro_batch)

    def begun(slot: Array, who: Array, run: Array, timing: Timing) -> Lane:
        """Returns the lane of a run that begins with the version in a ring slot, or with its client's own model."""
        version = buffers.read(state.ring, slot)
        params = state.clients.read(who) if own_models else version.params
        # without the barrier XLA fuses this read of a row with the write of the table, and copies all of it every run
        memory = None if state.memory is None else jax.lax.optimization_barrier(state.memory.read(who))
        return begin(client, params, version.model_state, state.batch_key, who, run, timing, memory, version.shared)

    def take_local_step(index: Array, lane: Lane) -> Lane:
        return local_step(client, apply, fetch, micro_batch, device.counts[lane.client], lane)

    def ended(lane: Lane, slot: Array) -> tuple[Stored, Any]:
        """Returns the update of a run, and the new row of its client's memory if there is one."""
        reference = state.clients.read(lane.client) if own_models else buffers.read(state.ring.params, slot)
        return stored_of(client, lane, reference, device.counts[lane.client])

    columns = segment.load_slot, segment.load_client, segment.load_run, segment.load_timing
    lanes = over_axis(begun, shapes.lanes, (0, 0, 0, 0), 0)(*columns)
    if segment.loads is not None:
        lanes = _where(segment.loads, lanes, state.lanes)
    lanes = _on_devices(program.mesh, lanes)
    lanes = run_lanes(shapes, take_local_step, segment.active, lanes, max_steps)
    lanes = _on_devices(program.mesh, lanes)
    update, memory = over_axis(ended, shapes.lanes, (0, 0), 0)(lanes, segment.save_slot)
    state = state._replace(store=buffers.write_many(state.store, segment.save_row, segment.saves, update))
    if not shapes.steady:  # otherwise no segment reads the lanes of another, and none copies them
        state = state._replace(lanes=lanes)
    if state.memory is None:
        return state
    return state._replace(memory=state.memory.write_many(lanes.client, segment.saves, memory))


def run_lanes(
    shapes: Shapes, take_local_step: Callable[[Any, Lane], Lane], active: Array, lanes: Lane, max_steps: Array | None
) -> Lane:
    """Executes the local steps of all lanes: `shapes.chunk` of them in one `vmap`, the groups one after another."""

    def run_group(group: Lane, counts: Array) -> Lane:
        """Executes local steps of several lanes; lanes with fewer steps are masked (none, if `counts` is a scalar)."""

        def masked(index: Array, group: Lane) -> Lane:
            new = jax.vmap(take_local_step, (None, 0))(index, group)
            if not counts.ndim and group.stopping is None:
                return new
            return _where((index < counts) & ~_stopped(group), new, group)

        most = jnp.max(counts) if max_steps is None else max_steps
        return jax.lax.fori_loop(0, shapes.local_steps or most, masked, group)

    def at(index: Array, lanes: Lane) -> Lane:
        if shapes.chunk == 1:  # the local steps of one run, or fewer if it stops early
            lane, count = buffers.read(lanes, index), active[index]
            if lane.stopping is None:
                only = shapes.local_steps if shapes.lanes == 1 else None  # one of several lanes may be idle
                lane = jax.lax.fori_loop(0, only or count, take_local_step, lane)
            else:
                _, lane = jax.lax.while_loop(
                    lambda carry: (carry[0] < count) & ~_stopped(carry[1]),
                    lambda carry: (carry[0] + 1, take_local_step(*carry)),
                    (jnp.int32(0), lane),
                )
            return buffers.write(lanes, index, lane)
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


def _where(mask: Array, new: Lane, old: Lane) -> Lane:
    """Returns the new lanes where the mask is True."""
    return jax.tree.map(lambda a, b: jnp.where(expand(mask, a), a, b), new, old)


def _on_devices(mesh: Mesh | None, lanes: Lane) -> Lane:
    """Divides the lanes over the devices of a run, which train them; what reads all lanes gathers them."""
    if mesh is None:
        return lanes
    return jax.lax.with_sharding_constraint(lanes, NamedSharding(mesh, PartitionSpec(mesh.axis_names)))
