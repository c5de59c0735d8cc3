"""Partitions of skewed labels: Dirichlet shares, k classes per client, shards of the sorted samples."""

from __future__ import annotations

import numpy as np

from jaxafl.data.partition.base import Partition, Rng, Users, deal, dealt, require_samples, shuffled, take
from jaxafl.data.partition.sizes import equal_parts
from jaxafl.data.targets import class_counts, require_classes
from jaxafl.options import UserError, number, static

_MAX_DRAWS = 1000


class dirichlet(Partition):
    """Partition of every class in proportions drawn from a symmetric Dirichlet distribution.

    For each class c draw `p_c ~ Dir(alpha, ..., alpha)` over the N clients, shuffle the n_c samples of the class and
    cut them at `floor(n_c * cumsum(p_c))`. The remainder goes to the last client. Each client's samples are then
    shuffled. Every sample goes to exactly one client.

    Args:
        alpha: concentration, positive: small values give each client few classes, large values approach `iid`.
        clients: number of clients N, at least 1.
        min_size: draw all proportions again, up to 1000 times, until every client holds at least this many samples.
            With the default 0 the first draw counts, and a draw that leaves clients empty is an error.

    Raises:
        ValueError: `alpha` is not positive and finite, `clients` is below 1 or `min_size` is negative; on splitting,
            no draw satisfies `min_size`, or clients are left without samples.
        TypeError: `alpha` is not a number, or `clients` or `min_size` is not a whole number.

    References:
        Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
        Classification", arXiv:1909.06335, 2019; per class over clients as in Yurochkin et al., "Bayesian
        Nonparametric Federated Learning of Neural Networks", ICML 2019.
    """

    alpha: float = number(above=0)
    clients: int = static()
    min_size: int = static(default=0, least=0)

    def split(self, labels: np.ndarray, users: Users, rng: Rng) -> list[np.ndarray]:
        """Rows of each client; see `Partition.split`."""
        require_samples("dirichlet", self.clients, len(labels), self.min_size)
        counts = class_counts("dirichlet", labels)
        for _ in range(_MAX_DRAWS):
            quotas = _dirichlet_parts(self.alpha, self.clients, counts, rng)
            if quotas.sum(1).min() >= self.min_size:
                return take(labels, quotas, rng)
        raise UserError(
            f"dirichlet: min_size={self.min_size} was not reached in {_MAX_DRAWS} draws of {self.clients} clients with "
            f"alpha={self.alpha:g}. Use a larger alpha, fewer clients, or dirichlet_equal, where all get equal parts"
        )


def _dirichlet_parts(alpha: float, clients: int, counts: np.ndarray, rng: Rng) -> np.ndarray:
    """Divides n_c samples of each class over N clients in proportions from Dir(α, ..., α), int32 [N, C]."""
    shares = rng.dirichlet(np.full(clients, alpha), len(counts))
    ends = np.minimum(np.floor(np.cumsum(shares, axis=1).T * counts), counts)  # a sum may be just above 1
    ends[-1] = counts
    return np.diff(ends, axis=0, prepend=0).astype(np.int32)


class dirichlet_equal(Partition):
    """Partition into equal sizes, with a mix of classes per client drawn from a Dirichlet distribution.

    For each client k draw a mix of classes `q_k ~ Dir(alpha · p)`, with p the class proportions of the data, and then
    the class of each of its samples from `q_k`, without replacement. An exhausted class is removed from the mix, and
    the rest is renormalised. Clients are served in random order. Because all samples are used, the last clients get the
    remaining ones. Every sample goes to exactly one client; sizes differ by at most one.

    The entries of `alpha · p` sum to alpha, as in the paper below. Codes that draw from Dir(a, ..., a) over C balanced
    classes mean alpha = a · C.

    Args:
        alpha: concentration, positive: near 0 clients hold one class each, and large values give the mix of the data.
        clients: number of clients N, at least 1.

    Raises:
        ValueError: `alpha` is not positive and finite or `clients` is below 1; on splitting, there are fewer samples
            than clients.
        TypeError: `alpha` is not a number, or `clients` is not a whole number.

    References:
        Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
        Classification", arXiv:1909.06335, 2019.
    """

    alpha: float = number(above=0)
    clients: int = static()

    def split(self, labels: np.ndarray, users: Users, rng: Rng) -> list[np.ndarray]:
        """Rows of each client; see `Partition.split`."""
        require_samples("dirichlet_equal", self.clients, len(labels))
        counts = class_counts("dirichlet_equal", labels)
        sizes = np.full(self.clients, len(labels) // self.clients)
        sizes[rng.permutation(self.clients)[: len(labels) % self.clients]] += 1
        return deal(labels, counts, sizes, self.alpha, rng)


class shards(Partition):
    """Partition into equal shards of the samples sorted by label, several random shards per client.

    The samples of a class are shuffled first. Sizes of shards differ by at most one, and every sample goes to exactly
    one client. A shard may span two classes, and a client may draw two shards of one class. For exactly k classes use
    `classes_per_client`.

    Args:
        per_client: shards per client, at least 1.
        clients: number of clients N, at least 1.

    Raises:
        ValueError: `per_client` or `clients` is below 1; on splitting, there are fewer samples than shards.
        TypeError: `per_client` or `clients` is not a whole number.

    References:
        McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017,
        Section 3: MNIST in 200 shards, two for each of 100 clients.
    """

    per_client: int = static()
    clients: int = static()

    def split(self, labels: np.ndarray, users: Users, rng: Rng) -> list[np.ndarray]:
        """Rows of each client; see `Partition.split`."""
        if labels.ndim != 1:  # numbers have an order, as classes do
            require_classes("shards", labels)
        amount = self.per_client * self.clients
        require_samples("shards", amount, len(labels))
        by_label = rng.permutation(len(labels)).astype(np.int32)
        by_label = by_label[np.argsort(labels[by_label], kind="stable")]
        pieces = np.array_split(by_label, amount)
        hands = [pieces[shard] for shard in rng.permutation(amount)]  # shards in order of clients
        sizes = np.array([len(shard) for shard in hands]).reshape(self.clients, -1).sum(1)
        return shuffled(np.concatenate(hands), sizes, rng)


class classes_per_client(Partition):
    """Partition in which every client holds exactly k classes, and every sample goes to exactly one client.

    Classes are assigned at random; their numbers of clients are as equal as possible. The shuffled samples of a class
    are dealt in equal parts to its clients, or with `alpha` in proportions drawn from Dir(alpha, ..., alpha)
    (Extended Dirichlet), in which a client may get none of them.

    Args:
        k: classes per client, at least 1 and at most the number of classes in the data.
        clients: number of clients N; `k * clients` must be at least the number of classes.
        alpha: concentration of the proportions, positive; `None` for equal parts.

    Raises:
        ValueError: `k` or `clients` is below 1; on splitting, the data has fewer than k classes or more than
            `k * clients`, or there are too few samples.
        TypeError: `k` or `clients` is not a whole number.

    References:
        Li and Lyu, "Convergence analysis of sequential federated learning on heterogeneous data" (Extended Dirichlet),
        NeurIPS 2023.
    """

    k: int = static()
    clients: int = static()
    alpha: float | None = number(default=None, above=0)

    def split(self, labels: np.ndarray, users: Users, rng: Rng) -> list[np.ndarray]:
        """Rows of each client; see `Partition.split`."""
        counts = class_counts("classes_per_client", labels)
        pieces = []
        sizes = np.zeros(self.clients, np.int64)
        for label, count, holding in zip(np.unique(labels), counts, self._assign(counts, rng).T, strict=True):
            holders = rng.permutation(np.flatnonzero(holding))
            taken = np.bincount(np.arange(count) % holding.sum())
            if self.alpha is not None:
                taken = _dirichlet_parts(self.alpha, len(holders), np.array([count]), rng)[:, 0]
            rows = rng.permutation(np.flatnonzero(labels == label))
            pieces.append((rows, holders, taken))
            sizes[holders] += taken
        return dealt(pieces, sizes, rng)

    def _assign(self, counts: np.ndarray, rng: Rng) -> np.ndarray:
        """Assigns classes to clients, bool `[N, C]`: k per client, with as equal numbers of clients as possible.

        A class has at most one client per sample. Each client takes the k classes with most places left, with ties
        broken at random. Because places are as equal as possible, every client finds k classes.
        """
        classes = len(counts)
        total, limits = self.k * self.clients, np.minimum(counts, self.clients)
        if not (self.k <= classes <= total <= limits.sum()):
            raise UserError(
                f"classes_per_client: {self.clients} clients with k={self.k} classes do not fit classes of {counts} "
                f"samples; expected k <= {classes}, the classes, and {classes} to {limits.sum()} for k times clients"
            )
        places = equal_parts(total, limits)
        places[rng.permutation(np.flatnonzero(places < limits))[: total - places.sum()]] += 1
        holders = np.zeros((self.clients, classes), bool)
        for client in range(self.clients):
            chosen = np.lexsort((rng.random(classes), -places))[: self.k]
            holders[client, chosen] = True
            places[chosen] -= 1
        return holders[rng.permutation(self.clients)]
