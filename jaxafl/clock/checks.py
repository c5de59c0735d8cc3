"""Checks that clocks share, made before compilation."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxafl.checks import check_whole


def check_concurrency(clock: str, name: str, value: Any, num_clients: int) -> None:
    """A number of clients between 1 and N."""
    check_whole(clock, name, value)
    if value > num_clients:
        raise ValueError(f"{clock}: {name}={value} is more than the {num_clients} clients there are")


def check_durations(clock: str, durations: Any, num_clients: int) -> None:
    """A duration whose numbers can be durations."""
    if not hasattr(durations, "draw"):
        raise TypeError(f"{clock}: durations must be a duration, e.g. jaxafl.clock.uniform(1, 5), got {durations!r}")
    durations.check(num_clients)


def check_starts(clock: str, starts: Any, num_clients: int) -> None:
    """Recorded starts: one client index per dispatch."""
    if starts is None:
        return
    array = np.asarray(starts)
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.size == 0:
        raise ValueError(
            f"{clock}: recorded starts must be a one-dimensional array of client indices, one per dispatch, "
            f"got shape {array.shape} of {array.dtype}"
        )
    outside = np.flatnonzero((array < 0) | (array >= num_clients))
    if outside.size:
        raise ValueError(
            f"{clock}: recorded starts must name clients 0..{num_clients - 1}; "
            f"dispatch {outside[0]} names {array[outside[0]]}"
        )
