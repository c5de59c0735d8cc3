"""Checks of server options, made before compilation."""

from __future__ import annotations

from typing import Any

import numpy as np


def check_number(server: str, name: str, value: Any, *, least: float | None = None, above: float | None = None) -> None:
    """A finite number, at least `least` or greater than `above`."""
    array = np.asarray(value, np.float64)
    if array.shape != ():
        raise ValueError(
            f"{server}: {name} must be one number, got an array of shape {array.shape}; sweep over it instead"
        )
    if not np.isfinite(array):
        raise ValueError(f"{server}: {name} must be a finite number, got {value}")
    if least is not None and array < least:
        raise ValueError(f"{server}: {name} must be >= {least:g}, got {value}")
    if above is not None and array <= above:
        raise ValueError(f"{server}: {name} must be > {above:g}, got {value}")


def check_decay(server: str, name: str, value: Any) -> None:
    """A number in [0, 1)."""
    check_number(server, name, value, least=0)
    if float(value) >= 1:
        raise ValueError(f"{server}: {name} must be in [0, 1), got {value}")


def check_choice(server: str, name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """One of a few options."""
    if value not in allowed:
        raise ValueError(f"{server}: {name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
