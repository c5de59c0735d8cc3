"""One server step: gather the updates that it takes, let the server act, write the new version into the ring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxafl.device import buffers
from jaxafl.device.buffers import expand
from jaxafl.device.key_leaves import pack, unpack
from jaxafl.device.keys import jax_key, per_step
from jaxafl.device.rows import AXIS, Apart, own_share, squares
from jaxafl.engine import diagnostics
from jaxafl.engine.outcome import outcome_of
from jaxafl.engine.plan import Steps
from jaxafl.engine.problem import DeviceData, Numbers, Observe, Program
from jaxafl.engine.state import Failure, Records, State, Stored, Version
from jaxafl.engine.train import own_clients
from jaxafl.server.contract import Arrivals, Outcome, Tree
from jaxafl.server.fitting import shows_own_arrivals

Array = jax.Array
OneStep = Callable[[Array, State], tuple[State, Records]]
ServerStepFunction = Callable[[Steps, Array, State], tuple[State, Outcome, dict[str, Array]]]


def build_server_step(program: Program, numbers: Numbers, device: DeviceData) -> ServerStepFunction:
    """server_step(row, number, state) -> (state, outcome, record): the server step `number` of a row of the plan."""
    client, server = numbers.client, numbers.server
    asked = program.recording.diagnostics
    here = program.shares > 1 and shows_own_arrivals(server)

    def of_all(tree: Any) -> Any:
        """What every device knows of the arrivals it looks after, of all arrivals."""
        if not here:
            return tree
        found = jax.lax.all_gather(tree, AXIS, tiled=True)
        return jax.tree.map(lambda leaf: leaf[: program.capacity], found)

    def base_of(row: Steps, state: State) -> Tree:
        """x_s of the arrivals, [A, ...], or the clients' own models; `None` where nobody reads them."""
        if server.needs.client_models:
            return state.clients.read_many(row.client, program.sliced)
        if server.needs.base or "drift" in asked:
            return buffers.read_many(state.ring.params, row.base_slot, program.sliced)
        return None

    def stored_of(row: Steps, store: Stored) -> tuple[Stored, Array]:
        """The updates that a step takes, and the squares of their norms."""
        if program.apart:
            delta, held = _apart(program, row, store.delta)
            loss, local_steps = (jnp.where(held, column[row.row], 0) for column in (store.loss, store.local_steps))
            flat, restored = ravel_pytree((delta.squares(), loss))
            (found, loss), local_steps = restored(jax.lax.psum(flat, AXIS)), jax.lax.psum(local_steps, AXIS)
            return Stored(delta, store.model_state, loss, local_steps), found
        if here or not program.in_order:
            store = buffers.read_many(store, row.row, program.sliced)
        if here or not program.full:  # of a device's share, the last may be padding
            store = jax.tree.map(lambda leaf: jnp.where(expand(row.mask, leaf), leaf, jnp.zeros_like(leaf)), store)
        return store, of_all(squares(store.delta))

    def arrivals_of(row: Steps, number: Array, state: State) -> tuple[Arrivals, Tree, Array]:
        """The arrivals that this device looks after, their non-trainable model state, and the squares of all norms."""
        if here:
            own = {name: own_share(leaf, program.shares) for name, leaf in row._asdict().items() if jnp.ndim(leaf)}
            row = row._replace(**own)
        stored, lengths = stored_of(row, state.store)
        if server.needs.replies and client.epochs is not None:  # K counts epochs
            per_epoch = client.steps_per_epoch(device.counts)[row.client]
            stored = stored._replace(local_steps=stored.local_steps // per_epoch)
        base = base_of(row, state)
        arrivals = Arrivals(
            mask=row.mask,
            client=row.client,
            multiplicity=row.multiplicity,
            kind=row.kind,
            delta=stored.delta,
            base=base,
            staleness=jnp.where(row.mask, row.staleness, 0),
            samples=jnp.where(row.mask, device.counts[row.client], 0).astype(stored.loss.dtype),
            local_steps=stored.local_steps,
            loss=stored.loss,
            step=number,
            time=row.time,
            key=jax_key(per_step(state.batch_key, number)),
        )
        return arrivals, stored.model_state, lengths

    def act(arrivals: Arrivals, state: State) -> Outcome:
        outcome = outcome_of(server, state.model.params, unpack(state.server), arrivals, program.model)
        outcome = outcome._replace(state=pack(outcome.state))
        if program.full or server.needs.empty_steps:
            return outcome
        acted = jnp.any(of_all(arrivals.mask))
        params, server_state = jax.tree.map(
            lambda new, old: jnp.where(acted, new, old),
            (outcome.params, outcome.state),
            (state.model.params, state.server),
        )
        return outcome._replace(params=params, state=server_state)

    def recorded(
        arrivals: Arrivals, outcome: Outcome, norms: Array, before: Version, after: Version
    ) -> dict[str, Array]:
        each = {name: value for name, value in outcome.info.items() if jnp.ndim(value)}
        if "drift" in asked:
            each["drift"] = diagnostics.drift(before.params, arrivals.base)
        if client.patience is not None:
            each["executed_local_steps"] = arrivals.local_steps
        record = {"delta_norm": norms, **outcome.info, **of_all(each | {"local_loss": arrivals.loss})}
        rate = record.get("server_rate", server.applied_rate(outcome.state))
        if rate is not None:
            record["server_rate"] = rate = jnp.asarray(rate)
            if not (program.full or server.needs.empty_steps or rate.ndim):
                record["server_rate"] = jnp.where(jnp.any(of_all(arrivals.mask)), rate, 0)
        if {"gradient_norm", "asynchronous_error"} & set(asked):
            apply = program.model.bound(device.frozen)
            counts, begins = own_clients(program, device)
            found = diagnostics.full_gradient(apply, program.data, device.arrays, counts, begins, *before)
            if program.shares > 1:
                found = jax.lax.psum(found, AXIS)
            gradient = jax.tree.map(lambda leaf: leaf / jnp.sum(device.counts).astype(leaf.dtype), found)
            record |= diagnostics.of_gradient(asked, gradient, before.params, after.params, rate)
        return record | observed(program.recording.observe, after.params)

    quickly = program.members == 1 and program.sliced  # where nothing batches a branch, and taking one is cheap

    def server_step(row: Steps, number: Array, state: State) -> tuple[State, Outcome, dict[str, Array]]:
        arrivals, model_states, lengths = arrivals_of(row, number, state)
        outcome = act(arrivals, state)
        mean_state = state.model.model_state
        if jax.tree.leaves(mean_state):
            shares = arrivals.multiplicity if outcome.weights is None else outcome.weights
            weights, states = of_all((jnp.where(arrivals.mask, shares, 0), model_states))
            if outcome.weights is not None:
                # equal weights become 1, and are summed as multiplicities are
                largest = jnp.max(weights)
                weights, kept = (one / jnp.where(largest > 0, largest, 1) for one in (weights, outcome.kept))
                mean_state = _mean_state(weights, states, mean_state, jnp.asarray(kept))
            else:
                mean_state = _mean_state(weights, states, mean_state)
        model = Version(outcome.params, mean_state)
        record = recorded(arrivals, outcome, jnp.sqrt(lengths), state.model, model)
        own_models = state.clients
        if outcome.client_params is not None:  # what the server answered; arrivals are of distinct clients
            own_models = own_models.write_many(arrivals.client, arrivals.mask, outcome.client_params, program.sliced)
        state = state._replace(
            model=model,
            server=outcome.state,
            clients=own_models,
            average=_average(state.average, number, model.params),
            failure=_failure(state.failure, number, row, lengths, all_finite(model, quickly)),
            ring=buffers.write(state.ring, row.write_slot, model),
        )
        return state, outcome, record

    return server_step


def _apart(program: Program, row: Steps, kept: Tree) -> tuple[Apart, Array]:
    """The updates of a step of which each device has kept some, and bool [A], which this one has."""
    held = row.mask & (row.lane % program.shares == jax.lax.axis_index(AXIS))
    entries = jnp.argsort(~held, stable=True)[: program.apart]
    places = jnp.arange(program.apart, dtype=jnp.int32) if program.in_order else row.row[entries]
    return Apart(kept, places, entries, jnp.sum(held, dtype=jnp.int32), program.capacity, program.sliced), held


def over_steps(program: Program, one_step: OneStep, start: Array, stop: Array, state: State) -> tuple[State, Records]:
    """Takes the server steps start .. stop - 1, each `one_step(number, state) -> (state, record)`, up to the end of the
    block of steps in which the run fails.

    Args:
        program: what is run.
        one_step: takes one server step.
        start, stop: int32.
        state: where the runs are.

    Returns:
        The state, and the records, row 0 that of `start`.
    """
    one_step = jax.jit(one_step, inline=True)  # traced once, for the shapes of its records and for the loop
    records = buffers.allocate(jax.eval_shape(one_step, start, state)[1], program.length)

    def one(carry: tuple[Array, State, Records]) -> tuple[Array, State, Records]:
        number, state, records = carry
        state, record = one_step(number, state)
        return number + 1, state, buffers.write(records, number - start, record)

    def proceed(carry: tuple[Array, State, Records]) -> Array:
        number, state, _ = carry
        # of several members, which would batch the predicate, those that have failed go on
        return (number < stop) & (state.failure.step < 0) if program.members == 1 else number < stop

    return jax.lax.while_loop(proceed, in_blocks(program, one), (start, state, records))[1:]


def in_blocks(program: Program, one: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What is done as often as a block is long, by a loop whose length is known."""
    if program.block == 1:
        return one
    return lambda carry: jax.lax.fori_loop(0, program.block, lambda _, carry: one(carry), carry)


def observed(observe: Observe | None, params: Tree) -> dict[str, Array]:
    """What the user's `observe` says of the parameters."""
    if observe is None:
        return {}
    return {f"observe_{name}": jnp.asarray(value) for name, value in observe(params).items()}


def _average(average: Tree, number: Array, params: Tree) -> Tree:
    """The mean of x_1 .. x_{t+1}; x_0 does not count."""
    if average is None:
        return None

    def moved(mean: Array, x: Array) -> Array:
        return jnp.where(number == 0, x, mean + (x - mean) / (number + 1).astype(x.dtype))

    return jax.tree.map(moved, average, params)


def _mean_state(weights: Array, states: Tree, current: Tree, kept: Array | None = None) -> Tree:
    """Non-trainable model state: (kept · current + Σ_i w_i s_i) / (kept + Σ_i w_i); it stays where all weights are 0.

    Args:
        weights: [A], the largest 1 where they are no counts.
        states: of the arrivals.
        current: the server's.
        kept: its weight; `None` for 0.
    """
    total = jnp.sum(weights)

    def mean(leaf: Array, old: Array) -> Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return jnp.where(total > 0, jnp.max(leaf, axis=0), old)  # counters: the furthest
        found = jnp.tensordot(weights.astype(leaf.dtype), leaf, axes=1)
        if kept is None:
            average = found / jnp.maximum(total, 1).astype(leaf.dtype)
        else:
            average = (found + kept.astype(leaf.dtype) * old) / jnp.maximum(total + kept, 1).astype(leaf.dtype)
        return jnp.where(total > 0, average, old)

    return jax.tree.map(mean, states, current)


def _failure(before: Failure, number: Array, row: Steps, squares: Array, finite: Array) -> Failure:
    """Marks the first step whose parameters or model state are not finite, and the client whose update did it."""
    size = jnp.where(row.mask, squares, -1)
    culprit = jnp.argmax(jnp.where(jnp.isfinite(size), size, jnp.inf))  # the first that is not finite, else the largest
    failed = (before.step < 0) & ~finite
    return Failure(jnp.where(failed, number, before.step), jnp.where(failed, row.client[culprit], before.client))


def all_finite(tree: Tree, quickly: bool = False) -> Array:
    """Whether a tree has neither infinities nor NaNs.

    Args:
        tree: of arrays.
        quickly: by their sums, in a third of the time on a CPU, with a branch for finite numbers whose sum is not.
    """

    def sums(change: Callable[[Array], Array]) -> Array:
        return jnp.stack([jnp.isfinite(jnp.sum(change(leaf))) for leaf in jax.tree.leaves(tree)]).all()

    def exactly() -> Array:
        # inf · 0 and NaN · 0 are NaN; a sum of floats takes half the time of a conjunction over isfinite on a CPU
        return sums(lambda leaf: leaf * 0)

    return jax.lax.cond(sums(lambda leaf: leaf), lambda: jnp.bool_(True), exactly) if quickly else exactly()
