"""Heat map of a final value over two swept options."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from jaxafl.options import UserError, check_choice, named
from jaxafl.plot.canvas import ImagePath, finish, panels_of
from jaxafl.results.curves import failed_steps, falls, scale_of
from jaxafl.results.tables.members import heading, members
from jaxafl.results.tables.text import decimals, header_of

_WRITTEN = 150  # numbers are written into at most this number of cells


@named
def heat_map(
    result: xr.Dataset,
    metric: str = "accuracy",
    *,
    rows: str | None = None,
    ax: Axes | None = None,
    path: ImagePath = None,
) -> Figure:
    """Draws the final value of a metric over two swept options: the mean over seeds, and ± one standard deviation.

    The best cell has a frame. A configuration with a failed or missing run is grey, since a mean without this run would
    be biased.

    Args:
        result: a sweep over two axes, and perhaps `seed`. Choose a value of a third axis by `result.isel(...)`.
        metric: metric of the evaluations, such as `"loss"`; accuracies are in percent.
        rows: the axis of the rows; by default the first.
        ax: axes to draw into; `None` creates a figure.
        path: file of the figure (its ending sets the format); `None` saves nothing.

    Returns:
        The figure.

    Raises:
        TypeError, ValueError: the result has not two axes, or no final value of the metric.

    Examples:
        >>> import jaxafl as afl
        >>> import numpy as np
        >>> import xarray as xr
        >>> axes = {"server.alpha": [0.3, 0.6], "client.learning_rate": [0.01, 0.1, 0.2], "seed": [0, 1]}
        >>> result = xr.Dataset({"final_loss": ([*axes], np.ones((2, 3, 2)))}, axes)  # as of afl.sweep(sim, axes)
        >>> figure = afl.plot.heat_map(result, "loss")
        >>> figure.axes[0].get_ylabel(), figure.axes[0].get_xlabel()
        ('server.alpha', 'client.learning_rate')
    """
    variable = f"final_{metric}"
    members(result, variable)  # raises if the result lacks it
    final = scale_of(metric) * result[variable].where(failed_steps(result) < 0)
    axes = [str(axis) for axis in final.dims if axis != "seed"]
    if len(axes) != 2:
        raise UserError(f"heat_map: the result varies in {', '.join(axes) or 'nothing'}; expected two swept options")
    if rows is not None:
        check_choice("heat_map", "rows", rows, tuple(axes))
        axes.sort(key=lambda axis: axis != rows)
    labels = [[value if isinstance(value, str) else f"{value:g}" for value in final[axis].values] for axis in axes]
    if "seed" not in final.dims:
        final = final.expand_dims("seed")
    values = final.transpose(*axes, "seed").values
    mean = values.mean(axis=2)
    seeds = values.shape[2]
    std = values.std(axis=2, ddof=1) if seeds > 1 else np.full_like(mean, np.nan)
    figure, [ax] = panels_of(ax, 2.8 + 0.95 * mean.shape[1], 1.6 + 0.5 * mean.shape[0])
    image = ax.imshow(np.ma.masked_invalid(mean), aspect="auto", cmap=colormaps["viridis"].with_extremes(bad="0.8"))
    ax.set_xticks(range(mean.shape[1]), labels[1])
    ax.set_yticks(range(mean.shape[0]), labels[0])
    known = mean[np.isfinite(mean)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
    places = decimals(list(std[np.isfinite(std)]) or [(high - low) / 10])
    if mean.size <= _WRITTEN:
        middle = (low + high) / 2
        for (row, column), one in np.ndenumerate(mean):
            spread = f"\n± {std[row, column]:.{places}f}" if np.isfinite(std[row, column]) else ""
            text = f"{one:.{places}f}{spread}" if np.isfinite(one) else "failed or\nmissing"
            colour = "white" if one < middle else "black"
            ax.text(column, row, text, ha="center", va="center", fontsize=8, color=colour)
    if known.size:
        best = np.nanargmin(mean) if falls(result, metric, "heat_map") else np.nanargmax(mean)
        row, column = np.unravel_index(best, mean.shape)
        ax.add_patch(Rectangle((column - 0.48, row - 0.48), 0.96, 0.96, fill=False, edgecolor="#D55E00", linewidth=2))
    figure.colorbar(image, ax=ax, label=f"final {header_of(metric)}")
    said = f"mean ± std of {seeds} seeds" if seeds > 1 else "one seed"
    ax.set(xlabel=axes[1], ylabel=axes[0])
    ax.set_title(heading(result, f"{said}, best framed"), fontsize=10)
    return finish(figure, path)
