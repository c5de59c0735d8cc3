"""Comparison of methods: median and quantile band over the seeds of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxafl.options import check_choice, named
from jaxafl.plot.canvas import (
    ImagePath,
    Limits,
    axis_name,
    curves_of,
    draw_line,
    finish,
    legend_beside,
    line_styles,
    panels_of,
    tidy,
)
from jaxafl.results.curves import AXES, percent, scale_of, to_its_end
from jaxafl.results.members import Results, finished_members, unfinished
from jaxafl.results.points import in_words


@named
def comparison(
    results: Results | Any,
    axis: str = "time",
    metric: str = "accuracy",
    band: tuple[float, float] = (0.25, 0.75),
    ax: Axes | None = None,
    path: ImagePath = None,
    *,
    xlim: Limits = None,
    ylim: Limits = None,
) -> Figure:
    """Draws a metric against its cost: the median over seeds, in a band between two quantiles.

    A run keeps the value of its last evaluation until the next, and until a limit of time that ended it. Lines and
    bands end with the shortest of the seeds.

    Args:
        results: a `Comparison`; or a result, a dict of results by name, or a sweep. The legend names the point of a
            comparison, and a vertical line marks it if it is on this axis.
        axis: `"time"` (simulated seconds), `"server_steps"`, `"client_updates"`, `"local_steps"` or `"bytes"`.
        metric: a metric of the evaluations; accuracies are in percent.
        band: two quantiles over the seeds.
        ax: axes to draw into; `None` creates a figure.
        path: file of the figure (its ending sets the format); `None` saves nothing.
        xlim, ylim: (low, high), limits of the axes in the units of the figure; `None` shows all.

    Returns:
        The figure.

    Raises:
        TypeError: these are not results.
        ValueError: the axis or metric is unknown, the band are no quantiles, or a run has no values.
    """
    check_choice("comparison", "axis", axis, tuple(AXES))
    low, high = band
    against = AXES[axis]
    at = getattr(results, "at", None) if hasattr(results, "differences") else None
    lines = finished_members(results, metric, against.variable)
    figure, [ax] = panels_of(ax, 8.5 if len(lines) > 1 else 6.5, 4.2)
    failed, shorter = 0, False
    for line, style in zip(lines, line_styles(len(lines)), strict=True):
        found = zip(line.runs, curves_of(line, against.variable, metric), strict=True)
        curves = [to_its_end(run, one, axis) for run, one in found]
        grid = np.unique(np.concatenate([one.at for one in curves]))
        start, end = max(one.at[0] for one in curves), min(one.at[-1] for one in curves)
        grid = grid[(grid >= start) & (grid <= end)]
        shorter |= max(one.at[-1] for one in curves) > grid[-1:].max(initial=-np.inf)
        values = np.stack([one.before(grid) for one in curves]) * scale_of(metric)
        bottom, median, top = np.quantile(values, [low, 0.5, high], axis=0)
        style |= {"label": f"{line.name or 'all'} ({len(curves)} seed{'s' * (len(curves) > 1)})"}
        failed += draw_line(ax, line, grid / against.scale, median, (bottom, top), drawstyle="steps-post", **style)
    shown = axis_name(metric)
    ax.set(xlabel=against.label, ylabel=f"{shown} (%)" if percent(metric) else shown, xlim=(0, None))
    tidy(ax, xlim, ylim)
    title = f"median, {100 * low:g} to {100 * high:g} % of seeds" + ("\nwhere all seeds have run" if shorter else "")
    title += f"\n{left}" if (left := unfinished(results)) else ""
    if at is not None:
        title += f"\ncompared {in_words(at)}"
    if isinstance(at, Mapping) and axis in at:
        ax.axvline(at[axis] / against.scale, color="0.4", linestyle=":", linewidth=1.2)
    legend_beside(ax, len(lines) + failed, title)
    return finish(figure, path)
