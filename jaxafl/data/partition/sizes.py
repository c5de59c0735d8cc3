"""Partitions of given sizes, with uniform or skewed labels."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from jaxafl.data.partition.base import ClientRows, Partition, deal, dirichlet_mixes, take
from jaxafl.data.targets import class_counts
from jaxafl.options import check_whole, number, static

_MAX_DRAWS = 100
_MAX_GROUPS = 100


class sizes(Partition):
    """Partition into parts of given sizes, drawn at random without replacement.

    Samples beyond the sum of the sizes stay unused: `[10000, 5000, 5000, 5000]` takes 25,000 of MNIST's 60,000 samples.
    Labels are distributed as in the data, up to chance, or skewed in one of two ways:

    - `classes`: each client holds exactly this number of classes. They are drawn with probabilities proportional to
      the remaining samples, the largest client first. The client's samples are spread over them as equally as
      possible;
    - `alpha`: a mix of classes per client from Dir(alpha · p), as in `dirichlet_equal`.

    Args:
        sizes: samples of each client, at least 1 each.
        classes: classes per client, at least 1.
        alpha: concentration of the mix of classes, positive.

    Raises:
        ValueError: there are no sizes, one is below 1, or `classes` and `alpha` are both given or out of range; on
            splitting, there are too few samples, or too few of the classes.
        TypeError: `sizes` is not a list, or a size is not an integer.

    References:
        "The impact analysis of delays in asynchronous federated learning with data heterogeneity for edge
        intelligence", Table VI: 25,000 samples as 6250×4, 10000+5000×3 and 17500+2500×3.
    """

    sizes: Sequence[int] = static()
    classes: int | None = static(default=None)
    alpha: float | None = number(default=None, above=0)

    def __post_init__(self) -> None:
        if np.ndim(self.sizes) != 1:
            raise TypeError(
                f"sizes: a list of one size per client is needed, for example [600, 200, 200]; got {self.sizes!r}"
            )
        object.__setattr__(self, "sizes", tuple(check_whole("sizes", "each size", size) for size in self.sizes))
        check_whole("sizes", "the number of clients", len(self.sizes))
        super().__post_init__()
        if self.classes is not None and self.alpha is not None:
            raise ValueError(f"sizes: give classes or alpha, not both; got classes={self.classes}, alpha={self.alpha}")
        if self.classes is not None and self.classes > min(self.sizes):
            raise ValueError(f"sizes: a client of {min(self.sizes)} samples cannot hold {self.classes} classes")

    def split(self, labels: np.ndarray, users: np.ndarray | None, rng: np.random.Generator) -> ClientRows:
        """Rows of each client; see `Partition.split`."""
        total = sum(self.sizes)
        if total > len(labels):
            raise ValueError(
                f"sizes: {total} samples asked for together, but the data has {len(labels)} training samples"
            )
        if self.alpha is not None:
            counts = class_counts("sizes", labels)
            mixes = dirichlet_mixes(self.alpha, counts, len(self.sizes), rng)
            return deal(labels, counts, np.array(self.sizes), mixes, rng)
        if self.classes is not None:
            return take(labels, self._quotas(self.classes, class_counts("sizes", labels), rng), rng)
        return ClientRows(rng.permutation(len(labels))[:total], np.array(self.sizes))

    def _quotas(self, classes: int, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draws the samples of each client and class, int `[N, C]`, exactly `classes` of them positive per client."""
        if classes > len(counts):
            raise ValueError(
                f"sizes: classes={classes}, but the data has {len(counts)} classes; use classes={len(counts)} or less"
            )
        for _ in range(_MAX_DRAWS):
            if (quotas := _try_quotas(self.sizes, classes, counts, rng)) is not None:
                return quotas
        raise ValueError(
            f"sizes: in {_MAX_DRAWS} draws no {classes} classes per client had enough samples for sizes of "
            f"{_written(self.sizes)} (classes of the data hold {counts.min()} to {counts.max()}). Use more classes per "
            "client, smaller sizes, or alpha in the place of classes."
        )

    @property
    def description(self) -> Mapping[str, str | int | float]:
        """Name, abbreviated sizes and skew, for result files."""
        skew: dict[str, str | int | float] = {"partition_labels": "iid"}
        if self.alpha is not None:
            skew = {"partition_labels": "dirichlet", "partition_alpha": self.alpha}
        if self.classes is not None:
            skew = {"partition_labels": "classes", "partition_classes": self.classes}
        return {
            "partition": "sizes",
            "partition_clients": len(self.sizes),
            "partition_samples": sum(self.sizes),
            "partition_sizes": _written(self.sizes),
            **skew,
        }


def _try_quotas(sizes: Sequence[int], classes: int, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
    """Draws the samples of each client and class once; `None` if a client's classes hold too few samples."""
    quotas = np.zeros((len(sizes), len(counts)), np.int64)
    remaining = counts.copy()
    for client in np.argsort(sizes, kind="stable")[::-1]:
        if np.count_nonzero(remaining) < classes:
            return None
        chosen = rng.choice(len(counts), classes, replace=False, p=remaining / remaining.sum())
        if remaining[chosen].sum() < sizes[client]:
            return None
        parts = equal_parts(sizes[client], remaining[chosen])
        if missing := sizes[client] - parts.sum():  # the remainder goes to random classes
            parts[rng.permutation(np.flatnonzero(parts < remaining[chosen]))[:missing]] += 1
        quotas[client, chosen] = parts
        remaining -= quotas[client]
    return quotas


def equal_parts(total: int, limits: np.ndarray) -> np.ndarray:
    """Divides `total` into parts as equal as the limits allow.

    Parts below their limit are equal, so the sum may stay below `total` by less than the number of these parts.

    Args:
        total: the number to divide, at most the sum of the limits.
        limits: int `[n]`, maximum of each part.
    """
    parts = np.zeros_like(limits)
    while more := (total - parts.sum()) // max(np.count_nonzero(parts < limits), 1):
        parts = np.minimum(parts + more, limits)
    return parts


def _written(sizes: Sequence[int]) -> str:
    """Formats sizes as `10000+5000×3`, or as number and range if there are too many groups."""
    groups = [(size, len(list(group))) for size, group in itertools.groupby(sizes)]
    if len(groups) > _MAX_GROUPS:
        return f"{len(sizes)} sizes from {min(sizes)} to {max(sizes)}"
    return "+".join(f"{size}×{times}" if times > 1 else str(size) for size, times in groups)
