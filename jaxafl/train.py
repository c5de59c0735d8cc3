"""One segment of training: load the runs that begin, make local steps in every lane, save what those that end made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxafl import history
from jaxafl.local import Lane, begin, local_step
from jaxafl.plan import Segments
from jaxafl.state import Config, Dataset, Program, State, Stored

Array = jax.Array
Tree = Any


def train(
    program: Program, config: Config, dataset: Dataset, segment: Segments, state: State, bound: Array | None = None
) -> State:
    """One segment: load the runs that begin, make local steps in every lane, save the updates of the runs that end.

    `bound`: at least the most local steps of a lane; given where that maximum would be batched.
    """
    state = state._replace(lanes=_load(program, config, segment, state))
    state = state._replace(lanes=_local_steps(program, config, dataset, segment.active, state.lanes, bound))
    return state._replace(store=_save(program, config, segment, state))


def executed_steps(
    program: Program,
    config: Config,
    dataset: Dataset,
    state: State,
    slot: Array,
    client: Array,
    run: Array,
    count: Array,
) -> Array:
    """How many of its `count` local steps a run makes before it stops early: trains it, and keeps nothing else."""
    version = history.read(state.ring, slot)
    none = jnp.int32(0)
    lane = begin(config.client, version.params, version.model_state, state.batch_key, client, run, none, jnp.float32(0))
    return _alone(_step(program, config, dataset), lane, count).step


def _load(program: Program, config: Config, segment: Segments, state: State) -> Lane:
    def one(place: Array) -> Lane:
        version = history.read(state.ring, segment.load_slot[place])
        client = segment.load_client[place]
        params = history.read(state.clients, client) if config.server.needs.client_models else version.params
        return begin(
            config.client, params, version.model_state, state.batch_key, client, segment.load_run[place],
            segment.load_staleness[place], segment.load_duration[place],
        )  # fmt: skip

    if program.lanes == 1 and program.sliced:
        return jax.tree.map(lambda leaf: leaf[None], one(jnp.int32(0)))
    if program.sliced:
        return jax.lax.fori_loop(
            0,
            segment.load_count,
            lambda place, lanes: history.write(lanes, segment.load_lane[place], one(place)),
            state.lanes,
        )
    places = jnp.arange(program.lanes, dtype=jnp.int32)
    return history.write_many(state.lanes, segment.load_lane, places < segment.load_count, jax.vmap(one)(places))


def _local_steps(
    program: Program, config: Config, dataset: Dataset, active: Array, lanes: Lane, bound: Array | None
) -> Lane:
    once = _step(program, config, dataset)

    def together(group: Lane, counts: Array) -> Lane:
        def masked(index: Array, group: Lane) -> Lane:
            new = jax.vmap(once)(group)
            if program.uniform and bound is None and group.stopping is None:
                return new
            goes_on = (index < counts) & ~_stopped(group)
            return jax.tree.map(lambda a, b: jnp.where(expand(goes_on, a), a, b), new, group)

        return jax.lax.fori_loop(0, jnp.max(counts) if bound is None else bound, masked, group)

    if program.chunk == program.lanes and (program.lanes > 1 or bound is not None):
        return together(lanes, active)

    def group(index: Array, lanes: Lane) -> Lane:
        if program.chunk == 1:
            return history.write(lanes, index, _alone(once, history.read(lanes, index), active[index]))
        first = index * program.chunk
        part = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, program.chunk), lanes)
        part = together(part, jax.lax.dynamic_slice_in_dim(active, first, program.chunk))
        return jax.tree.map(lambda leaf, new: jax.lax.dynamic_update_slice_in_dim(leaf, new, first, 0), lanes, part)

    if program.lanes == 1:
        return group(jnp.int32(0), lanes)
    return jax.lax.fori_loop(0, program.lanes // program.chunk, group, lanes)


def _step(program: Program, config: Config, dataset: Dataset) -> Callable[[Lane], Lane]:
    """One local step of one run."""
    apply = program.model.bound(dataset.frozen)

    def fetch(client: Array, positions: Array, keys: Array) -> tuple[Tree, Array]:
        return program.data.fetch(dataset.arrays, client, positions, keys)

    return lambda lane: local_step(config.client, apply, fetch, program.micro_batch, dataset.counts[lane.client], lane)


def _alone(once: Callable[[Lane], Lane], lane: Lane, count: Array) -> Lane:
    """`count` local steps of one run, or fewer where it stops early."""
    if lane.stopping is None:
        return jax.lax.fori_loop(0, count, lambda _, lane: once(lane), lane)
    return jax.lax.while_loop(
        lambda carry: (carry[0] < count) & ~_stopped(carry[1]),
        lambda carry: (carry[0] + 1, once(carry[1])),
        (jnp.int32(0), lane),
    )[1]


def _stopped(lane: Lane) -> Array:
    return jnp.bool_(False) if lane.stopping is None else lane.stopping.stopped


def _save(program: Program, config: Config, segment: Segments, state: State) -> Stored:
    def one(place: Array) -> Stored:
        lane = history.read(state.lanes, segment.save_lane[place])
        if config.server.needs.client_models:
            reference = history.read(state.clients, lane.client)
        else:
            reference = history.read(state.ring.params, segment.save_slot[place])
        delta = jax.tree.map(jnp.subtract, lane.params, reference)
        return Stored(
            delta, lane.model_state, jnp.where(lane.step > 0, lane.loss / jnp.maximum(lane.step, 1), jnp.nan), lane.step
        )

    if program.lanes == 1 and program.sliced:
        return history.write(state.store, segment.save_row[0], one(jnp.int32(0)))
    if program.sliced:
        return jax.lax.fori_loop(
            0,
            segment.save_count,
            lambda place, store: history.write(store, segment.save_row[place], one(place)),
            state.store,
        )
    places = jnp.arange(program.lanes, dtype=jnp.int32)
    return history.write_many(state.store, segment.save_row, places < segment.save_count, jax.vmap(one)(places))


def expand(mask: Array, leaf: Array) -> Array:
    return mask.reshape(mask.shape + (1,) * (leaf.ndim - mask.ndim))
