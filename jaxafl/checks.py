"""Checks of options, made before compilation: what was passed, what is allowed."""

from __future__ import annotations

import reprlib
from typing import Any

import jax
import numpy as np


def check_number(
    owner: str,
    name: str,
    value: Any,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
) -> None:
    """One finite number within bounds.

    Args:
        owner: what the option belongs to, for the message.
        name: the option.
        value: what was passed.
        least: value >= least.
        above: value > above.
        most: value <= most.

    Raises:
        TypeError: it is not a number.
        ValueError: it is an array, not finite, or out of bounds.
    """
    array = as_numbers(owner, name, value)
    if array.shape != ():
        raise ValueError(
            f"{owner}: {name} must be one number, got an array of shape {array.shape}; sweep over it instead"
        )
    if not np.isfinite(array):
        raise ValueError(f"{owner}: {name} must be a finite number, got {value}")
    if least is not None and array < least:
        raise ValueError(f"{owner}: {name} must be >= {least:g}, got {value}")
    if above is not None and array <= above:
        raise ValueError(f"{owner}: {name} must be > {above:g}, got {value}")
    if most is not None and array > most:
        raise ValueError(f"{owner}: {name} must be <= {most:g}, got {value}")


def as_numbers(owner: str, name: str, value: Any) -> np.ndarray:
    """A number or an array of numbers in float64 (`TypeError` for anything else)."""
    array = as_array(owner, name, value)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{owner}: {name} must be a number, got {shown(value)}")
    return array.astype(np.float64)


def as_array(owner: str, name: str, value: Any) -> np.ndarray:
    """`numpy.asarray`, but lists that make no array are a `ValueError` that says so."""
    try:
        return np.asarray(value)
    except ValueError:
        raise ValueError(
            f"{owner}: {name} must be a number or an array, whose rows have one length, got {shown(value)}"
        ) from None


def shown(value: Any) -> str:
    """A value in an error message: an array by shape and dtype, anything else by the beginning of its `repr`."""
    if isinstance(value, np.ndarray | jax.Array) and value.size > 1:
        kind = "a NumPy array" if isinstance(value, np.ndarray) else "a JAX array"
        return f"{kind} of shape {value.shape} of {value.dtype}"
    return reprlib.repr(value)


def check_decay(owner: str, name: str, value: Any) -> None:
    """A number in [0, 1)."""
    check_number(owner, name, value, least=0)
    if float(value) >= 1:
        raise ValueError(f"{owner}: {name} must be in [0, 1), got {value}")


def check_choice(owner: str, name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """One of a few options."""
    if not any(value is option or (isinstance(value, str) and value == option) for option in allowed):
        raise ValueError(f"{owner}: {name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def check_flag(owner: str, name: str, value: Any) -> None:
    """True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{owner}: {name} must be True or False, got {value!r}")


def check_whole(owner: str, name: str, value: Any, least: int = 1, most: int | None = 2**31 - 1) -> int:
    """A whole number within bounds, as an int.

    Args:
        owner: what the option belongs to, for the message.
        name: the option.
        value: what was passed.
        least: value >= least.
        most: value <= most; what becomes an int32 ends there. `None` sets no bound.

    Raises:
        TypeError: it is no whole number; an array is none either, because options are part of the program.
        ValueError: it is out of bounds.
    """
    if isinstance(value, np.ndarray | jax.Array):
        kind = "NumPy" if isinstance(value, np.ndarray) else "JAX"
        advice = "use int(...)" if value.ndim == 0 else "use .tolist() where one number per client is meant"
        raise TypeError(
            f"{owner}: {name} must be a whole number (an int), got a {kind} array of shape {value.shape}: {advice}"
        )
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{owner}: {name} must be a whole number, got {shown(value)}")
    if value < least:
        raise ValueError(f"{owner}: {name} must be at least {least:,}, got {value}")
    if most is not None and value > most:
        raise ValueError(f"{owner}: {name} must be at most {most:,}, got {value:,}")
    return int(value)
