"""A step of an Optax optimiser, of a client or of a server: with keys of the run, and with all that it asks for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxafl.options import UserError

Array = jax.Array
Tree = Any
_ASKED = (("value",), ("value", "grad", "value_fn"), ("grad_fn",), ("obj_fn",), ("value", "obj_fn"))
_NEEDS = re.compile(r"missing \d+ required|must be provided|'fast'")
_LOOKAHEAD = (
    ". It needs parameters in two parts (optax.LookaheadParams, fast and slow), and those of a model are one: wrap an "
    "optimiser that keeps its slow parameters in its own state"
)


def optimizer_step(
    name: str,
    optimizer: optax.GradientTransformation,
    gradient: Tree,
    state: Tree,
    params: Tree,
    extra: Callable[[], Mapping[str, Any]],
) -> tuple[Tree, Tree]:
    """(updates, state) of `optimizer.update(gradient, state, params)`, with more arguments where it asks for some.

    Args:
        name: of the optimiser, for messages.
        optimizer: whose step.
        gradient, state, params: as Optax takes them.
        extra: gives arguments by name that some optimisers need (`value`, `value_fn` ...).

    Raises:
        UserError: it needs something else.
    """
    private = optax.contrib.DifferentiallyPrivateAggregateState
    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, private))
    if any(isinstance(node, private) for node in nodes):
        raise UserError(
            f"{name}: differentially_private_aggregate (dpsgd) clips the gradients of single examples, and is given "
            "one gradient, their mean. optax.chain(optax.clip_by_global_norm(c), optax.add_noise(eta, 0.0, key=0), "
            "optax.sgd(rate)) clips that mean and adds noise to it"
        )
    try:
        return optimizer.update(gradient, state, params)
    except UserError:
        raise
    except Exception as error:
        bare = first = error
    given, update = extra(), optax.with_extra_args_support(optimizer).update
    for names in _ASKED:  # some refuse what they do not use
        if not set(names) <= set(given):
            continue
        try:
            return update(gradient, state, params, **{name: given[name] for name in names})
        except Exception as error:
            if names == _ASKED[0]:
                first = error
    if not _NEEDS.search(f"{bare} {first}"):
        raise bare
    raise UserError(
        f"{name}: the optimiser cannot take its step with gradient, state and parameters, nor with "
        f"{', '.join(given)} besides: {first}" + (_LOOKAHEAD if "'fast'" in str(first) else "")
    ) from first


def of_objective(total: Callable[[Tree], tuple[Array, Tree]], value: Array, gradient: Tree) -> dict[str, Any]:
    """Arguments of optimisers that look at the objective: Polyak's step, line searches (L-BFGS), SAM, Sophia.

    Args:
        total: parameters -> the objective of the mini-batch, and its gradient.
        value, gradient: of these at the current parameters.
    """

    @jax.custom_vjp  # the objective adds up micro-batches in a loop, which JAX cannot differentiate backwards
    def value_fn(params: Tree) -> Array:
        return total(params)[0]

    value_fn.defvjp(total, lambda found, change: (jax.tree.map(lambda g: jnp.asarray(change, g.dtype) * g, found),))
    return {
        "value": value,
        "grad": gradient,
        "value_fn": value_fn,
        "grad_fn": lambda params, *_: total(params)[1],
        "obj_fn": value_fn,
    }
