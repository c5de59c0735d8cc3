"""Checks of options and paths that users pass, before compilation."""

from __future__ import annotations

import contextlib
import importlib
import operator
import os
import pathlib
import reprlib
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxafl.options.suggestions import did_you_mean

MOST = 2**31 - 1  # a larger number overflows an int32
_BETWEEN = ("jaxafl", "functools", "contextlib")  # modules of the frames between a warning and a user's line
_SIGNS = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}


class UserError(ValueError):
    """An invalid request of the user. The command line shows its message without a traceback."""


@contextlib.contextmanager
def user_errors(where: str = "") -> Iterator[None]:
    """Converts `ValueError` and `TypeError` to `UserError`, and appends `where` to the message."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise UserError(f"{error} ({where})" if where else str(error)) from error


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the line of a user's code that called the package, however deep in it the reason was found."""
    level = 1
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)


class Bounds(NamedTuple):
    """The allowed values of an option, kept in the metadata of its field."""

    static: bool = False
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    per_client: bool = False
    infinite: bool = False

    @property
    def limits(self) -> dict[str, float | None]:
        """Comparison sign -> limit; `None` without one."""
        return {">=": self.least, ">": self.above, "<=": self.most, "<": self.below}


def check_number(owner: str, name: str, value: Any, *, num_clients: int | None = None, **limits: Any) -> None:
    """Raises if an option is not one finite number within bounds, or an array [N] if `per_client` allows it.

    Args:
        owner: the part that has the option, for the message.
        name: the option.
        value: its value.
        num_clients: N; `None` accepts any length.
        **limits: fields of `Bounds`: `least`, `above`, `most`, `below`, `per_client`, `infinite`.

    Raises:
        TypeError: the value is no number.
        ValueError: the value is not finite, out of bounds, or an array if one number is required.
    """
    bounds = Bounds(**limits)
    array = as_numbers(owner, name, value)
    if array.ndim > bounds.per_client or (array.ndim and num_clients is not None and len(array) != num_clients):
        several = f", or an array of one number per client ({num_clients},)" if bounds.per_client else ""
        raise UserError(f"{owner}: {name} must be one number{several}, got shape {array.shape}")
    fits, rules = ~np.isnan(array) if bounds.infinite else np.isfinite(array), []
    for sign, limit in bounds.limits.items():
        if limit is not None:
            fits &= _SIGNS[sign](array, limit)
            rules.append(f"{sign} {limit:g}")
    if not fits.all():
        first = int(np.argmin(fits))
        finite = ["a finite number"] * (not np.isfinite(array.flat[first]))
        who = "entry" if num_clients is None else "client"
        got = f"{array[first]:.10g} ({who} {first}, the first of {(~fits).sum()})" if array.ndim else value
        raise UserError(f"{owner}: {name} must be {', '.join(finite + rules)}, got {got}")


def as_numbers(owner: str, name: str, value: Any) -> np.ndarray:
    """Returns a number or an array of numbers in float64. Raises `TypeError` for anything else."""
    array = as_array(owner, name, value)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{owner}: {name} must be a number, got {shown(value)}")
    return array.astype(np.float64)


def as_array(owner: str, name: str, value: Any) -> np.ndarray:
    """Returns `numpy.asarray(value)`. Raises `ValueError` for ragged lists and masked values."""
    if np.ma.is_masked(value):
        raise UserError(f"{owner}: masked values in {name}; remove or replace them first, for example by .filled(0)")
    try:
        return np.asarray(value)
    except ValueError:
        raise UserError(
            f"{owner}: {name} must be a number or an array, whose rows have one length, got {shown(value)}; pad "
            "shorter ones"
        ) from None


def as_path(path: str | os.PathLike[str]) -> pathlib.Path:
    """Returns a path with a leading `~` or `~user` replaced by the home directory.

    Raises:
        TypeError: the argument is no path.
        RuntimeError: the user does not exist.
    """
    return pathlib.Path(path).expanduser()


def in_order(owner: str, name: str, value: Any) -> Any:
    """Returns a table of pandas as an array if its index is sorted, and other values as given.

    Raises:
        ValueError: the index is not sorted, as that of `value_counts()`. Clients would get the values of others.
    """
    if not (hasattr(value, "iloc") and hasattr(value, "index")):
        return value
    if not value.index.is_monotonic_increasing:
        raise UserError(
            f"{owner}: {name} is a table with the index {shown([*value.index])}, which is not sorted, and clients are "
            f"numbered in sorted order of their ids; write {name}.sort_index(), or .to_numpy() if row i is client i"
        )
    return value.to_numpy()


def kept(value: Any) -> Any:
    """Returns a copy of a NumPy array that can change, so that it cannot change any more, and other values as given."""
    if not isinstance(value, np.ndarray) or not value.flags.writeable:
        return value
    copy = value.copy()
    copy.flags.writeable = False
    return copy


def required(module: str, extra: str, purpose: str) -> Any:
    """Returns an optional module. Raises `ImportError` with the extra that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f'{purpose} needs {module}: pip install "jaxafl[{extra}]"') from error


def shown(value: Any) -> str:
    """Returns a short text for messages: shape and dtype of an array, name of a function, else a shortened `repr`."""
    if isinstance(value, np.ndarray | jax.Array) and value.size > 1:
        kind = "a NumPy array" if isinstance(value, np.ndarray) else "a JAX array"
        return f"{kind} of shape {value.shape} of {value.dtype}"
    if isinstance(value, types.FunctionType | type):
        return value.__name__
    return repr(value) if getattr(value, "is_part", False) else reprlib.repr(value)


def check_choice(owner: str, name: str, value: Any, allowed: tuple[Any, ...], also: str = "") -> None:
    """Raises `ValueError` if a value is none of the choices.

    Args:
        owner, name: the part and its option, for the message.
        value: the value.
        allowed: the choices.
        also: further allowed values, in words, for the message.
    """
    if value not in allowed if isinstance(value, str) else id(value) not in map(id, allowed):  # 1 is not True
        raise UserError(
            f"{owner}: {name} must be one of {', '.join(map(repr, allowed))}{also}, got {value!r}"
            f"{did_you_mean(value, filter(None, allowed)) if isinstance(value, str) else ''}"
        )


def check_flag(owner: str, name: str, value: Any) -> None:
    """Raises `TypeError` if a value is neither True nor False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{owner}: {name} must be True or False, got {value!r}")


def check_whole(owner: str, name: str, value: Any, least: int = 1, most: int | None = MOST) -> int:
    """Returns a whole number within bounds as an int.

    Args:
        owner: the part that has the option, for the message.
        name: the option.
        value: its value.
        least: lower bound, inclusive.
        most: upper bound, inclusive; `None` sets no bound.

    Raises:
        TypeError: the value is no whole number. Arrays are refused because the option is static.
        ValueError: the value is out of bounds.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{owner}: {name} must be a whole number, got {shown(value)}")
    if value < least:
        raise UserError(f"{owner}: {name} must be at least {least:,}, got {value}")
    if most is not None and value > most:
        raise UserError(f"{owner}: {name} must be at most {most:,}, got {value:,}")
    return int(value)
