"""One server step: read the updates that it consumes, call the server, write the new version into the ring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxafl.client import filled, shared_of
from jaxafl.device import buffers
from jaxafl.device.buffers import expand
from jaxafl.device.keys import jax_key, pack, per_step, unpack
from jaxafl.device.rows import squares
from jaxafl.device.user_code import like_given, traced_method
from jaxafl.engine import diagnostics
from jaxafl.engine.evaluate import server_gradient
from jaxafl.engine.plan import Steps
from jaxafl.engine.problem import DeviceData, Hyperparameters, Observe, Program
from jaxafl.engine.recorded import check_recorded
from jaxafl.engine.state import Failure, State, Stored, Version
from jaxafl.models.model import Model
from jaxafl.options import UserError
from jaxafl.server.contract import Arrivals, Outcome, Server, Tree

Array = jax.Array
ServerStepFunction = Callable[[Steps, Array, State], tuple[State, Outcome, dict[str, Array]]]


def build_server_step(program: Program, hyperparameters: Hyperparameters, device: DeviceData) -> ServerStepFunction:
    """Builds server_step(row, number, state) -> (state, outcome, record).

    Args:
        program: static.
        hyperparameters, device: of the run.
    """
    client, server = hyperparameters.client, hyperparameters.server
    asked_diagnostics = program.recording.diagnostics

    def base_of(row: Steps, state: State) -> Tree:
        """Returns x_s of the arrivals, [A, ...], or the clients' own models; `None` if the server reads neither."""
        if server.needs.client_models:
            return state.clients.read_many(row.client)
        return None if row.base_slot is None else buffers.read_many(state.ring.params, row.base_slot)

    def stored_of(row: Steps, state: State) -> tuple[Stored, Array, Tree]:
        """Returns the updates of a step, the squares of their norms, and the updates that attackers know."""
        store, known = state.store, state.delivered
        if row.update_slot is not None:
            store = buffers.read_many(store, row.update_slot)
        if row.mask is not None:
            store = jax.tree.map(lambda leaf: jnp.where(expand(row.mask, leaf), leaf, jnp.zeros_like(leaf)), store)
        if client.attack is not None:
            times = jnp.where(_mask_of(row), row.multiplicity, 0)
            delta, known = client.attack.received(store.delta, row.client, times, known)
            store = store._replace(delta=delta)
        return store, squares(store.delta), known

    def arrivals_of(row: Steps, number: Array, state: State) -> tuple[Arrivals, Stored, Array, Tree]:
        """Returns the arrivals, their updates, the squares of their norms, and the updates that attackers know."""
        stored, lengths, known = stored_of(row, state)
        if server.needs.replies and client.epochs is not None:  # K counts epochs
            per_epoch = client.steps_per_epoch(device.counts)[row.client]
            stored = stored._replace(local_steps=stored.local_steps // per_epoch)
        mask, key = _mask_of(row), jax_key(per_step(state.batch_key, number))
        gradient = None
        if server.needs.validation:
            gradient = server_gradient(program, device, client, state.model.model_state, key)
        arrivals = Arrivals(
            mask=mask,
            client=row.client,
            multiplicity=row.multiplicity,
            kind=row.kind,
            delta=stored.delta,
            base=base_of(row, state),
            staleness=jnp.where(mask, row.staleness, 0),
            samples=jnp.where(mask, device.counts[row.client], 0).astype(stored.loss.dtype),
            local_steps=stored.local_steps,
            loss=stored.loss,
            step=number,
            time=row.time,
            key=key,
            validation_gradient=gradient,
        )
        return arrivals, stored, lengths, known

    def act(row: Steps, arrivals: Arrivals, state: State) -> Outcome:
        now = server.at_step(arrivals.step)
        outcome = outcome_of(now, state.model.params, unpack(state.server), arrivals, program.model)
        outcome = outcome._replace(state=pack(outcome.state))
        if row.mask is None:
            return outcome
        acted = jnp.any(row.mask) | server.needs.empty_steps

        def of_arrivals(name: str, value: Array) -> Array:
            if jnp.ndim(value):
                return jnp.where(row.mask, value, jnp.zeros_like(value))
            counted = name in server.counters or not jnp.issubdtype(jnp.result_type(value), jnp.inexact)
            return jnp.where(acted, value, jnp.full_like(value, 0 if counted else jnp.nan))

        outcome = outcome._replace(info={name: of_arrivals(name, value) for name, value in outcome.info.items()})
        if server.needs.empty_steps:
            return outcome
        before = state.model.params, state.server
        params, server_state = optax.tree.where(acted, (outcome.params, outcome.state), before)
        return outcome._replace(params=params, state=server_state)

    def corrected(
        row: Steps, arrivals: Arrivals, messages: Tree, outcome: Outcome, before: Version
    ) -> tuple[Tree, Tree]:
        """Returns the next parameters and the vector that clients download, after `Client(correction=...)`.

        Frozen and personal parameters stay those of x_0.
        """
        params, shared = outcome.params, before.shared
        if client.correction is not None:
            seen = arrivals._replace(delta=shared_of(client, arrivals.delta))
            of_client = shared_of(client, params)
            owner = f"the correction {client.correction.name}"
            after, served = client.correction.serve(shared, of_client, messages, seen, device.counts.shape[0])
            shared = like_given(owner, "serve", after, shared)
            params = filled(like_given(owner, "serve", served, of_client), params)
            if row.mask is not None:
                old = outcome.params, before.shared
                params, shared = optax.tree.where(jnp.any(row.mask), (params, shared), old)
        return filled(shared_of(client, params), before.params), shared

    def recorded(
        row: Steps, arrivals: Arrivals, outcome: Outcome, norms: Array, before: Version, after: Version, stored: Stored
    ) -> dict[str, Array]:
        record = {"delta_norm": norms, **outcome.info}
        if "drift" in asked_diagnostics:
            record["drift"] = diagnostics.drift(before.params, arrivals.base)
        if "local_accuracy" in asked_diagnostics:
            record["local_accuracy"] = diagnostics.local_accuracy(program, device, arrivals, stored.model_state)
        if client.patience is not None:
            record["executed_local_steps"] = arrivals.local_steps
        if stored.computed is not None:
            record["computed_delta_norm"] = stored.computed
        record["local_loss"] = arrivals.loss
        rate = record.get("server_rate", server.at_step(arrivals.step).applied_rate(outcome.state))
        if rate is not None:
            record["server_rate"] = rate = jnp.asarray(rate)
            if not (row.mask is None or server.needs.empty_steps or rate.ndim):
                record["server_rate"] = jnp.where(jnp.any(row.mask), rate, 0)
        if {"gradient_norm", "asynchronous_error"} & set(asked_diagnostics):
            found = diagnostics.full_gradient(program, device, *before[:2])
            gradient = jax.tree.map(lambda leaf: leaf / jnp.sum(device.counts).astype(leaf.dtype), found)
            record |= diagnostics.of_gradient(asked_diagnostics, gradient, before.params, after.params, rate)
        return record | observed(program.recording.observe, after.params)

    def server_step(row: Steps, number: Array, state: State) -> tuple[State, Outcome, dict[str, Array]]:
        arrivals, stored, lengths, known = arrivals_of(row, number, state)
        outcome = act(row, arrivals, state)
        params, shared = corrected(row, arrivals, stored.message, outcome, state.model)
        model_states, mean_state = stored.model_state, state.model.model_state
        if jax.tree.leaves(mean_state):
            weights = arrivals.multiplicity if outcome.weights is None else outcome.weights
            weights = jnp.where(arrivals.mask, weights, 0)
            kept = None
            if outcome.weights is not None:
                # equal weights become 1, and are summed as multiplicities are
                largest = jnp.max(weights)
                weights, kept = (one / jnp.where(largest > 0, largest, 1) for one in (weights, outcome.kept))
            mean_state = _mean_state(weights, model_states, mean_state, None if kept is None else jnp.asarray(kept))
        model = Version(params, mean_state, shared)
        record = recorded(row, arrivals, outcome, jnp.sqrt(lengths), state.model, model, stored)
        client_models = state.clients
        if outcome.client_params is not None:  # the server's answers; arrivals are of distinct clients
            client_models = client_models.write_many(arrivals.client, arrivals.mask, outcome.client_params)
        state = state._replace(
            model=model,
            server=outcome.state,
            clients=client_models,
            delivered=known,
            average=_average(state.average, number, model.params),
            failure=_failure(state.failure, number, row, lengths, all_finite(model)),
            ring=buffers.write(state.ring, row.write_slot, model),
        )
        return state, outcome, record

    return server_step


def outcome_of(server: Server, params: Tree, state: Any, arrivals: Arrivals, model: Model | None = None) -> Outcome:
    """Returns the checked `Outcome` of a server's step; the names of `info` must not be metrics of `model`.

    Raises:
        ValueError: the result is no `Outcome`; parameters or state have another structure, shapes or types than before;
            a diagnostic is neither a scalar nor [A], or its name is taken in results; replies or client models do not
            fit `needs`; or `update` needs the value of a traced number.
    """
    with traced_method(f"the server {server.name}", "update", "`Arrivals.key`"):
        outcome = server.update(params, state, arrivals)
    about = f"`update` of the server {server.name}"
    if not isinstance(outcome, Outcome):
        raise UserError(f"{about} must return jaxafl.server.Outcome(params, state, info), it returned {outcome!r:.200}")
    like_given(f"the server {server.name}", "update", (outcome.params, outcome.state), (params, state), types=True)
    check_recorded(server.name, {**outcome.info, **dict.fromkeys([*server.meanings, *server.counters])}, model)
    size = len(arrivals.mask)
    for name, value in outcome.info.items():
        if (shape := jax.tree.map(jnp.shape, value)) not in ((), (size,)):
            raise UserError(f"{about} must record numbers, or one per arrival, ({size},); {name!r} has shape {shape}")
    needs = server.needs
    if needs.replies != (outcome.next_steps is not None):
        raise UserError(f"{about} must return `next_steps` if its `needs` say that it replies, and only then")
    if needs.replies and not jnp.issubdtype(jnp.result_type(outcome.next_steps), jnp.integer):
        raise UserError(
            f"{about} must return `next_steps` as whole numbers, they are {jnp.result_type(outcome.next_steps)}; round "
            "them, e.g. by jnp.floor(x).astype(jnp.int32)"
        )
    checked = (("weights", outcome.weights, (size,)), ("kept", outcome.kept, ()))
    for field, part, wanted in (*checked, ("next_steps", outcome.next_steps, (size,))):
        if part is not None and jnp.shape(part) != wanted:
            raise UserError(f"{about} must return `{field}` of shape {wanted}, it has shape {jnp.shape(part)}")
    if needs.client_models != (outcome.client_params is not None):
        raise UserError(f"{about} must return `client_params` where its `needs` have `client_models`, and only there")
    return outcome._replace(info=dict(outcome.info))


def _mask_of(row: Steps) -> Array:
    """Returns bool [A], True for arrivals and False for padding."""
    return jnp.ones(row.client.shape, bool) if row.mask is None else row.mask


def observed(observe: Observe | None, params: Tree) -> dict[str, Array]:
    """Returns the results of the user's `observe`."""
    if observe is None:
        return {}
    with traced_method("the run", "observe", "a fixed key"):
        return {f"observe_{name}": jnp.asarray(value) for name, value in observe(params).items()}


def _average(average: Tree, number: Array, params: Tree) -> Tree:
    """Returns the mean of x_1 .. x_{t+1}, without x_0."""
    if average is None:
        return None

    def moved(mean: Array, x: Array) -> Array:
        return jnp.where(number == 0, x, mean + (x - mean) / (number + 1).astype(x.dtype))

    return jax.tree.map(moved, average, params)


def _mean_state(weights: Array, states: Tree, current: Tree, kept: Array | None = None) -> Tree:
    """Computes the model state (kept · current + Σ_i w_i s_i) / (kept + Σ_i w_i); unchanged if all weights are 0.

    Args:
        weights: [A], counts, or weights of which the largest is 1.
        states: model states of the arrivals, each leaf [A, ...].
        current: model state of the server.
        kept: weight of `current`; `None` for 0.
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
    """Marks the first step with non-finite parameters or model state, and the client of its largest update."""
    size = squares if row.mask is None else jnp.where(row.mask, squares, -1)
    culprit = jnp.argmax(jnp.where(jnp.isfinite(size), size, jnp.inf))  # the first that is not finite, else the largest
    failed = (before.step < 0) & ~finite
    return Failure(jnp.where(failed, number, before.step), jnp.where(failed, row.client[culprit], before.client))


def all_finite(tree: Tree) -> Array:
    """Returns True if a tree has neither infinities nor NaNs."""
    # inf · 0 and NaN · 0 are NaN; on a CPU a sum is faster than `isfinite` of every entry
    return jnp.stack([jnp.isfinite(jnp.sum(leaf * 0)) for leaf in jax.tree.leaves(tree)]).all()
