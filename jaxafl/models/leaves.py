"""Arrays of a model as they are trained: floats in the precision of JAX, and nothing else among the parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxafl.options import UserError, shown


def path_of(path: Any) -> str:
    """A path in a pytree, joined by `/`."""
    return "/".join(jax.tree_util.keystr((key,), simple=True) for key in path)


def as_parameters(params: Any, model: str) -> Any:
    """The parameters as float arrays: Python floats too, and float64 where JAX computes in it.

    Raises:
        ValueError: one of them is no float, and has no gradient.
    """

    def converted(path: Any, leaf: Any) -> Any:
        array = _array(leaf)
        if array is None or not jnp.issubdtype(array.dtype, jnp.floating):
            is_what = f"{array.dtype}{list(array.shape)}" if hasattr(array, "shape") else shown(leaf)
            where = (
                f" or select it by frozen={{{path_of(path)!r}: True}}"
                if array is not None
                else (", in the loss itself (of an Equinox module: eqx.partition(module, eqx.is_inexact_array))")
            )
            raise UserError(
                f"the parameter {path_of(path)!r} of {model} is {is_what}; what gradients train must be floats. "
                f"Make it a float, or, if it is not to be trained, keep it out of the parameters{where}"
            )
        return widened(array)

    return jax.tree_util.tree_map_with_path(converted, params)


def as_state(state: Any) -> Any:
    """The non-trainable state with its floats in the precision of JAX."""
    return jax.tree.map(lambda leaf: leaf if (array := _array(leaf)) is None else widened(array), state)


def widened(leaf: Any) -> Any:
    """A float32 array as float64 where JAX computes in it."""
    single = leaf.dtype == jnp.float32 or leaf.dtype == jnp.float64
    return lax.convert_element_type(leaf, jnp.result_type(float)) if single else leaf


def _array(leaf: Any) -> Any:
    try:
        return jnp.asarray(leaf)
    except TypeError:
        return None
