"""Detection of frozen parameters (with zero updates for all gradients) from the trace of an optimiser."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.client.examples import takes_examples
from jaxafl.client.optimizer import Optimised

_KEEP_ZERO = (
    "broadcast_in_dim",
    "convert_element_type",
    "reshape",
    "neg",
    "copy",
    "transpose",
    "squeeze",
    "div",
    "abs",
    "sign",
    "sqrt",
)


def frozen_by(client: Optimised, params: Any) -> tuple[Any, Any]:
    """Finds the parameters that the client's optimiser does not train.

    Args:
        client: local training.
        params: pytree of arrays, or of their shapes.

    Returns:
        Two trees of bools like `params`. The first marks updates that are zero by construction (`optax.set_to_zero` in
        `partition` or `masked`, `optax.transforms.freeze`). The second marks updates that equal the gradients, as
        `optax.masked` returns for the parameters that it skips.
    """
    leaves, structure = jax.tree.flatten(params)
    shapes = tuple(map(_shape, leaves))
    numbers, parts = jax.tree.flatten(jax.tree.map(_scalar, client))
    try:
        zero, same = _known(parts, tuple(numbers), structure, shapes)
    except TypeError:  # an unhashable option
        zero, same = _known.__wrapped__(parts, tuple(numbers), structure, shapes)
    return jax.tree.unflatten(structure, zero), jax.tree.unflatten(structure, same)


def trained_of(client: Optimised, tree: Any) -> Any:
    """Returns a tree of parameters with `None` for the frozen ones."""
    return jax.tree.map(lambda leaf, still: None if still else leaf, tree, frozen_by(client, tree)[0])


@functools.lru_cache(256)
def _known(parts: Any, numbers: tuple[Any, ...], structure: Any, shapes: tuple[Any, ...]) -> tuple[Any, Any]:
    params = jax.tree.unflatten(structure, shapes)

    def updates(gradient: Any, params: Any, client: Any) -> Any:
        optimizer = client.make_optimizer()
        state = optimizer.init(params)
        if takes_examples(state):
            gradient = jax.tree.map(lambda leaf: leaf[None], gradient)
        return jax.tree.leaves(optimizer.update(gradient, state, params)[0])

    try:
        traced = jax.make_jaxpr(updates)(params, params, jax.tree.unflatten(parts, numbers)).jaxpr
    except Exception:  # the optimiser needs more than the gradient
        return [False] * len(shapes), [False] * len(shapes)
    return zero_outputs(traced), [out is given for out, given in zip(traced.outvars, traced.invars, strict=False)]


def zero_outputs(jaxpr: Any) -> list[bool]:
    """Returns, for every output of a traced program, True if it is zero by construction."""
    return _zeros(jaxpr, [False] * len(jaxpr.invars))


def _scalar(number: Any) -> jax.ShapeDtypeStruct:
    """Returns the shape and type of a number, or of one client's where there is one per client."""
    return jax.ShapeDtypeStruct((), jnp.result_type(number))


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(leaf))


def _zeros(jaxpr: Any, given: list[bool]) -> list[bool]:
    """Marks the outputs of a program that are zero if the marked inputs are zero; `given`: one mark per input."""
    zero = {variable for variable, is_zero in zip(jaxpr.invars, given, strict=True) if is_zero}

    def known(one: Any) -> bool:
        return bool(np.all(one.val == 0)) if hasattr(one, "val") else one in zero

    for equation in jaxpr.eqns:
        name = equation.primitive.name
        inputs = [known(one) for one in equation.invars]
        inner = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
        if hasattr(inner, "jaxpr") and len(inner.jaxpr.invars) == len(inputs):
            found = _zeros(inner.jaxpr, inputs)
        elif name == "cond":
            ways = [_zeros(branch.jaxpr, inputs[1:]) for branch in equation.params["branches"]]
            found = [all(way) for way in zip(*ways, strict=True)]
        elif name in _KEEP_ZERO or (name == "integer_pow" and equation.params["y"] > 0):
            found = inputs[:1]
        elif name == "mul":
            found = [any(inputs)]
        else:
            found = [(name in ("add", "sub", "add_any") and all(inputs)) or (name == "select_n" and all(inputs[1:]))]
            found *= len(equation.outvars)
        if len(found) == len(equation.outvars) and name not in ("while", "scan"):
            zero |= {variable for variable, is_zero in zip(equation.outvars, found, strict=True) if is_zero}
    return [known(one) for one in jaxpr.outvars]
