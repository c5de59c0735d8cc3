"""Histogram of the staleness of updates."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jaxafl.options import UserError, named
from jaxafl.plot.canvas import DASHES, ImagePath, finish_lines, panels_of, styled
from jaxafl.results.arrivals import staleness_of
from jaxafl.results.tables.members import Results, finished_members, heading

_BINS = 40


@named
def staleness_histogram(results: Results, ax: Axes | None = None, path: ImagePath = None) -> Figure:
    """Draws the share of arrivals in percent by staleness τ = t - s in server steps, over all seeds of a member.

    Several members are outlines. A bar covers one value of τ, or several if the largest τ is 40 or more.

    Args:
        results: a result, a dict of results by name, or a sweep.
        ax: axes to draw into; `None` creates a figure.
        path: file of the figure (its ending sets the format); `None` saves nothing.

    Returns:
        The figure.

    Raises:
        TypeError, ValueError: these are not results, or they have no arrivals.
    """
    found = finished_members(results, "staleness")
    arrivals = [staleness_of(member.runs) for member in found]
    every = np.concatenate(arrivals)
    if not every.size:
        which = ", ".join(member.name for member in found if member.name) or "this result"
        raise UserError(f"nobody arrived in {which}; there is no staleness to plot")
    worst = int(every.max())
    width = -(-(worst + 1) // _BINS)
    edges = np.arange(0, worst + width + 1, width) - 0.5
    figure, [ax] = panels_of(ax, 8.5, 4.2)
    for place, (values, (member, style)) in enumerate(zip(arrivals, styled(found), strict=True)):
        style.setdefault("linestyle", DASHES[place % 4])
        shares = 100 * np.histogram(values, edges)[0] / max(len(values), 1)
        said = f"mean {values.mean():.1f}, max {values.max():.0f}" if len(values) else "no arrivals"
        label = f"{member.name}: {said}".removeprefix(": ")
        ax.stairs(shares, edges, label=label, fill=len(found) == 1, linewidth=1.6, **style)
    ax.set(xlabel="staleness τ (server steps)", ylabel="arrivals (%)", title=heading(results))
    ax.set(xlim=(edges[0] - 0.1 * width, edges[-1]), ylim=(0, None))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return finish_lines(figure, ax, path, title="")
