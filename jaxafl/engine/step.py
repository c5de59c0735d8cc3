"""One server step: read the updates that it consumes, call the server, write the new version into the ring.

Its records include diagnostics on request, which cost memory or a full pass over the training data.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxafl.client import Client, filled, shared_of
from jaxafl.clock import Delivery
from jaxafl.device import buffers
from jaxafl.device.buffers import expand, squares
from jaxafl.device.keys import jax_key, pack, per_step, unpack
from jaxafl.engine.evaluate import gradient_sum, owned_sums, server_gradient
from jaxafl.engine.plan import Steps
from jaxafl.engine.problem import DeviceData, Observe, Program
from jaxafl.engine.recorded import check_names
from jaxafl.engine.state import Failure, Records, State, Stored, Version
from jaxafl.options import UserError, check_choice
from jaxafl.options.user_code import like_given, traced_method
from jaxafl.server.contract import Arrivals, Outcome, Server, Tree, norm

Array = jax.Array

DIAGNOSTICS = ("drift", "gradient_norm", "asynchronous_error", "average", "per_client", "local_accuracy")
"""Names of `Simulation.run(diagnostics=...)`."""


def check_diagnostics(names: Any, server: Any) -> tuple[str, ...]:
    """Returns the requested names as a tuple, in the order of `DIAGNOSTICS`.

    Args:
        names: one name or several.
        server: the server of the run.

    Raises:
        ValueError: a name is unknown, or the diagnostic has no meaning for this server.
    """
    names = (names,) if isinstance(names, str) else tuple(names)
    for name in names:
        check_choice("run", "diagnostics", name, DIAGNOSTICS)
    if "drift" in names and (server.needs.client_models or Delivery.REGIONAL in server.requires):
        raise ValueError(
            f"drift is measured from a global version, but clients or regions of {server.name} have models of their own"
        )
    return tuple(sorted(set(names), key=DIAGNOSTICS.index))


@dataclasses.dataclass(frozen=True, eq=False)
class TracedStep:
    """One server step as a traced function: (row, number, state) -> (state, record).

    Attributes:
        program: static.
        client, server: hyperparameters of the run.
        device: its data.
    """

    program: Program
    client: Client
    server: Server
    device: DeviceData

    def __call__(self, row: Steps, number: Array, state: State) -> tuple[State, Records]:
        arrivals, stored, known = self.arrivals_of(row, number, state)
        squared = squares(stored.delta)
        outcome = self.outcome_of(arrivals, state)
        if row.mask is not None:
            outcome = self.masked(row.mask, outcome, state)
        model = Version(outcome.params, state.model.model_state, state.model.shared)
        if self.client.correction is not None or self.client.personal is not None:
            params, shared = self.corrected(row, arrivals, stored.message, outcome, state.model)
            model = model._replace(params=params, shared=shared)
        if jax.tree.leaves(model.model_state):
            model = model._replace(model_state=_mean_state(arrivals, stored.model_state, outcome, model.model_state))
        version, client_models = model, state.clients
        if outcome.served is not None:
            version = model._replace(params=filled(shared_of(self.client, outcome.served), model.params))
        record = {"delta_norm": jnp.sqrt(squared)} | self.recorded(row, arrivals, outcome, state.model, model, stored)
        if outcome.client_params is not None:  # the server's answers; arrivals are of distinct clients
            client_models = client_models.write_many(arrivals.client, arrivals.mask, outcome.client_params)
        state = state._replace(
            model=model,
            server=outcome.state,
            clients=client_models,
            delivered=known,
            average=None if state.average is None else _average(state.average, number, model.params),
            failure=_failure(state.failure, number, row, squared, model),
            ring=buffers.write(state.ring, row.write_slot, version),
        )
        return state, Records(record, None if outcome.next_steps is None else outcome.next_steps.astype(jnp.int32))

    def arrivals_of(self, row: Steps, number: Array, state: State) -> tuple[Arrivals, Stored, Tree]:
        """Returns the arrivals of a step, their rows of the update store, and the updates that attackers know."""
        stored, known, base, gradient = state.store, state.delivered, None, None
        mask = jnp.ones(row.client.shape, bool) if row.mask is None else row.mask
        if row.update_row is not None:
            stored = buffers.read_many(stored, row.update_row)
        if row.mask is not None:
            stored = jax.tree.map(lambda leaf: jnp.where(expand(mask, leaf), leaf, jnp.zeros_like(leaf)), stored)
        if self.client.attack is not None:
            times = jnp.where(mask, row.multiplicity, 0)
            delta, known = self.client.attack.received(stored.delta, row.client, times, known)
            stored = stored._replace(delta=delta)
        local_steps = stored.local_steps
        if self.server.needs.replies and self.client.epochs is not None:  # K counts epochs
            local_steps = local_steps // self.client.steps_per_epoch(self.device.counts)[row.client]
        if self.server.needs.client_models:
            base = state.clients.read_many(row.client)
        elif row.base_slot is not None:
            base = buffers.read_many(state.ring.params, row.base_slot)
        key = jax_key(per_step(state.batch_key, number))
        if self.server.needs.validation:
            gradient = server_gradient(self.program, self.device, self.client, state.model.model_state, key)
        arrivals = Arrivals(
            mask=mask,
            client=row.client,
            multiplicity=row.multiplicity,
            kind=row.kind,
            delta=stored.delta,
            base=base,
            staleness=jnp.where(mask, row.staleness, 0),
            samples=jnp.where(mask, self.device.counts[row.client], 0).astype(stored.loss.dtype),
            local_steps=local_steps,
            loss=stored.loss,
            step=number,
            time=row.time,
            key=key,
            validation_gradient=gradient,
            columns=row.columns or {},
        )
        return arrivals, stored, known

    def outcome_of(self, arrivals: Arrivals, state: State) -> Outcome:
        """Returns the checked `Outcome` of the server's step; the names of `info` must not be metrics of the model.

        Raises:
            ValueError: the result is no `Outcome`; parameters or state have another structure, shapes or types than
                before; a diagnostic is neither a scalar nor [A], or its name is taken in results; replies or client
                models do not fit `needs`; or `update` needs the value of a traced number.
        """
        server, given = self.server.at_step(arrivals.step), (state.model.params, unpack(state.server))
        owner, about = f"the server {server.name}", f"`update` of the server {server.name}"
        with traced_method(owner, "update", "`Arrivals.key`"):
            outcome = server.update(*given, arrivals)
        if not isinstance(outcome, Outcome):
            raise UserError(
                f"{about} must return jaxafl.server.Outcome(params, state, info), it returned {outcome!r:.200}"
            )
        like_given(owner, "update", (outcome.params, outcome.state), given, types=True)
        if outcome.served is not None:
            like_given(owner, "update", outcome.served, given[0], types=True)
        names = (*outcome.info, *server.meanings, *server.counters)
        recorded = f"{owner} records {{}} in the `info` of its Outcome"
        check_names(recorded, names, allowed=("server_rate",), model=self.program.model)
        size, needs = len(arrivals.mask), server.needs
        for name, value in outcome.info.items():
            if (shape := jax.tree.map(jnp.shape, value)) not in ((), (size,)):
                raise UserError(
                    f"{about} must record numbers, or one per arrival, ({size},); {name!r} has shape {shape}"
                )
        for field, needed in (("next_steps", needs.replies), ("client_params", needs.client_models)):
            if needed != (getattr(outcome, field) is not None):
                raise UserError(f"{about} must return `{field}` if its `needs` ask for it, and only then")
        if needs.replies and not jnp.issubdtype(jnp.result_type(outcome.next_steps), jnp.integer):
            raise UserError(
                f"{about} must return `next_steps` as whole numbers, they are {jnp.result_type(outcome.next_steps)}; "
                "round them, e.g. by jnp.floor(x).astype(jnp.int32)"
            )
        for field, wanted in (("weights", (size,)), ("kept", ()), ("next_steps", (size,))):
            part = getattr(outcome, field)
            if part is not None and jnp.shape(part) != wanted:
                raise UserError(f"{about} must return `{field}` of shape {wanted}, it has shape {jnp.shape(part)}")
        return outcome._replace(state=pack(outcome.state), info=dict(outcome.info))

    def masked(self, mask: Array, outcome: Outcome, state: State) -> Outcome:
        """Returns the outcome without records of padding, and without any change by a step that has no arrivals."""
        acted = jnp.any(mask) | self.server.needs.empty_steps

        def of_arrivals(name: str, value: Array) -> Array:
            if jnp.ndim(value):
                return jnp.where(mask, value, jnp.zeros_like(value))
            counted = name in self.server.counters or not jnp.issubdtype(jnp.result_type(value), jnp.inexact)
            return jnp.where(acted, value, jnp.full_like(value, 0 if counted else jnp.nan))

        outcome = outcome._replace(info={name: of_arrivals(name, value) for name, value in outcome.info.items()})
        if self.server.needs.empty_steps:
            return outcome
        before = state.model.params, state.server, None if outcome.served is None else state.model.params
        after = outcome.params, outcome.state, outcome.served
        params, server_state, served = optax.tree.where(acted, after, before)
        return outcome._replace(params=params, state=server_state, served=served)

    def corrected(
        self, row: Steps, arrivals: Arrivals, messages: Tree, outcome: Outcome, before: Version
    ) -> tuple[Tree, Tree]:
        """Returns the next parameters and the vector that clients download, after `Client(correction=...)`.

        Frozen and personal parameters stay those of x_0.
        """
        params, shared = outcome.params, before.shared
        if self.client.correction is not None:
            seen = arrivals._replace(delta=shared_of(self.client, arrivals.delta))
            of_client = shared_of(self.client, params)
            owner = f"the correction {self.client.correction.name}"
            clients = self.device.counts.shape[0]
            with traced_method(owner, "serve", "`arrivals.key`"):
                after, served = self.client.correction.serve(shared, of_client, messages, seen, clients)
            shared = like_given(owner, "serve", after, shared)
            params = filled(like_given(owner, "serve", served, of_client), params)
            if row.mask is not None:
                old = outcome.params, before.shared
                params, shared = optax.tree.where(jnp.any(row.mask), (params, shared), old)
        return filled(shared_of(self.client, params), before.params), shared

    def recorded(
        self, row: Steps, arrivals: Arrivals, outcome: Outcome, before: Version, after: Version, stored: Stored
    ) -> dict[str, Array]:
        record, asked = {**outcome.info, "local_loss": arrivals.loss}, self.program.recording
        if "drift" in asked.diagnostics:
            record["drift"] = drift(before.params, arrivals.base)
        if "local_accuracy" in asked.diagnostics:
            record["local_accuracy"] = local_accuracy(self.program, self.device, arrivals, stored.model_state)
        if self.client.patience is not None:
            record["executed_local_steps"] = arrivals.local_steps
        if stored.computed is not None:
            record["computed_delta_norm"] = stored.computed
        rate = record.get("server_rate", self.server.at_step(arrivals.step).applied_rate(outcome.state))
        if rate is not None:
            record["server_rate"] = rate = jnp.asarray(rate)
            if not (row.mask is None or self.server.needs.empty_steps or rate.ndim):
                record["server_rate"] = jnp.where(jnp.any(row.mask), rate, 0)
        if {"gradient_norm", "asynchronous_error"} & set(asked.diagnostics):
            gradient = full_gradient(self.program, self.device, *before[:2])
            record |= of_gradient(asked.diagnostics, gradient, before.params, after.params, rate)
        if asked.observe is not None:
            record |= observed(asked.observe, after.params)
        return record


def observed(observe: Observe, params: Tree) -> dict[str, Array]:
    """Returns the results of the user's `observe`."""
    with traced_method("the run", "observe", "a fixed key"):
        found = {f"observe_{name}": jnp.asarray(value) for name, value in observe(params).items()}
    check_names("run: observe gives {}", [name for name in found if "/" in name], allowed=())
    return found


def observe_members(program: Program, params: Tree) -> dict[str, Array]:
    """Returns the results of `observe` for every member's parameters."""
    observe: Any = program.recording.observe
    return jax.lax.map(functools.partial(observed, observe), params)


def _average(average: Tree, number: Array, params: Tree) -> Tree:
    """Returns the mean of x_1 .. x_{t+1}, without x_0."""

    def moved(mean: Array, x: Array) -> Array:
        return jnp.where(number == 0, x, mean + (x - mean) / (number + 1).astype(x.dtype))

    return jax.tree.map(moved, average, params)


def _mean_state(arrivals: Arrivals, states: Tree, outcome: Outcome, current: Tree) -> Tree:
    """Computes the model state (kept · current + Σ_i w_i s_i) / (kept + Σ_i w_i); unchanged if all weights are 0.

    Args:
        arrivals: of the step; w_i are their multiplicities, unless the outcome has weights.
        states: model states of the arrivals, each leaf [A, ...].
        outcome: of the step.
        current: model state of the server.
    """
    weights, kept = arrivals.multiplicity, jnp.asarray(outcome.kept)
    if outcome.weights is not None:
        # equal weights become 1, and are summed as multiplicities are
        weights = jnp.where(arrivals.mask, outcome.weights, 0)
        largest = jnp.max(weights)
        largest = jnp.where(largest > 0, largest, 1)
        weights, kept = weights / largest, kept / largest
    weights = jnp.where(arrivals.mask, weights, 0)
    total = jnp.sum(weights)

    def mean(leaf: Array, old: Array) -> Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return jnp.where(total > 0, jnp.max(leaf, axis=0), old)  # counters: the furthest
        found = jnp.tensordot(weights.astype(leaf.dtype), leaf, axes=1) + kept.astype(leaf.dtype) * old
        return jnp.where(total > 0, found / jnp.maximum(total + kept, 1).astype(leaf.dtype), old)

    return jax.tree.map(mean, states, current)


def _failure(before: Failure, number: Array, row: Steps, squares: Array, model: Version) -> Failure:
    """Marks the first step with non-finite parameters or model state, and the client of its largest update."""
    # inf · 0 and NaN · 0 are NaN; on a CPU a sum is faster than `isfinite` of every entry
    finite = jnp.stack([jnp.isfinite(jnp.sum(leaf * 0)) for leaf in jax.tree.leaves(model)]).all()
    size = squares if row.mask is None else jnp.where(row.mask, squares, -1)
    culprit = jnp.argmax(jnp.where(jnp.isfinite(size), size, jnp.inf))  # the first that is not finite, else the largest
    failed = (before.step < 0) & ~finite
    return Failure(jnp.where(failed, number, before.step), jnp.where(failed, row.client[culprit], before.client))


def drift(params: Tree, start: Tree) -> Array:
    """Computes ‖x_t - x_s‖ of every arrival, [A] (Definition 1 of the AFL paper); `start`: x_s, each leaf [A, ...]."""
    return jax.vmap(lambda x_s: norm(optax.tree.sub(params, x_s)))(start)


def local_accuracy(program: Program, device: DeviceData, arrivals: Arrivals, states: Tree) -> Array:
    """Computes the accuracy of the clients' own models x_i^K = x_s + Δ_i on their held-out samples, [A].

    It is NaN for clients without held-out samples.

    Args:
        program, device: of the run.
        arrivals: of the server step.
        states: non-trainable model state of each arrival.
    """
    ((_, owned),) = device.owned.items()

    def one(arrival: tuple[Array, Tree, Tree]) -> Array:
        total = owned_sums(program, device, lambda outputs: outputs.metrics["accuracy"], *arrival)
        return total / owned.samples[arrival[0]].astype(total.dtype)

    return jax.lax.map(one, (arrivals.client, arrivals.models, states))


def of_gradient(names: tuple[str, ...], gradient: Tree, before: Tree, after: Tree, rate: Any) -> dict[str, Array]:
    """Computes ‖∇F(x_t)‖² and the asynchronous error ‖∇F(x_t) - (x_t - x_{t+1}) / η‖, if requested.

    They are Definitions 1 and 2 of the AUDG/PSURDG paper.

    Args:
        names: requested diagnostics.
        gradient: ∇F(x_t).
        before, after: x_t and x_{t+1}.
        rate: η, the applied learning rate; `None` if unknown.
    """
    record = {}
    if "gradient_norm" in names:
        record["gradient_norm_squared"] = jnp.square(norm(gradient))
    if "asynchronous_error" in names:
        if rate is None or jnp.ndim(rate):
            raise UserError(
                "asynchronous_error needs the gradient that was applied, (x_t - x_(t+1)) / η, and the rate η of this "
                "server's step is not known: it has none, or an optimiser of your own makes it"
            )
        divisor = jnp.where(rate == 0, 1, rate)  # a step of rate 0 leaves x as it is
        applied = jax.tree.map(lambda x, y: (x - y) / divisor, before, after)
        record["asynchronous_error"] = norm(optax.tree.sub(gradient, applied))
    return record


def full_gradient(program: Program, device: DeviceData, params: Tree, model_state: Tree) -> Tree:
    """Computes ∇F(x) = Σ_i n_i ∇f_i(x) / Σ_i n_i over all training samples, without augmentation or dropout.

    Args:
        program, device: of the run.
        params, model_state: x.
    """

    def add(client: Array, total: Tree) -> Tree:
        fetch = functools.partial(program.data.gather, device.arrays, client)
        return gradient_sum(program, device.frozen, (params, model_state), fetch, device.counts[client], total)

    found = jax.lax.fori_loop(0, device.counts.shape[0], add, optax.tree.zeros_like(params))
    return jax.tree.map(lambda leaf: leaf / jnp.sum(device.counts).astype(leaf.dtype), found)
