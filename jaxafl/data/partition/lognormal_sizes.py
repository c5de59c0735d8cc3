"""Sizes from a lognormal distribution, labels alike."""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxafl.checks import check_number, check_whole


@dataclasses.dataclass(frozen=True)
class LognormalSizes:
    """See `lognormal_sizes`."""

    clients: int
    sigma: float
    min_size: int

    def split(self, labels: np.ndarray, users: np.ndarray | None, rng: np.random.Generator) -> list[np.ndarray]:
        """Rows of each client; see `Partitioner.split`."""
        rest = len(labels) - self.clients * self.min_size
        if rest < 0:
            raise ValueError(
                f"lognormal_sizes: {len(labels)} samples cannot give {self.clients} clients min_size={self.min_size} "
                "each; use fewer clients or a smaller min_size"
            )
        normal = rng.normal(0.0, self.sigma, self.clients)
        weights = np.exp(normal - normal.max())  # only proportions count, and this cannot overflow
        ends = np.floor(np.cumsum(weights) / weights.sum() * rest + 0.5).astype(np.int64)
        ends[-1] = rest
        stops = ends + self.min_size * np.arange(1, self.clients + 1)
        return np.split(rng.permutation(len(labels)), stops[:-1])

    @property
    def description(self) -> dict[str, str | int | float]:
        """Name and options."""
        return {
            "partition": "lognormal_sizes",
            "partition_clients": self.clients,
            "partition_sigma": self.sigma,
            "partition_min_size": self.min_size,
        }


def lognormal_sizes(clients: int, sigma: float = 1.0, min_size: int = 1) -> LognormalSizes:
    """Shuffle all samples and deal them out in parts of lognormal size.

    Client k gets `min_size + (n - N · min_size) · w_k / sum(w)` samples, up to rounding, with `w_k` drawn from
    lognormal(0, sigma). Every sample goes to exactly one client. The mean of the lognormal would cancel, and so it is
    not an option.

    Args:
        clients: Number of clients N, at least 1.
        sigma: Standard deviation of log w_k, 0 or more: 0 gives equal sizes, 2 a heavy tail as of `synthetic`.
        min_size: What every client holds at least, 1 or more.

    Returns:
        The partitioner, for `Dataset.partition`.

    Raises:
        ValueError: If an option is out of range; on splitting, if there are too few samples for `min_size`.
        TypeError: If `sigma` is not a number, or `clients` or `min_size` not a whole one.
    """
    check_number("lognormal_sizes", "sigma", sigma, least=0)
    clients = check_whole("lognormal_sizes", "clients", clients)
    return LognormalSizes(clients, float(sigma), check_whole("lognormal_sizes", "min_size", min_size))
