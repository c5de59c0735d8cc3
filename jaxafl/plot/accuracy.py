"""Accuracy, or another metric, against simulated time, server steps and bytes."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from jaxafl.options import named
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
from jaxafl.results.curves import AXES, Axis, over_seeds, percent, scale_of
from jaxafl.results.members import Results, finished_members, heading

_BYTES = Axis("eval_bytes", "bytes sent, up and down")
_GRID = 400  # points at which the runs of different seeds are averaged


@named
def accuracy_vs_time(
    results: Results,
    ax: Axes | None = None,
    path: ImagePath = None,
    metric: str = "accuracy",
    *,
    xlim: Limits = None,
    ylim: Limits = None,
) -> Figure:
    """Draws test accuracy in percent against simulated time in seconds.

    Runs that differ only in their seed become one line, their mean, in a band of one standard deviation to each side.
    Their evaluations are interpolated over the time that all of them cover, because they come at different times. A
    cross marks the end of a line whose parameters stopped being finite.

    Args:
        results: a result, a dict of results by name, or a sweep: one line for each place of its axes but `seed`.
        ax: axes to draw into; `None` creates a figure.
        path: file of the figure (its ending sets the format); `None` saves nothing.
        metric: metric of the evaluations to draw in the place of accuracy, such as `"rmse"` of a regression.
        xlim, ylim: (low, high), limits of the axes in the units of the figure; `None` shows all. Either may be `None`.

    Returns:
        The figure.

    Raises:
        TypeError, ValueError: these are not results, or they lack the metric.
    """
    return _curves(AXES["time"], **locals())


@named
def accuracy_vs_steps(
    results: Results,
    ax: Axes | None = None,
    path: ImagePath = None,
    metric: str = "accuracy",
    *,
    xlim: Limits = None,
    ylim: Limits = None,
) -> Figure:
    """Draws test accuracy in percent against server steps; otherwise like `accuracy_vs_time`."""
    return _curves(AXES["server_steps"], **locals())


@named
def accuracy_vs_bytes(
    results: Results,
    ax: Axes | None = None,
    path: ImagePath = None,
    metric: str = "accuracy",
    *,
    xlim: Limits = None,
    ylim: Limits = None,
) -> Figure:
    """Draws test accuracy in percent against bytes sent, up and down; otherwise like `accuracy_vs_time`."""
    return _curves(_BYTES, **locals())


def _curves(
    against: Axis, results: Results, ax: Axes | None, path: ImagePath, metric: str, xlim: Limits, ylim: Limits
) -> Figure:
    lines = finished_members(results, metric, against.variable)
    figure, [ax] = panels_of(ax, 8.5 if len(lines) > 1 else 6.5, 4.2)
    failed = 0
    for line, style in zip(lines, line_styles(len(lines)), strict=True):
        at, mean, deviation = over_seeds(curves_of(line, against.variable, metric), _GRID, scale_of(metric))
        style["marker"] = "" if len(at) > 1 else "o"
        failed += draw_line(ax, line, at, mean, (mean - deviation, mean + deviation), label=line.name or "all", **style)
    units = lines[0].runs[0][metric].attrs.get("units", "1")
    said = " (%)" if percent(metric) else f" ({units})" if units != "1" else ""
    ax.set(xlabel=against.label, ylabel=f"{axis_name(metric)}{said}", title=heading(results), xlim=(0, None))
    if percent(metric) or ax.dataLim.ymin >= 0:
        ax.set_ylim(0, None)
    if against is _BYTES:
        ax.xaxis.set_major_formatter(EngFormatter("B"))
    tidy(ax, xlim, ylim)
    seeds = sorted({len(line.runs) for line in lines})
    if len(lines) > 1 or seeds != [1] or failed:
        header = f"mean ± std of {' or '.join(map(str, seeds))} seeds" if seeds != [1] else None
        legend_beside(ax, len(lines) + failed, header)
    return finish(figure, path)
