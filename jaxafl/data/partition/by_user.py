"""One client per natural user."""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxafl.checks import check_whole


@dataclasses.dataclass(frozen=True)
class ByUser:
    """See `by_user`."""

    clients: int | None

    def split(self, labels: np.ndarray, users: np.ndarray | None, rng: np.random.Generator) -> list[np.ndarray]:
        """Rows of each client in their original order; see `Partitioner.split`."""
        if users is None:
            raise ValueError("by_user: this dataset has no natural users; use iid, dirichlet or classes_per_client")
        _, counts = np.unique(users, return_counts=True)
        if self.clients is not None and self.clients > len(counts):
            raise ValueError(f"by_user: {self.clients} clients asked for, but the dataset has {len(counts)} users")
        # A stable sort keeps every user's samples in the order in which they are stored.
        rows = np.split(np.argsort(users, kind="stable"), np.cumsum(counts)[:-1])
        return rows[: self.clients]

    @property
    def description(self) -> dict[str, str | int | float]:
        """Name and options."""
        return {"partition": "by_user", "partition_clients": "all" if self.clients is None else self.clients}


def by_user(clients: int | None = None) -> ByUser:
    """Give every natural user (a writer, a speaker) its own samples.

    Nothing is random: clients follow increasing user id, and samples keep their order.

    Args:
        clients: Keep only this many users, those of the smallest ids; by default all of them.

    Returns:
        The partitioner, for `Dataset.partition`.

    Raises:
        ValueError: If `clients` is below 1; on splitting, if the dataset has no users or fewer than `clients`.
        TypeError: If `clients` is not a whole number.
    """
    return ByUser(None if clients is None else check_whole("by_user", "clients", clients))
