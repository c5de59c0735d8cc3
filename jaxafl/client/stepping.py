"""Optax optimiser steps for clients and servers, with the extra arguments that some optimisers need."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxafl.client.examples import takes_examples
from jaxafl.options import UserError

Array = jax.Array
Tree = Any
_EXTRA_SETS = (("value",), ("value", "grad", "value_fn"), ("grad_fn",), ("obj_fn",), ("value", "obj_fn"))
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
    examples: bool = False,
) -> tuple[Tree, Tree]:
    """Computes (updates, state) by `optimizer.update(gradient, state, params)`, with extra arguments if it needs them.

    Args:
        name: name of the optimiser, for messages.
        optimizer: Optax transformation.
        gradient, state, params: arguments of its `update`.
        extra: returns named arguments that some optimisers need (`value`, `value_fn` ...).
        examples: True if `gradient` has those of single samples, [B, ...].

    Raises:
        UserError: the optimiser needs arguments that are not available.
    """
    if not examples and takes_examples(state):
        raise UserError(
            f"{name}: differentially_private_aggregate (dpsgd) clips the gradients of single samples, and is given "
            "one gradient. It works in Client; for noise at the server use aggregate=afl.aggregate.private_mean(C, z)"
        )
    try:
        return optimizer.update(gradient, state, params)
    except UserError:
        raise
    except Exception as error:
        bare = first = error
    given = extra()
    update = optax.with_extra_args_support(optimizer).update
    for names in _EXTRA_SETS:  # one set after another: some optimisers refuse arguments that they do not use
        if not set(names) <= set(given):
            continue
        try:
            return update(gradient, state, params, **{name: given[name] for name in names})
        except Exception as error:
            if names == _EXTRA_SETS[0]:
                first = error
    if not _NEEDS.search(f"{bare} {first}"):
        raise bare
    raise UserError(
        f"{name}: the optimiser cannot take its step with gradient, state and parameters, nor with "
        f"{', '.join(given)} besides: {first}" + (_LOOKAHEAD if "'fast'" in str(first) else "")
    ) from first


def objective_arguments(total: Callable[[Tree], tuple[Array, Tree]], value: Array, gradient: Tree) -> dict[str, Any]:
    """Returns the arguments of optimisers that evaluate the objective: Polyak's step, L-BFGS, SAM, Sophia.

    Args:
        total: function from parameters to the objective of the mini-batch and its gradient.
        value, gradient: objective and gradient at the current parameters.
    """

    @jax.custom_vjp  # JAX cannot differentiate the loop over micro-batches in reverse mode
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
