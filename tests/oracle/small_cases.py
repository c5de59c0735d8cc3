"""Building blocks of cases that are small enough to work by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .clock import ServerStep
from .update import Array, Update


def per_client(seconds: Sequence[float]) -> Callable[[int, int], float]:
    """Every run of client i lasts seconds[i]."""
    return lambda client, run: seconds[client]


def vector(*values: float) -> Array:
    """A float64 vector."""
    return np.array(values, dtype=np.float64)


def update(client: int, delta: float, x_start: float = 0.0, **fields: int) -> Update:
    """An arrival of a model with one parameter."""
    return Update(client=client, delta=vector(delta), x_start=vector(x_start), **fields)


def rows(steps: Sequence[ServerStep], *names: str) -> list[list[tuple[object, ...]]]:
    """The named fields of every arrival of every step."""
    return [[tuple(getattr(arrival, name) for name in names) for arrival in step.arrivals] for step in steps]
