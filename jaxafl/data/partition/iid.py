"""Independent and identically distributed clients."""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxafl.checks import check_whole
from jaxafl.data.partition.partitioner import check_enough


@dataclasses.dataclass(frozen=True)
class Iid:
    """See `iid`."""

    clients: int

    def split(self, labels: np.ndarray, users: np.ndarray | None, rng: np.random.Generator) -> list[np.ndarray]:
        """Rows of each client; see `Partitioner.split`."""
        check_enough("iid", self.clients, len(labels))
        return np.array_split(rng.permutation(len(labels)), self.clients)

    @property
    def description(self) -> dict[str, str | int | float]:
        """Name and options."""
        return {"partition": "iid", "partition_clients": self.clients}


def iid(clients: int) -> Iid:
    """Shuffle all samples and deal them out in equal parts.

    Every sample goes to exactly one client; sizes differ by at most one.

    Args:
        clients: Number of clients N, at least 1.

    Returns:
        The partitioner, for `Dataset.partition`.

    Raises:
        ValueError: If `clients` is below 1; on splitting, if there are fewer samples than clients.
        TypeError: If `clients` is not a whole number.
    """
    return Iid(check_whole("iid", "clients", clients))
