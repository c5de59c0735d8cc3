"""Partitions that ignore labels: equal parts, one shared pool, lognormal sizes, natural users."""

from __future__ import annotations

import numpy as np

from jaxafl.data.partition.base import Partition, Rng, Users, cut, require_samples, rows_of_each
from jaxafl.options import UserError, number, static


class by_user(Partition):
    """Partition by natural user (a writer, a speaker), one client per user.

    Nothing is random: clients are sorted by user id, and samples keep their order.

    Args:
        clients: number of users to keep, starting from the smallest id; by default all.

    Raises:
        ValueError: `clients` is below 1; on splitting, the dataset has no users or fewer than `clients`.
        TypeError: `clients` is not a whole number.
    """

    clients: int | None = static(default=None)

    def split(self, labels: np.ndarray, users: Users, rng: Rng) -> list[np.ndarray]:
        """Returns the rows of each client in their original order; see `Partition.split`."""
        if users is None:
            raise UserError("by_user: the dataset has no users; expected one per sample. Use iid or dirichlet")
        rows = rows_of_each(users)
        if self.clients is not None and self.clients > len(rows):
            raise UserError(f"by_user: clients={self.clients} is too large; expected at most {len(rows)}, the users")
        return rows[: self.clients]


class iid(Partition):
    """Partition of all samples, shuffled, into equal parts.

    Every sample goes to exactly one client; sizes differ by at most one.

    Args:
        clients: number of clients N, at least 1.

    Raises:
        ValueError: `clients` is below 1; on splitting, there are fewer samples than clients.
        TypeError: `clients` is not a whole number.
    """

    clients: int = static()

    def split(self, labels: np.ndarray, users: Users, rng: Rng) -> list[np.ndarray]:
        """Returns the rows of each client; see `Partition.split`."""
        require_samples("iid", self.clients, len(labels))
        return np.array_split(rng.permutation(len(labels)), self.clients)


class iid_shared(Partition):
    """One pool of samples that every client holds.

    Each sample of the pool belongs to all N clients, and statistics count it N times. Samples and rows are stored once.

    Args:
        clients: number of clients N, at least 1.
        samples: size of the pool, drawn from the training samples at random without replacement; `None` takes all.

    Raises:
        ValueError: `clients` or `samples` is below 1; on splitting, there are fewer samples than the pool needs.
        TypeError: `clients` or `samples` is not a whole number.

    References:
        "The impact analysis of delays in asynchronous federated learning with data heterogeneity for edge
        intelligence": four clients share 25,000 samples of MNIST.
    """

    clients: int = static()
    samples: int | None = static(default=None)

    def split(self, labels: np.ndarray, users: Users, rng: Rng) -> list[np.ndarray]:
        """Returns one array of rows for all clients; see `Partition.split`."""
        require_samples("iid_shared", 1, len(labels), self.samples or 0)
        return [rng.permutation(len(labels))[: self.samples].astype(np.int32)] * self.clients


class lognormal_sizes(Partition):
    """Partition of all samples, shuffled, into parts of lognormal size.

    Client k gets `min_size + (n - N · min_size) · w_k / sum(w)` samples, up to rounding, with `w_k` drawn from
    lognormal(0, sigma). Every sample goes to exactly one client. The mean of the lognormal cancels and is not an
    option.

    Args:
        clients: number of clients N, at least 1.
        sigma: standard deviation of log w_k, 0 or more: 0 gives equal sizes, 2 a heavy tail as in `synthetic`.
        min_size: minimum number of samples of every client, at least 1.

    Raises:
        ValueError: an option is out of range; on splitting, there are too few samples for `min_size`.
        TypeError: `sigma` is not a number, or `clients` or `min_size` is not a whole number.
    """

    clients: int = static()
    sigma: float = number(default=1.0, least=0)
    min_size: int = static(default=1)

    def split(self, labels: np.ndarray, users: Users, rng: Rng) -> list[np.ndarray]:
        """Returns the rows of each client; see `Partition.split`."""
        require_samples("lognormal_sizes", self.clients, len(labels), self.min_size)
        rest = len(labels) - self.clients * self.min_size
        normal = rng.normal(0.0, self.sigma, self.clients)
        weights = np.exp(normal - normal.max())  # exp overflows at large sigma otherwise; the shift cancels
        ends = np.floor(np.cumsum(weights) / weights.sum() * rest + 0.5).astype(np.int64)
        ends[-1] = rest
        return cut(rng.permutation(len(labels)), np.diff(ends, prepend=0) + self.min_size)
