"""Building blocks of cases that are small enough to work by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .clock import ServerStep


def per_client(seconds: Sequence[float]) -> Callable[[int, int], float]:
    """Every run of client i lasts seconds[i]."""
    return lambda client, run: seconds[client]


def rows(steps: Sequence[ServerStep], *names: str) -> list[list[tuple[object, ...]]]:
    """The named fields of every arrival of every step."""
    return [[tuple(getattr(arrival, name) for name in names) for arrival in step.arrivals] for step in steps]


LOSSY: dict[str, list[list[bool]]] = {
    "uploads": [[True, False], [True, True], [False, False], [True, True], [True, True]],
    "downloads": [[False, True], [True, True], [True, True], [True, False], [True, True]],
}
"""Two clients and five ticks of `clock_bernoulli.bernoulli`."""

DRAWN: dict[str, Any] = {
    "sets": [[0, 1], [0, 0], [2, 1], [0]],
    "duration": per_client([1.0, 2.0, 5.0]),
    "num_clients": 3,
}
"""Three clients and four rounds of `clock_sampled.sampled`."""

DEPRECATING: dict[str, Any] = {
    "num_clients": 4,
    "fraction": 0.25,
    "lag": 1,
    "duration": per_client([1.0, 2.0, 5.0, 20.0]),
}
"""`clock_semi_async.semi_async` with a quota of one: slow clients are abandoned."""

FILLING: dict[str, Any] = {"num_clients": 3, "fraction": 2 / 3, "lag": 9, "duration": per_client([1.0, 2.0, 4.0])}
"""`clock_semi_async.semi_async` with a quota of two: rounds last until nobody trains."""
