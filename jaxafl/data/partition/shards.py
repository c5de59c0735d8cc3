"""Shards of the samples sorted by label."""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxafl.checks import check_whole


@dataclasses.dataclass(frozen=True)
class Shards:
    """See `shards`."""

    per_client: int
    clients: int

    def split(self, labels: np.ndarray, users: np.ndarray | None, rng: np.random.Generator) -> list[np.ndarray]:
        """Rows of each client; see `Partitioner.split`."""
        number = self.per_client * self.clients
        if number > len(labels):
            raise ValueError(
                f"shards: {len(labels)} samples cannot be cut into {self.clients} × {self.per_client} shards; use "
                "fewer clients or fewer shards per client"
            )
        shuffled = rng.permutation(len(labels))
        pieces = np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], number)
        hands = rng.permutation(number).reshape(self.clients, self.per_client)
        return [rng.permutation(np.concatenate([pieces[shard] for shard in hand])) for hand in hands]

    @property
    def description(self) -> dict[str, str | int | float]:
        """Name and options."""
        return {"partition": "shards", "partition_per_client": self.per_client, "partition_clients": self.clients}


def shards(per_client: int, clients: int) -> Shards:
    """Sort the samples by label, cut them into equal shards, and deal each client some of these at random.

    The samples of a class are shuffled before. Sizes of shards differ by at most one, and every sample goes to exactly
    one client. A shard may span a border between classes, and a client may draw two shards of one class: for exactly k
    classes use `classes_per_client`.

    Args:
        per_client: Shards per client, at least 1.
        clients: Number of clients N, at least 1.

    Returns:
        The partitioner, for `Dataset.partition`.

    Raises:
        ValueError: If `per_client` or `clients` is below 1; on splitting, if there are fewer samples than shards.
        TypeError: If `per_client` or `clients` is not a whole number.

    References:
        McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017,
        Section 3: MNIST in 200 shards, two for each of 100 clients.
    """
    return Shards(check_whole("shards", "per_client", per_client), check_whole("shards", "clients", clients))
