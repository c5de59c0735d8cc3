"""Calls of users' methods while JAX traces them."""

from __future__ import annotations

import contextlib
import pickle
import random
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.options import UserError


@contextlib.contextmanager
def traced_method(owner: str, method: str, advice: str) -> Iterator[None]:
    """Names a user's method on the errors of the block that calls it, and refuses draws on the host.

    Args:
        owner: kind and name of the part, e.g. "the server fedbuff".
        method: name of the method.
        advice: the source of random numbers that the method has.

    Raises:
        UserError: the block draws from the global generator of NumPy or Python.
    """
    try:
        with no_host_draws(f"`{method}` of {owner}", advice):
            yield
    except UserError:
        raise
    except Exception as error:
        error.add_note(f"raised in `{method}` of {owner}, which is traced by JAX")
        if isinstance(error, jax.errors.TracerArrayConversionError | jax.errors.TracerIntegerConversionError):
            error.add_note(
                "A list or an array of NumPy takes no traced index or value: write jnp.asarray(table)[index]"
            )
        raise


@contextlib.contextmanager
def no_host_draws(owner: str, advice: str) -> Iterator[None]:
    """Raises `UserError` if the block draws from a global generator, whose numbers would be constants of a program.

    Only the main thread is watched. The threads of a sweep run what it has checked, and beside them those of an
    executor, such as Dask's, may draw for themselves.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = pickle.dumps((np.random.get_state(), random.getstate()))
    yield
    if pickle.dumps((np.random.get_state(), random.getstate())) != before:
        raise UserError(
            f"{owner} draws from a global generator of numpy.random or random, so its numbers are the same for every "
            f"client, step and seed. Draw by jax.random and {advice}, or draw outside of it"
        )


def like_given(owner: str, method: str, found: Any, given: Any, types: bool = False) -> Any:
    """Returns a pytree that a user's method returned; raises `UserError` unless its shapes are those of another.

    Args:
        owner: kind and name of the part, for the message.
        method: name of the method.
        found: the pytree that it returned.
        given: a pytree of the right shapes, such as the one that it was given.
        types: if True, types are compared, too.
    """
    (old, form), (new, other) = map(jax.tree.flatten, (given, found))
    same = form == other and [*map(jnp.shape, old)] == [*map(jnp.shape, new)]  # type: ignore[operator]
    if not same or (types and [*map(jnp.result_type, old)] != [*map(jnp.result_type, new)]):
        was, now = map(_described, (given, found))
        raise UserError(f"`{method}` of {owner} must return {was}, as it was given; it returned {now}")
    return found


def _described(tree: Any) -> str:
    shapes = jax.tree.map(lambda leaf: f"{leaf.dtype}{[*leaf.shape]}", with_arrays(tree))
    return str(shapes).replace("'", "")


def with_arrays(tree: Any) -> Any:
    """Returns a pytree of a user's method with arrays in the place of Python's numbers."""
    return jax.tree.map(lambda leaf: leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf, jnp.result_type(leaf)), tree)
