"""Statistics of a partition: who holds how much of what, as numbers, a table and a heat map."""

from __future__ import annotations

import dataclasses
import functools
import io
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxafl.data.traverse import traverse

if TYPE_CHECKING:
    import rich.table
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_MAX_ROWS = 500


@dataclasses.dataclass(frozen=True, eq=False)
class PartitionStatistics:
    """Sizes and label histograms of a federated dataset.

    A sample that several clients hold (`iid_shared`) counts once for each of them.

    Attributes:
        name: Name of the dataset.
        sizes: int64 `[N]`, training samples of each client.
        histogram: int64 `[N, C]`, training samples of each client and class.
    """

    name: str
    sizes: np.ndarray
    histogram: np.ndarray

    @property
    def distances(self) -> np.ndarray:
        """Total-variation distance `1/2 sum_c |p_k(c) - p(c)|` of each client's labels to all labels, `[N]`.

        `p_k` is the label distribution of client k and `p` that of all training samples together. 0 means the same
        mix as everyone, and the value stays below 1.
        """
        local = self.histogram / self.sizes[:, None]
        everyone = self.histogram.sum(0) / self.sizes.sum()
        return 0.5 * np.abs(local - everyone).sum(1)

    @property
    def heterogeneity(self) -> float:
        """Mean over clients of `distances`: 0 for identical label distributions."""
        return float(self.distances.mean())

    @property
    def classes(self) -> np.ndarray:
        """int64 `[N]`, number of classes of which each client holds at least one sample."""
        return (self.histogram > 0).sum(1)

    def summary(self) -> str:
        """One line: clients, samples, spread of sizes and classes, heterogeneity."""
        low, middle, high = np.quantile(self.sizes, [0, 0.5, 1])
        return (
            f"{self.name}: {len(self.sizes)} clients, {self.sizes.sum()} training samples; "
            f"per client {low:.0f} to {high:.0f} (median {middle:g}), {self.classes.min()} to {self.classes.max()} "
            f"classes; mean distance to the global label distribution {self.heterogeneity:.3f}"
        )

    def table(self, max_rows: int = 20, max_classes: int = 10) -> rich.table.Table:
        """A rich table with one row per client.

        Args:
            max_rows: Clients shown; the rest is said to be left out in the caption.
            max_classes: Class columns are shown up to this number of classes; beyond it, only how many classes each
                client holds.

        Returns:
            The table, for `rich.print`; `str(statistics)` is its plain text below `summary()`.
        """
        import rich.table

        shown = min(max_rows, len(self.sizes))
        with_classes = self.histogram.shape[1] <= max_classes
        left_out = "" if shown == len(self.sizes) else f"first {shown} of {len(self.sizes)} clients"
        table = rich.table.Table(title=f"{self.name}, training samples", caption=left_out or None)
        for column in ("client", "samples", "classes", "distance"):
            table.add_column(column, justify="right")
        for label in range(self.histogram.shape[1]) if with_classes else ():
            table.add_column(str(label), justify="right")
        for client in range(shown):
            row = [client, self.sizes[client], self.classes[client], f"{self.distances[client]:.3f}"]
            table.add_row(*map(str, row), *(map(str, self.histogram[client]) if with_classes else ()))
        return table

    def __str__(self) -> str:
        import rich.console

        text = io.StringIO()
        rich.console.Console(file=text, width=160, color_system=None).print(self.summary(), self.table())
        return text.getvalue()


def heat_map(statistics: PartitionStatistics, path: str | pathlib.Path | None = None, ax: Axes | None = None) -> Figure:
    """Draw samples per client and class as a heat map, with the samples per client beside it.

    Colours go by the square root of the number, so that small clients differ from empty ones. Of more than 500 clients
    a row is the mean of several neighbours; the title says of how many.

    Args:
        statistics: What `FederatedData.statistics()` returns.
        path: Where to save the figure (the suffix sets the format); `None` saves nothing.
        ax: Axes to draw the heat map into, without the bar chart; `None` makes a figure of its own.

    Returns:
        The figure.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, MaxNLocator

    clients, classes = statistics.histogram.shape
    if ax is None:
        figure = Figure(figsize=(2.5 + min(0.3 * classes, 9) + 2, 1.5 + min(max(0.22 * clients, 2), 9)))
        figure.set_layout_engine("constrained")
        ax, bars = figure.subplots(1, 2, sharey=True, width_ratios=[4, 1])
        # Steps, not bars, so that ten thousand clients draw as fast as ten.
        bars.fill_betweenx(np.arange(clients + 1) - 0.5, np.append(statistics.sizes, 0), step="post", color="0.5")
        bars.set(xlabel="samples", xlim=(0, None), title="per client")
        bars.xaxis.set_major_locator(MaxNLocator(2, integer=True))
        bars.xaxis.set_major_formatter(EngFormatter(sep=""))
        figure.suptitle(f"{statistics.name}, heterogeneity {statistics.heterogeneity:.3f}")
    else:
        found = ax.get_figure(root=True)
        if found is None:
            raise ValueError("ax belongs to no figure; make it with figure.subplots() or pass ax=None")
        figure = found
    rows, group = _rows(statistics.histogram)
    image = ax.imshow(
        rows,
        aspect="auto",
        cmap="viridis",
        interpolation="nearest",
        norm=PowerNorm(0.5, vmin=0),
        extent=(-0.5, classes - 0.5, len(rows) * group - 0.5, -0.5),
    )
    title = "samples per class" if group == 1 else f"samples per class, mean of {group} clients"
    ax.set(xlabel="class", ylabel="client", title=title, ylim=(clients - 0.5, -0.5))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    figure.colorbar(image, ax=ax, pad=0.02)
    if path is not None:
        figure.savefig(path, dpi=120)
    return figure


def _rows(histogram: np.ndarray) -> tuple[np.ndarray, int]:
    """Not more rows than pixels, which would leave clients out: the mean over groups of clients, and their size."""
    group = -(-len(histogram) // _MAX_ROWS)
    starts = np.arange(0, len(histogram), group)
    return np.add.reduceat(histogram, starts) / np.diff(starts, append=len(histogram))[:, None], group


def partition_statistics(
    name: str, num_classes: int, counts: np.ndarray, gather: Callable[[Any, Any, Any], tuple[Any, Any]], arrays: Any
) -> PartitionStatistics:
    """Count the labels of every client; generated data is generated once for it, so time grows with the samples."""
    histogram = np.zeros((len(counts), num_classes), np.int64)
    for client, _, y in traverse(_labels_only(gather), arrays, np.zeros_like(counts), counts):
        np.add.at(histogram, (client, y), 1)
    return PartitionStatistics(name, np.asarray(counts), histogram)


@functools.lru_cache(maxsize=16)
def _labels_only(gather: Callable[[Any, Any, Any], tuple[Any, Any]]) -> Callable[[Any, Any, Any], Any]:
    """The labels that `gather` returns, as one and the same function each time, so that it is compiled once."""
    return lambda arrays, client, positions: gather(arrays, client, positions)[1]
