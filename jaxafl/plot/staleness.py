"""Histogram of the staleness of updates."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jaxafl.options import UserError, named
from jaxafl.plot.canvas import ImagePath, finish, legend_beside, line_styles, panels_of, tidy
from jaxafl.results.arrivals import staleness_of
from jaxafl.results.members import Results, finished_members, heading

_BINS = 40
_PANELS = 8  # more members than this share one panel


@named
def staleness_histogram(results: Results, ax: Axes | None = None, path: ImagePath = None) -> Figure:
    """Draws the share of arrivals in percent by staleness τ = t - s in server steps, over all seeds of a member.

    Each member has a panel. More than eight members, or several drawn into given axes, are outlines in one panel. A bar
    covers one value of τ, or several if the largest τ is 40 or more.

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
    if not any(len(values) for values in arrivals):
        which = ", ".join(member.name for member in found if member.name) or "this result"
        raise UserError(f"nobody arrived in {which}; there is no staleness to plot")
    names = [f"{member.name}\n{_summary(values)}".strip() for member, values in zip(found, arrivals, strict=True)]
    styles = line_styles(len(found))
    worst = max(int(values.max()) for values in arrivals if len(values))
    width = -(-(worst + 1) // _BINS)
    edges = np.arange(0, worst + width + 1, width) - 0.5
    shares = [100 * np.histogram(values, edges)[0] / max(len(values), 1) for values in arrivals]
    if len(found) <= _PANELS:
        figure, panels = panels_of(ax, 7, 2.2 + 1.3 * len(found), len(found), sharex=True)
    else:
        figure, panels = panels_of(ax, 8.5, 4.2)
    if len(panels) == len(found):
        for panel, share, name, style in zip(panels, shares, names, styles, strict=True):
            panel.set_ylim(0, 1.4 * max(share.max(), 1))  # room for the text
            panel.bar(edges[:-1] + width / 2, share, 0.9 * width, color=style["color"])
            panel.text(0.99, 0.95, name, transform=panel.transAxes, ha="right", va="top", fontsize=9)
    else:
        for share, name, style in zip(shares, names, styles, strict=True):
            panels[0].stairs(share, edges, label=name.replace("\n", ": "), linewidth=1.6, **style)
        legend_beside(panels[0], len(found))
    for panel in panels:
        panel.set(ylabel="arrivals (%)", xlim=(edges[0] - 0.1 * width, edges[-1]))
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        tidy(panel)
    panels[-1].set_xlabel("staleness τ (server steps)")
    panels[0].set_title(heading(results))
    return finish(figure, path)


def _summary(staleness: np.ndarray) -> str:
    return f"mean {staleness.mean():.1f}, max {staleness.max():.0f}" if len(staleness) else "no arrivals"
