"""Calls of users' methods while JAX traces them: errors that name the method, and no random numbers of the host."""

from __future__ import annotations

import contextlib
import numbers
import pickle
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.device.reads import INSTALLED, generators_in, numbers_in
from jaxafl.options import UserError, shown

_VALUES = (
    *(jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError),
    jax.errors.TracerIntegerConversionError,
)


@contextlib.contextmanager
def traced_method(part: Any, owner: str, method: str, advice: str) -> Iterator[None]:
    """Explains errors of a user's method that the block calls while JAX traces it, and refuses draws on the host.

    It warns of numbers that the method changes, such as a counter.

    Args:
        part: object with the method.
        owner: its kind and name, e.g. "the server fedbuff".
        method: name of the method, for the message.
        advice: the source of random numbers that the method has.

    Raises:
        ValueError: the method needs the value of a traced number, or draws from a generator of NumPy or Python.
    """
    before = numbers_in(part)
    try:
        with refuse_host_draws(part, owner, advice):
            yield
        _warn_of_changes(owner, method, before, numbers_in(part))
    except UserError:
        raise
    except _VALUES as error:
        traced = traceback.extract_tb(error.__traceback__)
        frames = [frame for frame in traced if not frame.filename.startswith(INSTALLED)]
        line = f", line {frames[-1].lineno}: `{frames[-1].line}`" if frames else ""
        raise UserError(
            f"`{method}` of {owner} needs a number that is known only when the compiled program runs{line}. Write "
            "jnp.where(condition, a, b) for `if`, jnp.asarray(table)[i] for table[i], jax.lax.fori_loop for a loop, "
            "and functions of jnp for float(), int() and NumPy's"
        ) from error
    except Exception as error:
        error.add_note(f"raised in `{method}` of {owner}, which is traced by JAX")
        raise


def _warn_of_changes(owner: str, method: str, before: dict[Any, Any], after: dict[Any, Any]) -> None:
    for key, (name, number) in after.items():
        if key in before and before[key][1] != number:
            warnings.warn(
                f"`{method}` of {owner} changes {name} from {before[key][1]} to {number} while JAX traces it, which "
                "happens once and not in every step. What changes belongs in a state (`init`)",
                stacklevel=4,
            )


def like_given(owner: str, method: str, found: Any, given: Any) -> Any:
    """Returns a pytree that a user's method returned; raises `ValueError` unless its shapes are those of another.

    Args:
        owner: kind and name of the part, for the message.
        method: name of the method.
        found: the pytree that it returned.
        given: a pytree of the right shapes, such as the one that it was given.
    """
    forms = [(jax.tree.structure(tree), [*map(jnp.shape, jax.tree.leaves(tree))]) for tree in (found, given)]
    if forms[0] != forms[1]:
        was, now = described(given), described(found)
        raise UserError(f"`{method}` of {owner} must return {was}, as it was given; it returned {now}")
    return found


def check_alike(rule: str, name: str, before: Any, after: Any) -> None:
    """Raises `UserError` unless two pytrees have the same structure, shapes and types; traced.

    Args:
        rule: the beginning of the message.
        name: name of the pytree.
        before, after: the first one, and the one that a method returned.
    """
    was, now = _forms(before), _forms(after)
    first, later = str(jax.tree.structure(before)), str(jax.tree.structure(after))
    for path in [*was, *now]:
        if was.get(path) != now.get(path):
            raise UserError(f"{rule}: {name}{path} was {was.get(path)}, it is {now.get(path)}")
    if first != later:
        raise UserError(f"{rule}: {name} was {first}, it is {later}")


def _forms(tree: Any) -> dict[str, str]:
    """Returns the type and shape of every leaf of a pytree, by its path."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): f"{jnp.result_type(leaf)}{[*jnp.shape(leaf)]}" for path, leaf in leaves}


def parts_of(owner: str, method: str, names: tuple[str, ...], found: Any) -> tuple[Any, ...]:
    """Returns the tuple that a user's method returned; raises `ValueError` unless it has one value for each name."""
    if not (isinstance(found, tuple) and len(found) == len(names)):
        raise UserError(f"`{method}` of {owner} must return ({', '.join(names)}); it returned {found!r:.200}")
    return found


def described(tree: Any) -> str:
    """Returns the types and shapes of a pytree as a text."""
    shapes = jax.tree.map(lambda leaf: f"{leaf.dtype}{[*leaf.shape]}" if hasattr(leaf, "dtype") else repr(leaf), tree)
    return str(shapes).replace("'", "")


def with_arrays(tree: Any) -> Any:
    """Returns a pytree of a user's method with arrays in the place of Python's numbers."""

    def converted(leaf: Any) -> Any:
        if not hasattr(leaf, "dtype") and not isinstance(leaf, numbers.Number):
            raise UserError(f"a state is made of arrays and numbers, in tuples, lists and dicts; got {shown(leaf)}")
        return leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf, jnp.result_type(leaf))

    return jax.tree.map(converted, tree)


@contextlib.contextmanager
def refuse_host_draws(part: Any, owner: str, advice: str) -> Iterator[None]:
    """Raises `UserError` if the block draws from NumPy's global generator, or from another one that a part names.

    Args:
        part: the traced part, or several in a container; its code, options and closures are searched for generators.
        owner: its kind and name, for the message.
        advice: the source of random numbers that the part has.
    """
    with host_draws(part) as drawn:
        yield
    if drawn:
        raise UserError(
            f"{owner} draws from {drawn[0]} while it is traced, so that its numbers are constants of the program, the "
            f"same for every client, step and seed. Draw by jax.random and {advice}, or draw outside of it"
        )


@contextlib.contextmanager
def host_draws(part: Any) -> Iterator[list[str]]:
    """Yields a list, which after the block has the names of the generators from which the block has drawn.

    Args:
        part: as of `refuse_host_draws`.
    """
    generators = [np.random, *generators_in(part)]
    drawn: list[str] = []
    before = [pickle.dumps(_state(one)) for one in generators]
    yield drawn
    for one, state in zip(generators, before, strict=True):
        if pickle.dumps(_state(one)) != state:
            drawn.append(getattr(one, "__name__", None) or f"a random number generator ({type(one).__qualname__})")


def _state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if hasattr(generator, "getstate") else generator.get_state()
