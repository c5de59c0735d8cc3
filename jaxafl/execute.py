"""Execution of a plan: one compiled function advances a run by any number of server steps.

The state on the device is one pytree, donated from call to call. Loop bounds come from the plan and predicates are
never batched, so under `vmap` (a sweep whose members share a plan) nothing turns into a select over whole buffers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxafl import diagnostics, history
from jaxafl.keys import jax_key
from jaxafl.models.model import Batch
from jaxafl.plan import Segments, Steps
from jaxafl.server.contract import Arrivals, Update
from jaxafl.state import Config, Dataset, Failure, Program, State, Stored, Version
from jaxafl.train import expand, train

Array = jax.Array
Tree = Any


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
        stored = jax.tree.map(lambda leaf: jnp.where(expand(mask, leaf), leaf, jnp.zeros_like(leaf)), stored)
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
    rate = getattr(config.server, "learning_rate", None)
    if rate is not None and "server_rate" not in record:
        record["server_rate"] = jnp.asarray(rate)
    if "drift" in program.diagnostics:
        record["drift"] = diagnostics.drift(state.model.params, start)
    if {"gradient_norm", "asynchronous_error"} & set(program.diagnostics):
        apply = program.model.bound(dataset.frozen)
        gradient = diagnostics.full_gradient(apply, program.data, dataset.arrays, dataset.counts, *state.model)
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
    failure = _failure(state.failure, number, arrivals, squares, model)
    state = state._replace(model=model, server=update.state, clients=clients, average=average, failure=failure)
    return state, update, record


def evaluate(program: Program, batch_size: int, frozen: Tree, x: Tree, y: Array, model: Version) -> dict[str, Array]:
    """Mean loss and metrics over a test set, in batches of `batch_size`."""
    count = y.shape[0]
    batches = -(-count // batch_size)
    rows = jnp.arange(batches * batch_size, dtype=jnp.int32).reshape(batches, batch_size)
    key = jax_key((jnp.uint32(0), jnp.uint32(0)))
    apply = program.model.bound(frozen)

    def batch(rows: Array) -> dict[str, Array]:
        inside = rows < count
        where = jnp.minimum(rows, count - 1)
        inputs = program.data.preprocess(jax.tree.map(lambda leaf: leaf[where], x))
        outputs, _ = apply(model.params, model.model_state, Batch(inputs, y[where], inside), key, False)
        return {
            name: jnp.sum(jnp.where(inside, values, 0))
            for name, values in ({"loss": outputs.loss} | outputs.metrics).items()
        }

    sums = jax.lax.map(batch, rows)
    return {name: jnp.sum(values) / count for name, values in sums.items()}


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


def _failure(before: Failure, number: Array, arrivals: Arrivals, squares: list[Array], model: Version) -> Failure:
    """Marks the first step whose parameters or model state are not finite, and the client whose update did it."""
    # inf · 0 and NaN · 0 are NaN; a sum of floats takes less than half the time of a conjunction over isfinite on a CPU
    finite = jnp.stack([jnp.isfinite(jnp.sum(leaf * 0)) for leaf in jax.tree.leaves(model)]).all()
    size = jnp.where(arrivals.mask, sum(squares), -1)
    culprit = jnp.argmax(jnp.where(jnp.isfinite(size), size, jnp.inf))  # the first that is not finite, else the largest
    failed = (before.step < 0) & ~finite
    return Failure(jnp.where(failed, number, before.step), jnp.where(failed, arrivals.client[culprit], before.client))
