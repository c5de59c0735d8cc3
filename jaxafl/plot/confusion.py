"""Picture of a confusion matrix."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxafl.options import named
from jaxafl.plot.canvas import ImagePath, finish, one_member, panels_of
from jaxafl.results.tables.members import Results, heading

_WRITTEN = 20  # classes up to which shares are written into the cells


@named
def confusion(results: Results, ax: Axes | None = None, path: ImagePath = None) -> Figure:
    """Draws the share of each label's samples by predicted class in percent, at the last evaluation.

    Several seeds are added up, without failed runs. A label without samples has an empty row.

    Args:
        results: the result of a run, or of a sweep over seeds, with `metrics={"confusion": models.confusion_matrix}`.
        ax: axes to draw into; `None` creates a figure.
        path: file of the figure (its ending sets the format); `None` saves nothing.

    Returns:
        The figure.

    Raises:
        TypeError, ValueError: these are not results of one configuration, or they have no `confusion`.
    """
    runs = one_member(results, "confusion").runs
    counts = np.sum([run["final_confusion"].fillna(0).values for run in runs], axis=0)
    total = counts.sum(axis=1, keepdims=True)
    share = 100 * (counts / np.where(total > 0, total, np.nan))
    classes = len(share)
    figure, [ax] = panels_of(ax, 6.0, 5.0)
    image = ax.imshow(share, cmap="Blues", vmin=0, vmax=100)
    figure.colorbar(image, ax=ax, label="share of the label's samples (%)")
    if classes <= _WRITTEN:
        ax.set(xticks=range(classes), yticks=range(classes))
        for label, predicted in np.argwhere(share >= 0.5):
            value = share[label, predicted]
            colour = "white" if value > 60 else "black"
            ax.text(predicted, label, f"{value:.0f}", ha="center", va="center", fontsize=8, color=colour)
    ax.set(xlabel="predicted class", ylabel="label", title=heading(results))
    return finish(figure, path)
