"""Every client holds samples of exactly k classes."""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxafl.checks import check_whole


@dataclasses.dataclass(frozen=True)
class ClassesPerClient:
    """See `classes_per_client`."""

    k: int
    clients: int

    def split(self, labels: np.ndarray, users: np.ndarray | None, rng: np.random.Generator) -> list[np.ndarray]:
        """Rows of each client; see `Partitioner.split`."""
        classes, counts = np.unique(labels, return_counts=True)
        self._check(classes, counts)
        holders = self._assign(counts, rng)
        of_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
        pieces: list[list[np.ndarray]] = [[] for _ in range(self.clients)]
        for rows, holding in zip(of_class, holders.T, strict=True):
            holding_clients = rng.permutation(np.flatnonzero(holding))
            for client, piece in zip(
                holding_clients, np.array_split(rng.permutation(rows), len(holding_clients)), strict=True
            ):
                pieces[client].append(piece)
        return [rng.permutation(np.concatenate(own)) for own in pieces]

    def _check(self, classes: np.ndarray, counts: np.ndarray) -> None:
        if self.k > len(classes):
            raise ValueError(
                f"classes_per_client: k={self.k}, but the data has {len(classes)} classes; use k={len(classes)} or less"
            )
        if self.k * self.clients < len(classes):
            raise ValueError(
                f"classes_per_client: {self.clients} clients of {self.k} classes cannot hold all {len(classes)} "
                f"classes; use at least {-(-len(classes) // self.k)} clients or a larger k"
            )

    def _assign(self, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Who holds which class, bool `[N, C]`: each client exactly k, each class by as equal a number as possible.

        A class has at most one holder per sample. Each client takes the k classes with most places left, ties broken
        at random; with places as equal as they are here this never runs out before the last client.
        """
        places = _equal_places(self.k * self.clients, np.minimum(counts, self.clients), rng)
        if places is None:
            raise ValueError(
                f"classes_per_client: {counts.sum()} samples (smallest class {counts.min()}) are too few to give "
                f"{self.clients} clients one sample of each of {self.k} classes; use fewer clients or a smaller k"
            )
        holders = np.zeros((self.clients, len(counts)), bool)
        for client in range(self.clients):
            chosen = np.lexsort((rng.random(len(counts)), -places))[: self.k]
            holders[client, chosen] = True
            places[chosen] -= 1
        return holders[rng.permutation(self.clients)]

    @property
    def description(self) -> dict[str, str | int | float]:
        """Name and options."""
        return {"partition": "classes_per_client", "partition_k": self.k, "partition_clients": self.clients}


def classes_per_client(k: int, clients: int) -> ClassesPerClient:
    """Give every client samples of exactly k classes, and every sample to exactly one client.

    Classes are assigned at random such that each is held by as equal a number of clients as possible; the shuffled
    samples of a class are dealt out in equal parts to the clients that hold it.

    Args:
        k: Classes per client, at least 1 and at most the number of classes in the data.
        clients: Number of clients N; `k * clients` must be at least the number of classes.

    Returns:
        The partitioner, for `Dataset.partition`.

    Raises:
        ValueError: If `k` or `clients` is below 1; on splitting, if the data has fewer than k classes, if the clients
            cannot hold all classes together, or if there are too few samples.
        TypeError: If `k` or `clients` is not a whole number.
    """
    k = check_whole("classes_per_client", "k", k)
    return ClassesPerClient(k, check_whole("classes_per_client", "clients", clients))


def _equal_places(total: int, limit: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
    """Spread `total` places over the classes as equally as the limits allow; `None` if they do not fit."""
    if total > limit.sum():
        return None
    level = 0
    while np.minimum(limit, level + 1).sum() <= total:
        level += 1
        if level > limit.max():
            break
    places = np.minimum(limit, level)
    open_classes = np.flatnonzero(limit > level)
    places[rng.permutation(open_classes)[: total - places.sum()]] += 1
    return places
