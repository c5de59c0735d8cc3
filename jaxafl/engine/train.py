"""One segment of training: load the runs that begin, make local steps in every lane, save what those that end made."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxafl.client import Lane, begin, local_step
from jaxafl.device import buffers
from jaxafl.device.buffers import expand
from jaxafl.engine.plan import Segments
from jaxafl.engine.problem import DeviceData, Numbers, Program
from jaxafl.engine.state import State, Stored

Array = jax.Array
Train = Callable[..., State]
Executed = Callable[[State, Array, Array, Array, Array], Array]


def build_train(program: Program, numbers: Numbers, device: DeviceData) -> tuple[Train, Executed]:
    """Two functions of a run's state.

    Returns:
        train(segment, state, bound=None) -> state: one segment. `bound`: at least the most local steps of a lane, given
            where that maximum would be batched.
        executed_steps(state, slot, client, run, count) -> int32: how many of its `count` local steps a run from a ring
            slot makes before it stops early; it is trained, and nothing else kept.
    """
    client, own_models = numbers.client, numbers.server.needs.client_models
    apply = program.model.bound(device.frozen)

    def once(lane: Lane) -> Lane:
        def fetch(who: Array, positions: Array, keys: Array) -> tuple[Array, Array]:
            return program.data.fetch(device.arrays, who, positions, keys)

        return local_step(client, apply, fetch, program.micro_batch, device.counts[lane.client], lane)

    def alone(lane: Lane, count: Array) -> Lane:
        """`count` local steps of one run, or fewer where it stops early."""
        if lane.stopping is None:
            return jax.lax.fori_loop(0, count, lambda _, lane: once(lane), lane)
        return jax.lax.while_loop(
            lambda carry: (carry[0] < count) & ~_stopped(carry[1]),
            lambda carry: (carry[0] + 1, once(carry[1])),
            (jnp.int32(0), lane),
        )[1]

    def together(group: Lane, counts: Array, bound: Array | None) -> Lane:
        """Local steps of several lanes, those that make fewer masked."""

        def masked(index: Array, group: Lane) -> Lane:
            new = jax.vmap(once)(group)
            if program.uniform and bound is None and group.stopping is None:
                return new
            goes_on = (index < counts) & ~_stopped(group)
            return jax.tree.map(lambda a, b: jnp.where(expand(goes_on, a), a, b), new, group)

        return jax.lax.fori_loop(0, jnp.max(counts) if bound is None else bound, masked, group)

    def local_steps(active: Array, lanes: Lane, bound: Array | None) -> Lane:
        chunk = program.chunk
        if chunk == program.lanes and (program.lanes > 1 or bound is not None):
            return together(lanes, active, bound)

        def group(index: Array, lanes: Lane) -> Lane:
            if chunk == 1:
                return buffers.write(lanes, index, alone(buffers.read(lanes, index), active[index]))
            part = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, index * chunk, chunk), lanes)
            part = together(part, jax.lax.dynamic_slice_in_dim(active, index * chunk, chunk), bound)
            return jax.tree.map(
                lambda leaf, new: jax.lax.dynamic_update_slice_in_dim(leaf, new, index * chunk, 0), lanes, part
            )

        if program.lanes == 1:
            return group(jnp.int32(0), lanes)
        return jax.lax.fori_loop(0, program.lanes // chunk, group, lanes)

    def load(segment: Segments, state: State) -> Lane:
        def one(place: Array) -> Lane:
            version = buffers.read(state.ring, segment.load_slot[place])
            who = segment.load_client[place]
            params = buffers.read(state.clients, who) if own_models else version.params
            return begin(
                client, params, version.model_state, state.batch_key, who, segment.load_run[place],
                segment.load_staleness[place], segment.load_duration[place],
            )  # fmt: skip

        if program.lanes == 1 and program.sliced:
            return jax.tree.map(lambda leaf: leaf[None], one(jnp.int32(0)))
        return buffers.write_made(state.lanes, segment.load_lane, segment.load_count, one, program.sliced)

    def save(segment: Segments, state: State) -> Stored:
        def one(place: Array) -> Stored:
            lane = buffers.read(state.lanes, segment.save_lane[place])
            if own_models:
                reference = buffers.read(state.clients, lane.client)
            else:
                reference = buffers.read(state.ring.params, segment.save_slot[place])
            delta = jax.tree.map(jnp.subtract, lane.params, reference)
            loss = jnp.where(lane.step > 0, lane.loss / jnp.maximum(lane.step, 1), jnp.nan)
            return Stored(delta, lane.model_state, loss, lane.step)

        if program.lanes == 1 and program.sliced:
            return buffers.write(state.store, segment.save_row[0], one(jnp.int32(0)))
        return buffers.write_made(state.store, segment.save_row, segment.save_count, one, program.sliced)

    def train(segment: Segments, state: State, bound: Array | None = None) -> State:
        state = state._replace(lanes=load(segment, state))
        state = state._replace(lanes=local_steps(segment.active, state.lanes, bound))
        return state._replace(store=save(segment, state))

    def executed_steps(state: State, slot: Array, who: Array, run: Array, count: Array) -> Array:
        version, none = buffers.read(state.ring, slot), jnp.int32(0)
        params, model_state = version
        lane = begin(client, params, model_state, state.batch_key, who, run, none, jnp.float32(0))
        return alone(lane, count).step

    return train, executed_steps


def _stopped(lane: Lane) -> Array:
    return jnp.bool_(False) if lane.stopping is None else lane.stopping.stopped
