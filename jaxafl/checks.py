"""Checks of options, made before compilation: what was passed, what is allowed."""

from __future__ import annotations

from typing import Any

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
    kind = getattr(np.asarray(value), "dtype", np.dtype(object)).kind
    if kind not in "iuf":
        raise TypeError(f"{owner}: {name} must be a number, got {value!r}")
    return np.asarray(value, np.float64)


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


def check_whole(owner: str, name: str, value: Any, least: int = 1) -> None:
    """A whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{owner}: {name} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{owner}: {name} must be at least {least}, got {value}")
