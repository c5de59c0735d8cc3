"""Clients that all hold the same samples."""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxafl.checks import check_whole


@dataclasses.dataclass(frozen=True)
class IidShared:
    """See `iid_shared`."""

    clients: int
    samples: int | None

    def split(self, labels: np.ndarray, users: np.ndarray | None, rng: np.random.Generator) -> list[np.ndarray]:
        """The same rows for every client; see `Partitioner.split`."""
        size = len(labels) if self.samples is None else self.samples
        if size > len(labels):
            raise ValueError(
                f"iid_shared: a pool of samples={size} asked for, but the data has {len(labels)} training samples"
            )
        return [rng.permutation(len(labels))[:size].astype(np.int32)] * self.clients

    @property
    def description(self) -> dict[str, str | int | float]:
        """Name and options."""
        return {
            "partition": "iid_shared",
            "partition_clients": self.clients,
            "partition_samples": "all" if self.samples is None else self.samples,
        }


def iid_shared(clients: int, samples: int | None = None) -> IidShared:
    """Give every client one and the same pool of samples.

    Each sample of the pool belongs to all N clients, and statistics count it once for each of them. The samples are
    stored once, and so is the list of them that all clients share.

    Args:
        clients: Number of clients N, at least 1.
        samples: Size of the pool, drawn from the training samples at random without replacement; `None` takes all of
            them.

    Returns:
        The partitioner, for `Dataset.partition`.

    Raises:
        ValueError: If `clients` or `samples` is below 1; on splitting, if there are fewer samples than the pool needs.
        TypeError: If `clients` or `samples` is not a whole number.

    References:
        "The impact analysis of delays in asynchronous federated learning with data heterogeneity for edge
        intelligence": four clients share 25,000 samples of MNIST.
    """
    samples = None if samples is None else check_whole("iid_shared", "samples", samples)
    return IidShared(check_whole("iid_shared", "clients", clients), samples)
