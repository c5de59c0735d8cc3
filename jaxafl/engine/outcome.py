"""Checks of the result of a server's `update`, made while it is traced."""

from __future__ import annotations

import traceback
from typing import Any

import jax
import jax.numpy as jnp

from jaxafl.device.host_draws import refuse_host_draws
from jaxafl.device.rows import ShardedUpdates
from jaxafl.engine.recorded import check_recorded
from jaxafl.models.model import Model
from jaxafl.options import UserError
from jaxafl.server.contract import Arrivals, Outcome, Server, Tree

_VALUES = (
    *(jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError),
    jax.errors.TracerIntegerConversionError,
)


def outcome_of(server: Server, params: Tree, state: Any, arrivals: Arrivals, model: Model | None = None) -> Outcome:
    """Returns the checked `Outcome` of a server's step; `model`: its metrics share the results with the `info`.

    Raises:
        ValueError: it is no `Outcome`; its parameters or its state are not like those before, leaf by leaf; what it
            records is neither one number nor one per arrival, or has the name of something else in results; it does not
            answer as its `needs` say; or `update` needs the value of a traced number.
    """
    try:
        with refuse_host_draws(f"the server {server.name}", "`Arrivals.key`"):
            outcome = server.update(params, state, arrivals)
    except _VALUES as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.name == "update"]
        line = f", line {frames[-1].lineno}: `{frames[-1].line}`" if frames else ""
        raise UserError(
            f"`update` of the server {server.name} needs a number that is known only when the compiled program runs"
            f"{line}. Write jnp.where(condition, a, b) for `if`, jax.lax.fori_loop for a loop, and functions of jnp "
            "for float(), int() and NumPy's"
        ) from error
    except Exception as error:
        error.add_note(f"raised in `update` of the server {server.name}, which is traced by JAX")
        if isinstance(arrivals.delta, ShardedUpdates):
            error.add_note(
                "its `needs` are `linear`, and its updates are on several devices: it can take nothing of them but "
                "`weighted_sum(weights, arrivals.delta)` and `mean_delta(arrivals)`"
            )
        raise
    about = f"`update` of the server {server.name}"
    if not isinstance(outcome, Outcome):
        raise UserError(f"{about} must return jaxafl.server.Outcome(params, state, info), it returned {outcome!r:.200}")
    _check_alike(f"{about} must return parameters like those that it was given", params, outcome.params)
    _check_alike(f"{about} must return a state like the one that `init` gave", state, outcome.state)
    check_recorded(server.name, {**outcome.info, **dict.fromkeys([*server.meanings, *server.counters])}, model)
    size = len(arrivals.mask)
    for name, value in outcome.info.items():
        shape = jax.tree.map(jnp.shape, value)
        if shape not in ((), (size,)):
            raise UserError(f"{about} must record numbers, or one per arrival, ({size},); {name!r} has shape {shape}")
    needs = server.needs
    if needs.replies and outcome.next_steps is None:  # an answer that nobody waits for is none
        raise UserError(f"{about} must return `next_steps`: its `needs` say that it replies")
    for field, part, wanted in (("weights", outcome.weights, (size,)), ("kept", outcome.kept, ())):
        if part is not None and jnp.shape(part) != wanted:
            raise UserError(f"{about} must return `{field}` of shape {wanted}, it has shape {jnp.shape(part)}")
    if needs.client_models != (outcome.client_params is not None):
        raise UserError(f"{about} must return `client_params` where its `needs` have `client_models`, and only there")
    return outcome._replace(info=dict(outcome.info))


def _check_alike(rule: str, before: Any, after: Any) -> None:
    """Raises `ValueError` unless both trees have the same structure, shapes and types."""
    was, now = (str(jax.tree.structure(tree)) for tree in (before, after))
    if was != now:
        raise UserError(f"{rule}: {was} became {now}")
    for (path, old), new in zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True):
        was, now = (f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}" for leaf in (old, new))
        if was != now:
            raise UserError(f"{rule}: {jax.tree_util.keystr(path) or 'it'} was {was} and became {now}")
