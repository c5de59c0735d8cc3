"""What a partitioner is."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Protocol

import numpy as np


class Partitioner(Protocol):
    """A way to split pooled samples over clients: any small immutable object with these two members."""

    def split(self, labels: np.ndarray, users: np.ndarray | None, rng: np.random.Generator) -> list[np.ndarray]:
        """Rows of each client's samples.

        Args:
            labels: int32 `[n]`, label of each sample.
            users: int `[n]`, natural client of each sample, or `None`.
            rng: The only source of randomness.

        Returns:
            One int array of rows in `[0, n)` per client.
        """
        ...

    @property
    def description(self) -> Mapping[str, str | int | float]:
        """`"partition"`, the name, and one `"partition_<option>"` per option: what a result file says."""
        ...


def check_clients(clients: int) -> int:
    """The number of clients as an int; `TypeError` or `ValueError` unless it is a positive integer."""
    try:
        number = operator.index(clients)
    except TypeError:
        raise TypeError(f"clients must be an integer; got {clients!r}") from None
    if number < 1:
        raise ValueError(f"clients must be at least 1; got {number}")
    return number
