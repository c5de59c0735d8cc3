"""Statistics of a partition as numbers and a table."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from jaxafl.data.form import Gather, gather_stored, stored_rows
from jaxafl.data.sources.traverse import Evaluate, traverse
from jaxafl.data.targets import quantile_bins, require_classes
from jaxafl.options import Summarised


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PartitionStatistics(Summarised):
    """Sizes and label histograms of a federated dataset.

    A sample that several clients hold (`iid_shared`) counts once for each of them.

    Attributes:
        name: name of the dataset.
        sizes: int64 `[N]`, training samples of each client.
        histogram: int32 `[N, C]`, training samples of each client and class (or quantile of the targets).
        names: str `[N]`, names of the clients; `None` if they have none.
        quantiles: True if columns of `histogram` are quantiles of the targets, False if they are classes.
    """

    name: str
    sizes: np.ndarray
    histogram: np.ndarray
    names: np.ndarray | None = None
    quantiles: bool = False

    @property
    def distances(self) -> np.ndarray:
        """Total-variation distance `1/2 sum_c |p_k(c) - p(c)|` of each client's labels to all labels, `[N]`.

        `p_k` is the label distribution of client k, and `p` that of all samples. The value is 0 if they are equal, and
        always below 1.
        """
        everyone = self.histogram.sum(0, dtype=np.int64) / self.sizes.sum()
        return 0.5 * np.abs(self.histogram / self.sizes[:, None] - everyone).sum(1)

    @property
    def heterogeneity(self) -> float:
        """Mean over clients of `distances`: 0 for identical label distributions."""
        return float(self.distances.mean())

    @property
    def classes(self) -> np.ndarray:
        """Number of classes (or quantiles) that each client holds, int64 `[N]`."""
        return (self.histogram > 0).sum(1)

    @property
    def _columns(self) -> str:
        return "quantiles" if self.quantiles else "classes"

    def summary(self) -> dict[str, Any]:
        """Returns clients, samples, spread of sizes and classes, and heterogeneity by name."""
        low, middle, high = np.quantile(self.sizes, [0, 0.5, 1])
        return {
            "name": self.name,
            "clients": len(self.sizes),
            "samples": int(self.sizes.sum()),
            "per_client": f"{low:.0f} to {high:.0f} (median {middle:g})",
            f"{self._columns}_per_client": f"{self.classes.min()} to {self.classes.max()}",
            "heterogeneity": round(self.heterogeneity, 3),
        }

    def table(self) -> Any:
        """Returns a table of pandas, a row per client: samples, classes, distance, and the samples of each class."""
        import pandas

        columns = {"samples": self.sizes, self._columns: self.classes, "distance": self.distances}
        columns |= {str(label): column for label, column in enumerate(self.histogram.T)}
        names = np.arange(len(self.sizes)) if self.names is None else self.names
        return pandas.DataFrame(columns, pandas.Index(names, name="client"))

    def __str__(self) -> str:
        return f"{self!r}\n{self.table().to_string(max_rows=20, max_cols=13, float_format='{:.3f}'.format)}"


def statistics_of(data: Any, quantiles: int | None) -> PartitionStatistics:
    """Computes what `FederatedData.statistics` returns."""
    if quantiles is None:
        require_classes(data.name, data.y_test)
    sizes = np.asarray(data.counts)
    if data.gather is gather_stored:
        clients = np.repeat(np.arange(data.num_clients), sizes)
        labels = data.arrays["y"][stored_rows(data.arrays, sizes)]
    else:
        found = traverse(_labels_only(data.gather), data.arrays, np.zeros_like(sizes), sizes)
        clients, _, labels = map(np.concatenate, zip(*found, strict=True))
    if quantiles is not None:
        labels = quantile_bins(data.name, labels, quantiles)
    histogram = np.zeros((data.num_clients, quantiles or data.num_classes or 0), np.int32)
    np.add.at(histogram, (clients, labels), 1)
    return PartitionStatistics(data.name, sizes, histogram, data.client_names, quantiles is not None)


@functools.lru_cache(maxsize=16)
def _labels_only(gather: Gather) -> Evaluate:
    """Returns a function of the labels that `gather` returns; cached, because each new function would compile again."""
    return lambda arrays, client, positions: gather(arrays, client, positions)[1]
