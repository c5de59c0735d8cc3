"""Partitions of given sizes, with uniform or skewed labels."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from jaxafl.data.partition.base import Partition, Rng, Users, cut, deal, require_samples, take
from jaxafl.data.targets import class_counts
from jaxafl.options import UserError, check_whole, number, static

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
        object.__setattr__(self, "sizes", tuple(check_whole("sizes", "sizes", size) for size in self.sizes))
        check_whole("sizes", "the number of sizes", len(self.sizes))
        super().__post_init__()
        if self.classes is not None and (self.alpha is not None or self.classes > min(self.sizes)):
            raise UserError(
                f"sizes: classes={self.classes} is invalid; expected no alpha, and at most {min(self.sizes)}"
            )

    def split(self, labels: np.ndarray, users: Users, rng: Rng) -> list[np.ndarray]:
        """Rows of each client; see `Partition.split`."""
        require_samples("sizes", 1, len(labels), sum(self.sizes))
        if self.alpha is not None:
            return deal(labels, class_counts("sizes", labels), np.array(self.sizes), self.alpha, rng)
        if self.classes is None:
            return cut(rng.permutation(len(labels)), np.array(self.sizes))
        for _ in range(_MAX_DRAWS):
            if (quotas := _quotas(self.sizes, self.classes, class_counts("sizes", labels), rng)) is not None:
                return take(labels, quotas, rng)
        raise UserError(
            f"sizes: classes={self.classes} are too small for {_written(self.sizes)}; expected more classes, or alpha"
        )

    @property
    def description(self) -> Mapping[str, str | int | float]:
        """Name, abbreviated sizes and skew, for result files."""
        said: dict[str, str | int | float] = {
            "partition": "sizes",
            "partition_clients": len(self.sizes),
            "partition_samples": sum(self.sizes),
            "partition_sizes": _written(self.sizes),
        }
        if self.alpha is not None:
            return said | {"partition_labels": "dirichlet", "partition_alpha": self.alpha}
        if self.classes is not None:
            return said | {"partition_labels": "classes", "partition_classes": self.classes}
        return said | {"partition_labels": "iid"}


def _quotas(sizes: Sequence[int], classes: int, counts: np.ndarray, rng: Rng) -> np.ndarray | None:
    """Draws the samples of each client and class, int `[N, C]`, exactly `classes` of them positive per client.

    Returns `None` if a client's classes hold too few samples.
    """
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
