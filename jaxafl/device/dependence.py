"""Dependence of a traced function's outputs on its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend.core import Var, jaxprs_in_params

_CALLS = ("pjit", "jit", "closed_call", "core_call", "remat", "checkpoint", "custom_jvp_call", "custom_vjp_call")


def inputs_read(jaxpr: Any, wanted: Sequence[bool]) -> list[bool]:
    """Returns, for every input of a jaxpr, True if one of the wanted outputs may depend on it.

    Function calls are inspected. Loops and branches count as reading all their inputs.

    Args:
        jaxpr: a traced function.
        wanted: for every output, True if it is wanted.
    """
    needed = {output for output, one in zip(jaxpr.outvars, wanted, strict=True) if one and isinstance(output, Var)}
    for equation in reversed(jaxpr.eqns):
        outputs = [output in needed for output in equation.outvars]
        if any(outputs):
            inner = list(jaxprs_in_params(equation.params)) if equation.primitive.name in _CALLS else []
            known = len(inner) == 1 and len(inner[0].invars) == len(equation.invars)
            read = inputs_read(inner[0], outputs) if known else [True] * len(equation.invars)
            given = zip(equation.invars, read, strict=True)
            needed |= {value for value, one in given if one and isinstance(value, Var)}
    return [value in needed for value in jaxpr.invars]
