"""One segment of local training: load the runs that begin, make local steps in every lane, save the runs that end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxafl.client import Draw, Lane, Timing, begin, computed_norm, draw, local_step, sent_update
from jaxafl.device import buffers, on_cpu
from jaxafl.device.buffers import expand
from jaxafl.device.rows import AXIS
from jaxafl.engine.plan import Segments
from jaxafl.engine.problem import DeviceData, Hyperparameters, Layout, Program
from jaxafl.engine.state import State, Stored

Array = jax.Array
Train = Callable[..., State]
ExecutedSteps = Callable[[State, Array, Array, Array, Array, Array], Array]
_MAX_PREFETCHED_SAMPLES = 2**16  # of one lane, 13 bytes each


def build_train(program: Program, hyperparameters: Hyperparameters, device: DeviceData) -> tuple[Train, ExecutedSteps]:
    """Builds two functions of a run's state.

    Returns:
        train(segment, state, max_steps=None) -> state: one segment. `max_steps`: upper bound on the local steps of any
            lane, required under `vmap` over plans, where `active.max()` would be batched and a loop bound must not be.
        executed_steps(state, slot, client, run, version, count) -> int32: the local steps, at most `count`, that a run
            from a ring slot executes before it stops early. It trains the run and discards its update.
    """
    client, own_models = hyperparameters.client, hyperparameters.server.needs.client_models
    loops, layout = program.loops, program.layout
    apply = program.model.bound(device.frozen)
    _, first_client = local_clients(layout, device)
    micro_batch: Any = client.micro_batch  # set by `Client.executed`
    one_piece = 0 < client.width <= micro_batch

    def take_local_step(lane: Lane, drawn: Draw | None = None) -> Lane:
        def fetch(who: Array, positions: Array, keys: Array) -> tuple[Array, Array]:
            return program.data.fetch(device.arrays, who - first_client, positions, keys)

        return local_step(client, apply, fetch, micro_batch, device.counts[lane.client], lane, drawn)

    def next_draw(lane: Lane) -> Draw:
        return draw(client, device.counts[lane.client], lane, 0, client.width)

    def run_lane(lane: Lane, count: Array, static_count: int | None = None) -> Lane:
        """Executes `count` local steps of one run, or fewer if it stops early."""
        if lane.stopping is None:
            return jax.lax.fori_loop(0, static_count or count, lambda _, lane: take_local_step(lane), lane)
        return jax.lax.while_loop(
            lambda carry: (carry[0] < count) & ~_stopped(carry[1]),
            lambda carry: (carry[0] + 1, take_local_step(carry[1])),
            (jnp.int32(0), lane),
        )[1]

    def run_lanes_vmapped(group: Lane, counts: Array, max_steps: Array | None) -> Lane:
        """Executes local steps of several lanes; lanes with fewer steps are masked (none, if `counts` is a scalar).

        With a static trip count, all mini-batches are drawn before the first step, and lanes do not count their steps.
        """
        begun, drawn = group.step, None
        known = loops.local_steps if group.stopping is None else None
        if known and one_piece and known * client.width <= _MAX_PREFETCHED_SAMPLES:
            ahead = begun + jnp.arange(known, dtype=jnp.int32)[:, None]
            drawn = jax.vmap(lambda step: jax.vmap(next_draw)(group._replace(step=step)))(ahead)

        def masked(index: Array, group: Lane) -> Lane:
            if known:
                group = group._replace(step=begun + index)
            new = jax.vmap(take_local_step)(group, buffers.read(drawn, index))
            if known:
                group, new = group._replace(step=begun), new._replace(step=begun)
            if not counts.ndim and group.stopping is None:
                return new
            goes_on = (index < counts) & ~_stopped(group)
            return jax.tree.map(lambda a, b: jnp.where(expand(goes_on, a), a, b), new, group)

        most = jnp.max(counts) if max_steps is None else max_steps
        group = jax.lax.fori_loop(0, loops.local_steps or most, masked, group)
        return group._replace(step=begun + counts) if known else group

    def run_lanes(active: Array, lanes: Lane, max_steps: Array | None) -> Lane:
        total, size = len(lanes.step), loops.lanes_per_vmap
        if size == total and (total > 1 or max_steps is not None):
            return run_lanes_vmapped(lanes, active, max_steps)

        def group(index: Array, lanes: Lane) -> Lane:
            if size == 1:
                known = loops.local_steps if total == 1 else None  # one of several lanes may be idle
                return buffers.write(lanes, index, run_lane(buffers.read(lanes, index), active[index], known))
            part = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, index * size, size), lanes)
            part = run_lanes_vmapped(part, jax.lax.dynamic_slice_in_dim(active, index * size, size), max_steps)
            return jax.tree.map(
                lambda leaf, new: jax.lax.dynamic_update_slice_in_dim(leaf, new, index * size, 0), lanes, part
            )

        if total == 1:
            return group(jnp.int32(0), lanes)
        return jax.lax.fori_loop(0, total // size, group, lanes)

    def begun(state: State, slot: Array, who: Array, run: Array, timing: Timing) -> Lane:
        """Returns the lane of a run that begins with the version in a ring slot, or with its client's own model."""
        version = buffers.read(state.ring, slot)
        params = state.clients.read(who) if own_models else version.params
        memory = None if state.memory is None else state.memory.read(who)
        return begin(client, params, version.model_state, state.batch_key, who, run, timing, memory, version.shared)

    def load(segment: Segments, state: State) -> Lane:
        def one(place: Array) -> Lane:
            who, run = segment.load_client[place], segment.load_run[place]
            return begun(state, segment.load_slot[place], who, run, segment.timing(place))

        # without the loop XLA reads rows of clients in what writes them, and copies all rows for every run
        if state.memory is None and len(state.lanes.step) == layout.shares == 1 and on_cpu():
            return jax.tree.map(lambda leaf: leaf[None], one(jnp.int32(0)))
        places, count = (segment.load_lane,), segment.load_count
        return buffers.write_made((state.lanes,), places, count, lambda place: (one(place),))[0]

    def save(segment: Segments, state: State, global_segment: Segments) -> State:
        store, kept, count = state.store, state.memory, segment.save_count

        def ended(place: Array) -> tuple[Any, ...]:
            """Returns the update of a run, and the new row of its client's memory if there is one."""
            lane = buffers.read(state.lanes, segment.save_lane[place])
            if own_models:
                reference = state.clients.read(lane.client)
            else:
                reference = buffers.read(state.ring.params, segment.save_slot[place])
            delta = jax.tree.map(jnp.subtract, lane.params, reference)
            computed = computed_norm(client, delta)
            delta, message, memory = sent_update(client, delta, lane, device.counts[lane.client])
            loss = jnp.where(lane.step > 0, lane.loss / jnp.maximum(lane.step, 1), jnp.nan)
            stored = Stored(delta, lane.model_state, loss, lane.step, message, computed)
            return (stored,) if kept is None else (stored, memory)

        targets: tuple[Any, ...] = (store,)
        rows: tuple[Array, ...] = (segment.save_row,)
        if kept is not None:
            targets, rows = (store, kept.tree), (segment.save_row, kept.place(state.lanes.client[segment.save_lane]))
        made: tuple[Any, ...]
        if layout.shares > 1 and not layout.local_updates:
            lanes = len(state.lanes.step)
            made = (_gather_updates(layout, global_segment, segment, store, lanes, lambda place: ended(place)[0]),)
            if kept is not None:
                made += buffers.write_made(targets[1:], rows[1:], count, lambda place: ended(place)[1:])
        elif kept is None and len(state.lanes.step) == layout.shares == 1 and on_cpu():
            made = (buffers.write(store, segment.save_row[0], ended(jnp.int32(0))[0]),)
        else:
            made = buffers.write_made(targets, rows, count, ended)
        if kept is not None:
            state = state._replace(memory=dataclasses.replace(kept, tree=made[1]))
        return state._replace(store=made[0])

    def train(segment: Segments, state: State, max_steps: Array | None = None) -> State:
        global_segment = segment
        if layout.shares > 1:
            segment = _select_local_lanes(layout, segment, len(state.lanes.step))
        state = state._replace(lanes=load(segment, state))
        state = state._replace(lanes=run_lanes(segment.active, state.lanes, max_steps))
        return save(segment, state, global_segment)

    def executed_steps(state: State, slot: Array, who: Array, run: Array, version: Array, count: Array) -> Array:
        return run_lane(begun(state, slot, who, run, Timing(version=version)), count).step

    return train, executed_steps


def _stopped(lane: Lane) -> Array:
    return jnp.bool_(False) if lane.stopping is None else lane.stopping.stopped


def local_clients(layout: Layout, device: DeviceData) -> tuple[Array, Array | int]:
    """Returns the samples of each client [N], 0 for clients of other devices, and the first client whose samples are
    stored on this device."""
    if layout.shares == 1:
        return device.counts, 0
    clients = jnp.arange(device.counts.shape[0], dtype=jnp.int32)
    size = -(-len(clients) // layout.shares)
    index = jax.lax.axis_index(AXIS)
    return jnp.where(clients // size == index, device.counts, 0), index * size if layout.divided else 0


def _select_local_lanes(layout: Layout, segment: Segments, lanes: int) -> Segments:
    """Returns the part of a segment that this device trains: lane l belongs to device l % D."""
    device, shares = jax.lax.axis_index(AXIS), layout.shares

    def entries(lane: Array, count: Array) -> tuple[Array, Array]:
        local = (lane % shares == device) & (jnp.arange(lane.shape[0]) < count)
        return jnp.argsort(~local, stable=True)[:lanes], jnp.sum(local, dtype=jnp.int32)

    loads, load_count = entries(segment.load_lane, segment.load_count)
    saves, save_count = entries(segment.save_lane, segment.save_count)
    each = {name: column for name, column in segment._asdict().items() if column is not None and column.ndim}
    part = {name: column[loads] for name, column in each.items() if name.startswith("load_")}
    part |= {name: column[saves] for name, column in each.items() if name.startswith("save_")}
    part |= {name: part[name] // shares for name in ("load_lane", "save_lane")}
    if segment.active.ndim:
        part["active"] = segment.active.reshape(lanes, shares)[:, device]
    return segment._replace(**part, load_count=load_count, save_count=save_count)


def _gather_updates(
    layout: Layout,
    global_segment: Segments,
    segment: Segments,
    store: Stored,
    lanes: int,
    make: Callable[[Array], Stored],
) -> Stored:
    """All-gathers the updates that end in this segment and writes them to every replica of the store: the only
    collective of local training."""
    places = jnp.arange(lanes, dtype=jnp.int32)

    def by_scatter(store: Stored) -> Stored:
        rows = store.loss.shape[0]
        entries = jnp.where(places < segment.save_count, segment.save_row, rows)
        made, found = jax.lax.all_gather((jax.vmap(make)(places), entries), AXIS, tiled=True)
        return buffers.write_many(store, found, found < rows, made)

    def by_slices(store: Stored) -> Stored:
        row = jax.eval_shape(make, places[0])
        packed = buffers.packed(row, lanes)  # one array: CPU devices wait for each other at every collective
        packed = jax.lax.fori_loop(0, segment.save_count, lambda i, rows: buffers.pack(rows, i, make(i)), packed)
        packed = jax.lax.all_gather(packed, AXIS, tiled=True)
        device = global_segment.save_lane % layout.shares
        before = jnp.tril(device[:, None] == device, -1).sum(1, dtype=jnp.int32)  # saved by the same device
        where = device * lanes + before

        def put(entry: Array, store: Stored) -> Stored:
            return buffers.write(store, global_segment.save_row[entry], buffers.unpack(packed, where[entry], row))

        return jax.lax.fori_loop(0, global_segment.save_count, put, store)

    return buffers.changed_if(global_segment.save_count > 0, by_slices if on_cpu() else by_scatter, store)
