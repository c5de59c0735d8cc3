"""One segment of training: load the runs that begin, make local steps in every lane, save what those that end made."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxafl.client import Draw, Lane, begin, draw, local_step
from jaxafl.device import buffers
from jaxafl.device.buffers import expand
from jaxafl.device.rows import AXIS
from jaxafl.engine.plan import Segments
from jaxafl.engine.problem import DeviceData, Numbers, Program
from jaxafl.engine.state import State, Stored

Array = jax.Array
Train = Callable[..., State]
Executed = Callable[[State, Array, Array, Array, Array], Array]
_AHEAD = 2**16  # samples that a lane draws before its first local step, of 13 bytes each


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
    _, first = own_clients(program, device)

    at_once = client.batch_size is not None and client.batch_size <= program.micro_batch

    def once(lane: Lane, drawn: Draw | None = None) -> Lane:
        def fetch(who: Array, positions: Array, keys: Array) -> tuple[Array, Array]:
            return program.data.fetch(device.arrays, who - first, positions, keys)

        return local_step(client, apply, fetch, program.micro_batch, device.counts[lane.client], lane, drawn)

    def next_draw(lane: Lane) -> Draw:
        return draw(client, device.counts[lane.client], lane, 0, client.batch_size or 0)

    def alone(lane: Lane, count: Array) -> Lane:
        """`count` local steps of one run, or fewer where it stops early."""
        if lane.stopping is None:
            known = program.local_steps if program.lanes == 1 else None  # one of several may have nothing to do
            return jax.lax.fori_loop(0, known or count, lambda _, lane: once(lane), lane)
        return jax.lax.while_loop(
            lambda carry: (carry[0] < count) & ~_stopped(carry[1]),
            lambda carry: (carry[0] + 1, once(carry[1])),
            (jnp.int32(0), lane),
        )[1]

    def together(group: Lane, counts: Array, bound: Array | None) -> Lane:
        """Local steps of several lanes, those that make fewer masked. Where it is known how many there are, what they
        draw is drawn before the first, and no lane counts them."""
        begun, drawn = group.step, None
        known = program.local_steps if group.stopping is None else None
        if known and at_once and known * (client.batch_size or 0) <= _AHEAD:
            ahead = begun + jnp.arange(known, dtype=jnp.int32)[:, None]
            drawn = jax.vmap(lambda step: jax.vmap(next_draw)(group._replace(step=step)))(ahead)

        def masked(index: Array, group: Lane) -> Lane:
            if known:
                group = group._replace(step=begun + index)
            new = jax.vmap(once)(group, buffers.read(drawn, index))
            if known:
                group, new = group._replace(step=begun), new._replace(step=begun)
            if program.uniform and bound is None and group.stopping is None:
                return new
            goes_on = (index < counts) & ~_stopped(group)
            return jax.tree.map(lambda a, b: jnp.where(expand(goes_on, a), a, b), new, group)

        most = jnp.max(counts) if bound is None else bound
        group = jax.lax.fori_loop(0, program.local_steps or most, masked, group)
        return group._replace(step=begun + counts) if known else group

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
            params = state.clients.read(who) if own_models else version.params
            return begin(
                client, params, version.model_state, state.batch_key, who, segment.load_run[place],
                segment.load_staleness[place], segment.load_duration[place],
            )  # fmt: skip

        if program.lanes == program.shares == 1 and program.sliced:
            return jax.tree.map(lambda leaf: leaf[None], one(jnp.int32(0)))
        return buffers.write_made(state.lanes, segment.load_lane, segment.load_count, one, program.sliced)

    def save(segment: Segments, state: State, whole: Segments) -> Stored:
        def one(place: Array) -> Stored:
            lane = buffers.read(state.lanes, segment.save_lane[place])
            if own_models:
                reference = state.clients.read(lane.client)
            else:
                reference = buffers.read(state.ring.params, segment.save_slot[place])
            delta = jax.tree.map(jnp.subtract, lane.params, reference)
            loss = jnp.where(lane.step > 0, lane.loss / jnp.maximum(lane.step, 1), jnp.nan)
            return Stored(delta, lane.model_state, loss, lane.step)

        if program.shares > 1 and not program.apart:
            return _gathered(program, whole, segment, state.store, one)
        if program.lanes == program.shares == 1 and program.sliced:
            return buffers.write(state.store, segment.save_row[0], one(jnp.int32(0)))
        return buffers.write_made(state.store, segment.save_row, segment.save_count, one, program.sliced)

    def train(segment: Segments, state: State, bound: Array | None = None) -> State:
        whole = segment
        if program.shares > 1:
            segment = _own(program, segment)
        state = state._replace(lanes=load(segment, state))
        state = state._replace(lanes=local_steps(segment.active, state.lanes, bound))
        return state._replace(store=save(segment, state, whole))

    def executed_steps(state: State, slot: Array, who: Array, run: Array, count: Array) -> Array:
        version, none = buffers.read(state.ring, slot), jnp.int32(0)
        params, model_state = version
        lane = begin(client, params, model_state, state.batch_key, who, run, none, jnp.float32(0))
        return alone(lane, count).step

    return train, executed_steps


def _stopped(lane: Lane) -> Array:
    return jnp.bool_(False) if lane.stopping is None else lane.stopping.stopped


def own_clients(program: Program, device: DeviceData) -> tuple[Array, Array | int]:
    """The samples of each client, [N], none of those whom other devices look after; and the first client whose samples
    are in the arrays."""
    if program.shares == 1:
        return device.counts, 0
    clients = jnp.arange(device.counts.shape[0], dtype=jnp.int32)
    size = -(-len(clients) // program.shares)
    mine = jax.lax.axis_index(AXIS)
    return jnp.where(clients // size == mine, device.counts, 0), mine * size if program.divided else 0


def _own(program: Program, segment: Segments) -> Segments:
    """What this device does of a segment of all lanes: those congruent to its number modulo D are its lanes, in their
    order."""
    device, shares = jax.lax.axis_index(AXIS), program.shares

    def entries(lane: Array, count: Array) -> tuple[Array, Array]:
        own = (lane % shares == device) & (jnp.arange(lane.shape[0]) < count)
        return jnp.argsort(~own, stable=True)[: program.lanes], jnp.sum(own, dtype=jnp.int32)

    loads, load_count = entries(segment.load_lane, segment.load_count)
    saves, save_count = entries(segment.save_lane, segment.save_count)
    part = segment._asdict()
    part |= {name: column[loads] for name, column in part.items() if name.startswith("load_") and column.ndim}
    part |= {name: column[saves] for name, column in part.items() if name.startswith("save_") and column.ndim}
    part |= {name: part[name] // shares for name in ("load_lane", "save_lane")}
    active = segment.active.reshape(program.lanes, shares)[:, device]
    return Segments(**(part | {"active": active, "load_count": load_count, "save_count": save_count}))


def _gathered(
    program: Program, whole: Segments, segment: Segments, store: Stored, make: Callable[[Array], Stored]
) -> Stored:
    """The store with what all devices have made in a segment: the one place where it moves anything."""
    places = jnp.arange(program.lanes, dtype=jnp.int32)

    def at_once(store: Stored) -> Stored:
        rows = store.loss.shape[0]
        entries = jnp.where(places < segment.save_count, segment.save_row, rows)
        made, found = jax.lax.all_gather((jax.vmap(make)(places), entries), AXIS, tiled=True)
        return buffers.write_many(store, found, found < rows, made)

    def one_after_another(store: Stored) -> Stored:
        row = jax.eval_shape(make, places[0])
        packed = buffers.packed(row, program.lanes)  # as one array, since devices wait for each other at each
        packed = jax.lax.fori_loop(0, segment.save_count, lambda i, rows: buffers.pack(rows, i, make(i)), packed)
        packed = jax.lax.all_gather(packed, AXIS, tiled=True)
        device = whole.save_lane % program.shares
        before = jnp.tril(device[:, None] == device, -1).sum(1, dtype=jnp.int32)  # saved by the same device
        where = device * program.lanes + before

        def put(entry: Array, store: Stored) -> Stored:
            return buffers.write(store, whole.save_row[entry], buffers.unpack(packed, where[entry], row))

        return jax.lax.fori_loop(0, whole.save_count, put, store)

    exchange = one_after_another if program.sliced else at_once
    return jax.lax.fori_loop(0, jnp.minimum(whole.save_count, 1), lambda _, store: exchange(store), store)
