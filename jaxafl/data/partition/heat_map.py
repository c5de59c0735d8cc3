"""The heat map of a partition."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxafl.data.partition.statistics import PartitionStatistics
from jaxafl.readers.replacing import replacing

if TYPE_CHECKING:  # imported at run time, they would slow down `import jaxafl.data`
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAMED = 60  # with more clients, their names would overlap


def heat_map(statistics: PartitionStatistics, path: str | pathlib.Path | None = None, ax: Axes | None = None) -> Figure:
    """Draws samples per client and class as a heat map, next to a bar chart of samples per client.

    Colours are proportional to the square root of the number, so that small clients
    differ from empty ones. With more clients than pixels, a row of pixels is the mean of several neighbours.

    Args:
        statistics: result of `FederatedData.statistics()`.
        path: file to save the figure to (the suffix sets the format); `None` saves nothing.
        ax: axes for the heat map, without the bar chart; `None` creates a new figure.

    Returns:
        The figure.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.ticker import EngFormatter, MaxNLocator

    from jaxafl.data.partition.picture import Picture

    clients, classes = statistics.histogram.shape
    if ax is None:
        figure = Picture(2.5 + min(0.3 * classes, 9) + 2, 1.5 + min(max(0.22 * clients, 2), 9))
        ax, bars = figure.subplots(1, 2, sharey=True, width_ratios=[4, 1])
        bars.fill_betweenx(np.arange(clients + 1) - 0.5, np.append(statistics.sizes, 0), step="post", color="0.5")
        bars.set(xlabel="samples", xlim=(0, None), title="per client")
        bars.xaxis.set_major_locator(MaxNLocator(2, integer=True))
        bars.xaxis.set_major_formatter(EngFormatter(sep=""))
        figure.suptitle(f"{statistics.name}, heterogeneity {statistics.heterogeneity:.3f}")
    # Matplotlib averages rows if there are more of them than pixels, so that the image skips no client.
    image = ax.imshow(statistics.histogram, aspect="auto", cmap="viridis", norm=PowerNorm(0.5, vmin=0))
    column = "quantile of the target" if statistics.quantiles else "class"
    ax.set(xlabel=column, ylabel="client", title=f"samples per {column}")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if statistics.names is not None and clients <= _NAMED:
        ax.set_yticks(range(clients), statistics.names)
    drawn: Any = ax.figure
    drawn.colorbar(image, ax=ax, pad=0.02)
    if path is not None:
        with replacing(path) as unfinished:
            drawn.savefig(unfinished, dpi=120)
    return drawn
