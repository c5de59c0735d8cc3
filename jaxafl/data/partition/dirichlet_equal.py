"""Label skew from a Dirichlet distribution over the classes of each client, with equal sizes."""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxafl.checks import check_whole
from jaxafl.data.partition.class_mix import deal, dirichlet_mixes
from jaxafl.data.partition.partitioner import check_alpha, check_enough


@dataclasses.dataclass(frozen=True)
class DirichletEqual:
    """See `dirichlet_equal`."""

    alpha: float
    clients: int

    def split(self, labels: np.ndarray, users: np.ndarray | None, rng: np.random.Generator) -> list[np.ndarray]:
        """Rows of each client; see `Partitioner.split`."""
        check_enough("dirichlet_equal", self.clients, len(labels))
        _, counts = np.unique(labels, return_counts=True)
        sizes = np.full(self.clients, len(labels) // self.clients)
        sizes[rng.permutation(self.clients)[: len(labels) % self.clients]] += 1
        return deal(labels, sizes, dirichlet_mixes(self.alpha, counts, self.clients, rng), rng)

    @property
    def description(self) -> dict[str, str | int | float]:
        """Name and options."""
        return {"partition": "dirichlet_equal", "partition_alpha": self.alpha, "partition_clients": self.clients}


def dirichlet_equal(alpha: float, clients: int) -> DirichletEqual:
    """Give every client as many samples, of classes mixed in proportions drawn from a Dirichlet distribution.

    For each client k draw a mix of classes `q_k ~ Dir(alpha · p)`, p being the class proportions of the data, and then
    the class of each of its samples from `q_k`, without replacement. A class that runs out is left out of the mix, the
    rest of which is renormalised. Clients are served in random order; because all samples are used, the last ones get
    what is left. Every sample goes to exactly one client; sizes differ by at most one.

    The entries of `alpha · p` sum to alpha, as in the paper below. Codes that draw from Dir(a, ..., a) over C balanced
    classes mean alpha = a · C.

    Args:
        alpha: Concentration, positive: towards 0 clients hold one class each, for large values the classes of the data.
        clients: Number of clients N, at least 1.

    Returns:
        The partitioner, for `Dataset.partition`.

    Raises:
        ValueError: If `alpha` is not positive and finite or `clients` is below 1; on splitting, if there are fewer
            samples than clients.
        TypeError: If `alpha` is not a number, or `clients` not a whole one.

    References:
        Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
        Classification", arXiv:1909.06335, 2019.
    """
    return DirichletEqual(check_alpha("dirichlet_equal", alpha), check_whole("dirichlet_equal", "clients", clients))
