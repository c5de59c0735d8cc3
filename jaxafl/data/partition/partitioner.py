"""What a partitioner is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from jaxafl.checks import as_numbers


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


def check_alpha(owner: str, alpha: float) -> float:
    """A concentration as a float; `TypeError` or `ValueError` unless it is one positive and finite number."""
    number = as_numbers(owner, "alpha", alpha)
    if number.shape != () or not 0 < number < math.inf:
        raise ValueError(f"{owner}: alpha must be positive and finite, one number; got {alpha}")
    return float(number)


def check_enough(owner: str, clients: int, samples: int) -> None:
    """`ValueError` unless every client can have a sample."""
    if clients > samples:
        raise ValueError(
            f"{owner}: {samples} samples cannot give {clients} clients one each; use at most {samples} clients"
        )
