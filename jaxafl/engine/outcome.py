"""Checks of the result of a server's `update`, while it is traced."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxafl.device.user_code import like_given, traced_method
from jaxafl.engine.recorded import check_recorded
from jaxafl.models.model import Model
from jaxafl.options import UserError
from jaxafl.server.contract import Arrivals, Outcome, Server, Tree


def outcome_of(server: Server, params: Tree, state: Any, arrivals: Arrivals, model: Model | None = None) -> Outcome:
    """Returns the checked `Outcome` of a server's step; the names of `info` must not be metrics of `model`.

    Raises:
        ValueError: the result is no `Outcome`; parameters or state have another structure, shapes or types than before;
            a diagnostic is neither a scalar nor [A], or its name is taken in results; replies or client models do not
            fit `needs`; or `update` needs the value of a traced number.
    """
    try:
        with traced_method(f"the server {server.name}", "update", "`Arrivals.key`"):
            outcome = server.update(params, state, arrivals)
    except Exception as error:
        read = getattr(getattr(server.update, "__code__", None), "co_names", ())
        for field, need in (("base", "base"), ("validation_gradient", "validation")):
            if getattr(arrivals, field) is None and field in read:
                error.add_note(f"`Arrivals.{field}` is None; write needs = Needs({need}=True) in the class to get it")
        raise
    about = f"`update` of the server {server.name}"
    if not isinstance(outcome, Outcome):
        raise UserError(f"{about} must return jaxafl.server.Outcome(params, state, info), it returned {outcome!r:.200}")
    like_given(f"the server {server.name}", "update", (outcome.params, outcome.state), (params, state), types=True)
    check_recorded(server.name, {**outcome.info, **dict.fromkeys([*server.meanings, *server.counters])}, model)
    size = len(arrivals.mask)
    for name, value in outcome.info.items():
        shape = jax.tree.map(jnp.shape, value)
        if shape not in ((), (size,)) or isinstance(value, str):
            given = f"is {value!r}" if isinstance(value, str) else f"has shape {shape}"
            raise UserError(f"{about} must record numbers, or one per arrival, ({size},); {name!r} {given}")
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


def applied_rate(server: Server, state: Any) -> Any:
    """Returns `Server.applied_rate`; raises `UserError` unless it is a number or `None`."""
    rate: Any = server.applied_rate(state)
    if rate is not None and (isinstance(rate, str) or jax.tree.map(jnp.shape, rate) != ()):
        raise UserError(
            f"`applied_rate` of the server {server.name} must return a number or None, it returned {rate!r:.200}"
        )
    return rate
