"""Checks of clock options, made before compilation."""

from __future__ import annotations

from typing import Any

import numpy as np


def check_count(name: str, value: Any, least: int = 1) -> None:
    """A whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def check_concurrency(concurrency: Any, num_clients: int, name: str = "concurrency") -> None:
    """A number of clients between 1 and N."""
    check_count(name, concurrency)
    if concurrency > num_clients:
        raise ValueError(f"{name}={concurrency} is more than the {num_clients} clients there are")


def check_starts(starts: Any, num_clients: int) -> None:
    """Recorded starts: one client index per dispatch."""
    if starts is None:
        return
    array = np.asarray(starts)
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.size == 0:
        raise ValueError(
            "recorded starts must be a one-dimensional array of client indices, one per dispatch, "
            f"got shape {array.shape} of {array.dtype}"
        )
    outside = np.flatnonzero((array < 0) | (array >= num_clients))
    if outside.size:
        raise ValueError(
            f"recorded starts must name clients 0..{num_clients - 1}; dispatch {outside[0]} names {array[outside[0]]}"
        )
