"""Conversion of a model's arrays to JAX's precision, and refusal of parameters that are not floats."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxafl.options import UserError, shown


def path_of(path: Any) -> str:
    """Joins a path in a pytree by `/`."""
    return "/".join(jax.tree_util.keystr((key,), simple=True) for key in path)


def as_parameters(params: Any, model: str) -> Any:
    """Converts parameters, Python floats included, to float arrays; float32 becomes float64 with `jax_enable_x64`.

    Raises:
        ValueError: a parameter is not a float, so it has no gradient.

    Warns:
        UserWarning: a parameter has 16 bits or fewer.
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
        if array.dtype.itemsize < 4:
            warnings.warn(
                f"the parameter {path_of(path)!r} of {model} is {array.dtype}, which rounds small updates away, "
                "and some optimisers and servers refuse it. Keep trained parameters in float32, and compute in "
                "bfloat16 by Simulation(..., precision='bfloat16')",
                stacklevel=2,
            )
        return widened(array)

    return jax.tree_util.tree_map_with_path(converted, params)


def as_state(state: Any) -> Any:
    """Converts the floats of the non-trainable state to JAX's precision."""
    return jax.tree.map(lambda leaf: leaf if (array := _array(leaf)) is None else widened(array), state)


def widened(leaf: Any) -> Any:
    """Converts a float32 array to float64 with `jax_enable_x64`, and a float64 array to float32 without it."""
    single = leaf.dtype == jnp.float32 or leaf.dtype == jnp.float64
    return lax.convert_element_type(leaf, jnp.result_type(float)) if single else leaf


def _array(leaf: Any) -> Any:
    try:
        return jnp.asarray(leaf)
    except TypeError:
        return None
