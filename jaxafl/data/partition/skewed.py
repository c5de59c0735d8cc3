"""Partitions of skewed labels: Dirichlet shares, k classes per client, shards of the sorted samples."""

from __future__ import annotations

import copy

import numpy as np

from jaxafl.data.partition.base import (
    ClientRows,
    Partition,
    deal,
    dealt,
    dirichlet_mixes,
    parts,
    require_samples,
    shuffled,
    take,
)
from jaxafl.data.partition.sizes import equal_parts
from jaxafl.data.targets import class_counts, require_classes
from jaxafl.options import number, static

_MAX_DRAWS = 1000
# limits of the search for a working alpha, which the error names: draws per alpha, doublings, smallest doubled alpha
_TRIED = 20
_DOUBLINGS = 20
_SMALLEST = 1e-3
_MOST = 10**6  # draws × clients of the search per alpha


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

    def split(self, labels: np.ndarray, users: np.ndarray | None, rng: np.random.Generator) -> ClientRows:
        """Rows of each client; see `Partition.split`."""
        require_samples("dirichlet", self.clients, len(labels), self.min_size)
        again = copy.deepcopy(rng)
        quotas, largest = self._quotas(labels, rng, _MAX_DRAWS)
        if quotas is None:
            raise ValueError(
                f"dirichlet: in {_MAX_DRAWS} draws with alpha={self.alpha:g} and {self.clients} clients the smallest "
                f"client never held min_size={self.min_size} samples (at best {largest}). {self.remedy(labels, again)}"
                ", fewer clients or a smaller min_size."
            )
        return take(labels, quotas, rng)

    def remedy(self, labels: np.ndarray, rng: np.random.Generator) -> str:
        """Returns advice: the first of α, 2α, 4α ... that gives all clients enough samples, or `dirichlet_equal`."""
        least = max(1, self.min_size)
        alpha = self.alpha
        equal = f"dirichlet_equal({self.alpha:g}, {self.clients}), which gives all clients as many samples at any alpha"
        draws = max(1, min(_TRIED, _MOST // self.clients))
        for _ in range(_DOUBLINGS):
            other = dirichlet(alpha, self.clients, least)
            if other._quotas(labels, copy.deepcopy(rng), draws)[0] is not None:
                larger = "a larger alpha" if alpha > self.alpha else "more draws"
                return f"Use {larger}, dirichlet({alpha:g}, {self.clients}, min_size={least}), or {equal}"
            alpha = max(float(f"{2 * alpha:.2g}"), _SMALLEST)
        return f"Use {equal}"

    def _quotas(self, labels: np.ndarray, rng: np.random.Generator, draws: int) -> tuple[np.ndarray | None, int]:
        """Draws proportions until every client holds `min_size` samples.

        Returns:
            Samples of each client and class, int32 `[N, C]`, or `None` if all draws fail; and the largest size of the
            smallest client.
        """
        counts = class_counts("dirichlet", labels)
        largest = 0
        for _ in range(draws):
            quotas = np.empty((self.clients, len(counts)), np.int32)
            for of_class, count in zip(quotas.T, counts, strict=True):
                ends = np.cumsum(rng.dirichlet(np.full(self.clients, self.alpha)))
                ends *= count
                np.minimum(np.floor(ends, out=ends), count, out=ends)  # the sum may round to just above 1
                ends[-1] = count
                of_class[:] = np.diff(ends, prepend=0)
            largest = max(largest, int(quotas.sum(1).min()))
            if largest >= self.min_size:
                return quotas, largest
        return None, largest


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

    def split(self, labels: np.ndarray, users: np.ndarray | None, rng: np.random.Generator) -> ClientRows:
        """Rows of each client; see `Partition.split`."""
        require_samples("dirichlet_equal", self.clients, len(labels))
        counts = class_counts("dirichlet_equal", labels)
        sizes = np.full(self.clients, len(labels) // self.clients, np.int32)
        sizes[rng.permutation(self.clients)[: len(labels) % self.clients]] += 1
        return deal(labels, counts, sizes, dirichlet_mixes(self.alpha, counts, self.clients, rng), rng)


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

    def split(self, labels: np.ndarray, users: np.ndarray | None, rng: np.random.Generator) -> ClientRows:
        """Rows of each client; see `Partition.split`."""
        if labels.ndim != 1:  # numbers have an order, as classes do
            require_classes("shards", labels)
        amount = self.per_client * self.clients
        if amount > len(labels):
            raise ValueError(
                f"shards: {len(labels)} samples cannot be cut into {self.clients} × {self.per_client} shards; use "
                "fewer clients or fewer shards per client"
            )
        by_label = rng.permutation(len(labels)).astype(np.int32)
        by_label = by_label[np.argsort(labels[by_label], kind="stable")]
        sizes = parts(len(labels), amount).astype(np.int32)
        hands = rng.permutation(amount).astype(np.int32)  # shards in order of clients
        ends = np.cumsum(sizes, dtype=np.int32)[hands]
        dealt_out = sizes[hands]
        places = np.repeat(ends - np.cumsum(dealt_out, dtype=np.int32), dealt_out)
        places += np.arange(len(labels), dtype=np.int32)
        return shuffled(by_label[places], dealt_out.reshape(self.clients, -1).sum(1), rng)


class classes_per_client(Partition):
    """Partition in which every client holds exactly k classes, and every sample goes to exactly one client.

    Classes are assigned at random; their numbers of clients are as equal as possible. The shuffled samples of a class
    are dealt in equal parts to its clients.

    Args:
        k: classes per client, at least 1 and at most the number of classes in the data.
        clients: number of clients N; `k * clients` must be at least the number of classes.

    Raises:
        ValueError: `k` or `clients` is below 1; on splitting, the data has fewer than k classes or more than
            `k * clients`, or there are too few samples.
        TypeError: `k` or `clients` is not a whole number.
    """

    k: int = static()
    clients: int = static()

    def split(self, labels: np.ndarray, users: np.ndarray | None, rng: np.random.Generator) -> ClientRows:
        """Rows of each client; see `Partition.split`."""
        counts = class_counts("classes_per_client", labels)
        pieces = []
        sizes = np.zeros(self.clients, np.int32)
        for label, count, holding in zip(np.unique(labels), counts, self._assign(counts, rng).T, strict=True):
            holders, taken = rng.permutation(np.flatnonzero(holding)), parts(count, holding.sum())
            rows = rng.permutation(np.flatnonzero(labels == label))
            pieces.append((rows.astype(np.int32), holders.astype(np.int32), taken.astype(np.int32)))
            sizes[holders] += taken
        return dealt(pieces, sizes, rng)

    def _assign(self, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Assigns classes to clients, bool `[N, C]`: k per client, with as equal numbers of clients as possible.

        A class has at most one client per sample. Each client takes the k classes with most places left, with ties
        broken at random. Because places are as equal as possible, every client finds k classes.
        """
        classes = len(counts)
        if self.k > classes:
            raise ValueError(
                f"classes_per_client: k={self.k}, but the data has {classes} classes; use k={classes} or less"
            )
        if self.k * self.clients < classes:
            raise ValueError(
                f"classes_per_client: {self.clients} clients of {self.k} classes cannot hold all {classes} "
                f"classes; use at least {-(-classes // self.k)} clients or a larger k"
            )
        total, limits = self.k * self.clients, np.minimum(counts, self.clients)
        if total > limits.sum():
            raise ValueError(
                f"classes_per_client: {counts.sum()} samples (smallest class {counts.min()}) are too few to give "
                f"{self.clients} clients one sample of each of {self.k} classes; use fewer clients or a smaller k"
            )
        places = equal_parts(total, limits)
        places[rng.permutation(np.flatnonzero(places < limits))[: total - places.sum()]] += 1
        holders = np.zeros((self.clients, classes), bool)
        for client in range(self.clients):
            chosen = np.lexsort((rng.random(classes), -places))[: self.k]
            holders[client, chosen] = True
            places[chosen] -= 1
        return holders[rng.permutation(self.clients)]
