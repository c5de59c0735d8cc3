"""Label skew from a Dirichlet distribution."""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxafl.checks import check_whole
from jaxafl.data.partition.partitioner import check_alpha

_MAX_DRAWS = 1000


@dataclasses.dataclass(frozen=True)
class Dirichlet:
    """See `dirichlet`."""

    alpha: float
    clients: int
    min_size: int

    def split(self, labels: np.ndarray, users: np.ndarray | None, rng: np.random.Generator) -> list[np.ndarray]:
        """Rows of each client; see `Partitioner.split`."""
        _, counts = np.unique(labels, return_counts=True)
        ends = self._draw_ends(counts, rng)
        of_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
        parts = [
            np.split(rng.permutation(rows), class_ends[:-1]) for rows, class_ends in zip(of_class, ends, strict=True)
        ]
        return [rng.permutation(np.concatenate(pieces)) for pieces in zip(*parts, strict=True)]

    def _draw_ends(self, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Where each client's share of each class ends, int `[C, N]`: the first draw that satisfies `min_size`."""
        if self.min_size * self.clients > counts.sum():
            raise ValueError(
                f"dirichlet: {counts.sum()} samples cannot give {self.clients} clients min_size={self.min_size} each"
            )
        largest = 0
        for _ in range(_MAX_DRAWS):
            shares = rng.dirichlet(np.full(self.clients, self.alpha), size=len(counts))
            ends = np.floor(np.cumsum(shares, axis=1) * counts[:, None]).astype(np.int64)
            ends = np.minimum(ends, counts[:, None])  # a cumulative sum may round to just above 1
            ends[:, -1] = counts
            smallest = int(np.diff(ends, axis=1, prepend=0).sum(0).min())
            if smallest >= self.min_size:
                return ends
            largest = max(largest, smallest)
        raise ValueError(
            f"dirichlet: in {_MAX_DRAWS} draws with alpha={self.alpha:g} and {self.clients} clients the smallest "
            f"client never held min_size={self.min_size} samples (at best {largest}). Use a larger alpha, fewer "
            "clients or a smaller min_size."
        )

    @property
    def description(self) -> dict[str, str | int | float]:
        """Name and options."""
        return {
            "partition": "dirichlet",
            "partition_alpha": self.alpha,
            "partition_clients": self.clients,
            "partition_min_size": self.min_size,
        }


def dirichlet(alpha: float, clients: int, min_size: int = 0) -> Dirichlet:
    """Split every class over the clients in proportions drawn from a symmetric Dirichlet distribution.

    For each class c draw `p_c ~ Dir(alpha, ..., alpha)` over the N clients, shuffle the n_c samples of the class and
    cut them at `floor(n_c * cumsum(p_c))`; what flooring leaves over goes to the last client. Each client's samples
    are then shuffled. Every sample goes to exactly one client.

    Args:
        alpha: Concentration, positive: small values give each client few classes, large values approach `iid`.
        clients: Number of clients N, at least 1.
        min_size: Draw all proportions again, up to 1000 times, until every client holds at least this many samples.
            With the default 0 the first draw counts, and a draw that leaves clients empty is an error.

    Returns:
        The partitioner, for `Dataset.partition`.

    Raises:
        ValueError: If `alpha` is not positive and finite, `clients` is below 1 or `min_size` is negative; on splitting,
            if no draw satisfies `min_size`, or if clients are left without samples.
        TypeError: If `alpha` is not a number, or `clients` or `min_size` not a whole number.

    References:
        Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
        Classification", arXiv:1909.06335, 2019; per class over clients as in Yurochkin et al., "Bayesian
        Nonparametric Federated Learning of Neural Networks", ICML 2019.
    """
    alpha = check_alpha("dirichlet", alpha)
    smallest = check_whole("dirichlet", "min_size", min_size, least=0)
    return Dirichlet(alpha, check_whole("dirichlet", "clients", clients), smallest)
