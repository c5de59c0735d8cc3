"""Execution of a plan: one compiled function advances a run by any number of server steps.

The state on the device is one pytree, donated from call to call. Loop bounds come from the plan and predicates are
never batched, so under `vmap` (a sweep whose members share a plan) nothing turns into a select over whole buffers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxafl import diagnostics, history
from jaxafl.client import Lane, LocalTraining, begin, local_step
from jaxafl.data.federated import FederatedData
from jaxafl.keys import Key, Purpose, jax_key, purpose_key
from jaxafl.models.model import Batch, Model
from jaxafl.plan import Segments, Steps
from jaxafl.pytrees import pytree
from jaxafl.server.contract import Arrivals, Server, Update

Array = jax.Array
Tree = Any


@dataclasses.dataclass(frozen=True)
class Program:
    """What the compiled program depends on, besides the shapes of its arguments.

    Attributes:
        model: what is trained.
        data: where mini-batches come from (its arrays are arguments).
        lanes: L, the most runs trained at once.
        chunk: lanes that advance together under `vmap`; a divisor of `lanes`.
        slots: ring slots.
        rows: rows of the update store.
        capacity: A, arrivals per server step.
        micro_batch: samples per gradient evaluation.
        uniform: all active lanes of a segment make the same number of local steps, so none has to be masked.
        full: every server step takes A arrivals, so none has to be masked.
        sliced: several rows of a buffer are read and written by a loop of slices (on a CPU), not by a gather or a
            scatter.
        stop: leave the loop when the parameters are no longer finite (not under `vmap`).
        observe: the user's diagnostics of the parameters at every server step.
        diagnostics: names from `diagnostics.DIAGNOSTICS`.
    """

    model: Model
    data: FederatedData
    lanes: int
    chunk: int
    slots: int
    rows: int
    capacity: int
    micro_batch: int
    uniform: bool
    full: bool
    sliced: bool
    stop: bool
    observe: Callable[[Tree], dict[str, Array]] | None = None
    diagnostics: tuple[str, ...] = ()


@pytree
class Config:
    """The numbers of a run."""

    client: LocalTraining
    server: Server


class Version(NamedTuple):
    """A global model; a ring slot holds one."""

    params: Tree
    model_state: Tree


class Stored(NamedTuple):
    """An update that is trained and not yet consumed; a row of the update store."""

    delta: Tree
    model_state: Tree
    loss: Array  # mean over the local steps of the mini-batch loss
    local_steps: Array  # int32: local steps made


class Failure(NamedTuple):
    """Where the parameters stopped being finite; `step` -1 if they did not."""

    step: Array
    client: Array


class State(NamedTuple):
    """A run between two server steps."""

    model: Version
    server: Any
    ring: Version
    store: Stored
    lanes: Lane
    clients: Tree  # [N, ...]: the clients' own models, where the server has them, else None
    average: Tree  # the mean of x_1 .. x_t, where it was asked for, else None
    failure: Failure
    batch_key: Key


class Dataset(NamedTuple):
    """The data on the device."""

    arrays: Any
    counts: Array  # int32 [N]


def initial(program: Program, config: Config, dataset: Dataset, key: Key) -> State:
    """The state before the first server step: x_0 in slot 0 of the ring."""
    model = initial_model(program, key)
    batch_key = purpose_key(key, Purpose.BATCH)
    none = jnp.int32(0)
    run = begin(config.client, model.params, model.model_state, batch_key, none, none, none, jnp.float32(0))
    update = Stored(model.params, model.model_state, run.loss, run.step)
    clients = None
    if config.server.needs.client_models:
        count = dataset.counts.shape[0]
        clients = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), model.params)
    return State(
        model=model,
        server=config.server.init(model.params, dataset.counts.astype(run.loss.dtype)),
        ring=history.write(history.allocate(model, program.slots), jnp.int32(0), model),
        store=history.allocate(update, program.rows),
        lanes=history.allocate(run, program.lanes),
        clients=clients,
        average=jax.tree.map(jnp.zeros_like, model.params) if "average" in program.diagnostics else None,
        failure=Failure(jnp.int32(-1), jnp.int32(-1)),
        batch_key=batch_key,
    )


def initial_model(program: Program, key: Key) -> Version:
    """x_0."""
    x, y = program.data.example
    example = Batch(jnp.asarray(x), jnp.asarray(y), jnp.ones(len(y), bool))
    return Version(*program.model.init(jax_key(purpose_key(key, Purpose.MODEL)), example))


def advance(
    program: Program,
    length: int,
    config: Config,
    dataset: Dataset,
    segments: Segments,
    steps: Steps,
    state: State,
    start: Array,
    stop: Array,
) -> tuple[State, dict[str, Array]]:
    """Takes the server steps start .. stop - 1, training before each what it needs.

    Args:
        program: static.
        length: the most steps of a call, static: the length of the diagnostics that come back.
        config: the numbers.
        dataset: the data.
        segments, steps: the plan, on the device.
        state: where the run is.
        start, stop: int32, stop - start <= length.

    Returns:
        The new state and the diagnostics of the steps, each [length, ...].
    """

    def one(carry: tuple[Array, State, dict[str, Array]]) -> tuple[Array, State, dict[str, Array]]:
        step, state, records = carry
        begun = jnp.where(step > 0, steps.segments_before[jnp.maximum(step - 1, 0)], 0)

        def segment(index: Array, state: State) -> State:
            return train(program, config, dataset, history.read(segments, index), state)

        state = jax.lax.fori_loop(begun, steps.segments_before[step], segment, state)
        state, record = server_step(program, config, dataset, history.read(steps, step), step, state)
        return step + 1, state, history.write(records, step - start, record)

    def proceed(carry: tuple[Array, State, dict[str, Array]]) -> Array:
        step, state, _ = carry
        return (step < stop) & (state.failure.step < 0) if program.stop else step < stop

    shapes = jax.eval_shape(lambda: server_step(program, config, dataset, history.read(steps, start), start, state)[1])
    records = jax.tree.map(lambda leaf: jnp.zeros((length, *leaf.shape), leaf.dtype), shapes)
    _, state, records = jax.lax.while_loop(proceed, one, (start, state, records))
    return state, records


def train(
    program: Program, config: Config, dataset: Dataset, segment: Segments, state: State, bound: Array | None = None
) -> State:
    """One segment: load the runs that begin, make local steps in every lane, save the updates of the runs that end.

    `bound`: at least the most local steps of a lane; given where that maximum would be batched.
    """
    state = state._replace(lanes=_load(program, config, segment, state))
    state = state._replace(lanes=_local_steps(program, config, dataset, segment.active, state.lanes, bound))
    return state._replace(store=_save(program, config, segment, state))


def server_step(
    program: Program, config: Config, dataset: Dataset, step: Steps, number: Array, state: State
) -> tuple[State, dict[str, Array]]:
    """One server step: gather the updates it consumes, let the server act, write the new version into the ring."""
    stored = history.read_many(state.store, step.row, program.sliced)
    start = start_of(program, config, step, state)
    state, _, record = apply_server(program, config, dataset, step, number, stored, start, state)
    return state._replace(ring=history.write(state.ring, step.write_slot, state.model)), record


def start_of(program: Program, config: Config, step: Steps, state: State) -> Tree:
    """x_s of the arrivals, [A, ...], or the clients' own models; `None` where the server reads neither."""
    if config.server.needs.client_models:
        return history.read_many(state.clients, step.client, program.sliced)
    if config.server.needs.start or "drift" in program.diagnostics:
        return history.read_many(state.ring.params, step.start_slot, program.sliced)
    return None


def apply_server(
    program: Program,
    config: Config,
    dataset: Dataset,
    step: Steps,
    number: Array,
    stored: Stored,
    start: Tree,
    state: State,
) -> tuple[State, Update, dict[str, Array]]:
    """The server's update of the global model and the diagnostics of the step; the ring is left alone."""
    mask = step.mask
    if not program.full:
        stored = jax.tree.map(lambda leaf: jnp.where(_expand(mask, leaf), leaf, jnp.zeros_like(leaf)), stored)
    floating = stored.loss.dtype
    arrivals = Arrivals(
        mask=mask,
        client=step.client,
        multiplicity=step.multiplicity,
        kind=step.kind,
        delta=stored.delta,
        start=start,
        staleness=jnp.where(mask, step.staleness, 0),
        samples=jnp.where(mask, dataset.counts[step.client], 0).astype(floating),
        local_steps=stored.local_steps,
        loss=stored.loss,
        step=number,
        time=step.time,
    )
    update = config.server.update(state.model.params, state.server, arrivals)
    if not program.full and not config.server.needs.acts_when_empty:
        acted = jnp.any(mask)
        params, server = jax.tree.map(
            lambda new, old: jnp.where(acted, new, old),
            (update.params, update.state),
            (state.model.params, state.server),
        )
        update = update._replace(params=params, state=server)
    clients = state.clients
    if update.client_params is not None:
        clients = _set_rows(program, clients, step.client, mask, update.client_params)
    model = Version(update.params, _mean_state(mask, step.multiplicity, stored.model_state, state.model.model_state))
    squares = [jnp.sum(jnp.square(leaf), axis=range(1, leaf.ndim)) for leaf in jax.tree.leaves(stored.delta)]
    record: dict[str, Array] = {"delta_norm": jnp.sqrt(sum(squares)), "local_loss": stored.loss, **update.info}
    if "drift" in program.diagnostics:
        record["drift"] = diagnostics.drift(state.model.params, start)
    if {"gradient_norm", "asynchronous_error"} & set(program.diagnostics):
        gradient = diagnostics.full_gradient(program.model, program.data, dataset.arrays, dataset.counts, *state.model)
        record |= diagnostics.of_gradient(
            program.diagnostics, gradient, state.model.params, model.params, config.server
        )
    average = state.average
    if average is not None:
        average = jax.tree.map(lambda mean, x: mean + (x - mean) / (number + 1).astype(x.dtype), average, model.params)
    if config.client.patience is not None:
        record["executed_local_steps"] = stored.local_steps
    if program.observe is not None:
        record |= _observed(program.observe, model.params)
    failure = _failure(state.failure, number, arrivals, squares, model.params)
    state = state._replace(model=model, server=update.state, clients=clients, average=average, failure=failure)
    return state, update, record


def evaluate(program: Program, batch_size: int, model: Version, x: Tree, y: Array) -> dict[str, Array]:
    """Mean loss and metrics over a test set, in batches of `batch_size`."""
    count = y.shape[0]
    batches = -(-count // batch_size)
    rows = jnp.arange(batches * batch_size, dtype=jnp.int32).reshape(batches, batch_size)
    key = jax_key((jnp.uint32(0), jnp.uint32(0)))

    def batch(rows: Array) -> dict[str, Array]:
        inside = rows < count
        where = jnp.minimum(rows, count - 1)
        inputs = program.data.preprocess(jax.tree.map(lambda leaf: leaf[where], x))
        outputs, _ = program.model.apply(model.params, model.model_state, Batch(inputs, y[where], inside), key, False)
        return {
            name: jnp.sum(jnp.where(inside, values, 0))
            for name, values in ({"loss": outputs.loss} | outputs.metrics).items()
        }

    sums = jax.lax.map(batch, rows)
    return {name: jnp.sum(values) / count for name, values in sums.items()}


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
    def fetch(client: Array, positions: Array, key: Array) -> tuple[Tree, Array]:
        return program.data.fetch(dataset.arrays, client, positions, key)

    def once(lane: Lane) -> Lane:
        return local_step(config.client, program.model, fetch, program.micro_batch, dataset.counts[lane.client], lane)

    def alone(lane: Lane, count: Array) -> Lane:
        if lane.stopping is None:
            return jax.lax.fori_loop(0, count, lambda _, lane: once(lane), lane)
        return jax.lax.while_loop(
            lambda carry: (carry[0] < count) & ~_stopped(carry[1]),
            lambda carry: (carry[0] + 1, once(carry[1])),
            (jnp.int32(0), lane),
        )[1]

    def together(group: Lane, counts: Array) -> Lane:
        def masked(index: Array, group: Lane) -> Lane:
            new = jax.vmap(once)(group)
            if program.uniform and bound is None and group.stopping is None:
                return new
            goes_on = (index < counts) & ~_stopped(group)
            return jax.tree.map(lambda a, b: jnp.where(_expand(goes_on, a), a, b), new, group)

        return jax.lax.fori_loop(0, jnp.max(counts) if bound is None else bound, masked, group)

    if program.chunk == program.lanes and (program.lanes > 1 or bound is not None):
        return together(lanes, active)

    def group(index: Array, lanes: Lane) -> Lane:
        if program.chunk == 1:
            return history.write(lanes, index, alone(history.read(lanes, index), active[index]))
        first = index * program.chunk
        part = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, program.chunk), lanes)
        part = together(part, jax.lax.dynamic_slice_in_dim(active, first, program.chunk))
        return jax.tree.map(lambda leaf, new: jax.lax.dynamic_update_slice_in_dim(leaf, new, first, 0), lanes, part)

    if program.lanes == 1:
        return group(jnp.int32(0), lanes)
    return jax.lax.fori_loop(0, program.lanes // program.chunk, group, lanes)


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
        return Stored(delta, lane.model_state, lane.loss / jnp.maximum(lane.step, 1), lane.step)

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


def _set_rows(program: Program, rows: Tree, indices: Array, mask: Array, new: Tree) -> Tree:
    """Rows replaced where `mask`; masked indices are distinct."""
    if not program.sliced:
        return history.write_many(rows, indices, mask, new)

    def one(entry: Array, rows: Tree) -> Tree:
        old = history.read(rows, indices[entry])
        kept = jax.tree.map(lambda a, b: jnp.where(mask[entry], a, b), history.read(new, entry), old)
        return history.write(rows, indices[entry], kept)

    return jax.lax.fori_loop(0, indices.shape[0], one, rows)


def _observed(observe: Callable[[Tree], dict[str, Array]], params: Tree) -> dict[str, Array]:
    seen = observe(params)
    if not isinstance(seen, dict):
        raise TypeError(f"observe must return a dict of arrays, it returned {type(seen).__name__}")
    return {f"observe_{name}": jnp.asarray(value) for name, value in seen.items()}


def _mean_state(mask: Array, multiplicity: Array, states: Tree, current: Tree) -> Tree:
    """Non-trainable model state: the plain mean over the arrivals; it stays when nobody arrived."""
    weights = jnp.where(mask, multiplicity, 0)
    total = jnp.sum(weights)

    def mean(leaf: Array, old: Array) -> Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return jnp.where(total > 0, jnp.max(leaf, axis=0), old)  # counters: the furthest
        average = jnp.tensordot(weights.astype(leaf.dtype), leaf, axes=1) / jnp.maximum(total, 1).astype(leaf.dtype)
        return jnp.where(total > 0, average, old)

    return jax.tree.map(mean, states, current)


def _failure(before: Failure, number: Array, arrivals: Arrivals, squares: list[Array], params: Tree) -> Failure:
    """Marks the first step whose parameters are not finite, and the client whose update did it."""
    finite = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(params)]).all()
    size = jnp.where(arrivals.mask, sum(squares), -1)
    culprit = jnp.argmax(jnp.where(jnp.isfinite(size), size, jnp.inf))  # the first that is not finite, else the largest
    failed = (before.step < 0) & ~finite
    return Failure(jnp.where(failed, number, before.step), jnp.where(failed, arrivals.client[culprit], before.client))


def _expand(mask: Array, leaf: Array) -> Array:
    return mask.reshape(mask.shape + (1,) * (leaf.ndim - mask.ndim))
