"""Curves of metrics against their costs, and of ε against simulated time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from jaxafl.options import UserError, check_choice, named
from jaxafl.plot.canvas import ImagePath, Limits, curves_of, draw_line, finish_lines, label_of, panels_of, styled
from jaxafl.results.curves import AXES, Axis, over_seeds, percent, scale_of, to_its_end
from jaxafl.results.points import in_words
from jaxafl.results.tables.members import Results, finished_members, heading, unfinished

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
    for line, style in styled(lines):
        at, mean, deviation = over_seeds(curves_of(line, against.variable, metric), _GRID, scale_of(metric))
        style["marker"] = "" if len(at) > 1 else "o"
        label = (line.name or "all") + ("" if at.size else " (seeds do not overlap)")
        draw_line(ax, line, at, mean, (mean - deviation, mean + deviation), label=label, **style)
    units = lines[0].runs[0][metric].attrs.get("units", "1")
    ax.set(xlabel=against.label, ylabel=label_of(metric, units), title=heading(results), xlim=(0, None))
    if percent(metric) or ax.dataLim.ymin >= 0:
        ax.set_ylim(0, None)
    if against is _BYTES:
        ax.xaxis.set_major_formatter(EngFormatter("B"))
    seeds = sorted({len(line.runs) for line in lines})
    title = f"mean ± std of {' or '.join(map(str, seeds))} seeds" if seeds != [1] else None
    return finish_lines(figure, ax, path, xlim, ylim, title)


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
    shorter = False
    for line, style in styled(lines):
        found = zip(line.runs, curves_of(line, against.variable, metric), strict=True)
        curves = [to_its_end(run, one, axis) for run, one in found]
        grid = np.unique(np.concatenate([one.at for one in curves]))
        values = np.stack([one.before(grid) for one in curves]) * scale_of(metric)
        shared = np.all(np.isfinite(values), axis=0)  # where all seeds have run
        shorter |= not shared[-1]
        bottom, median, top = np.quantile(values[:, shared], [low, 0.5, high], axis=0)
        style |= {"label": f"{line.name or 'all'} ({len(curves)} seed{'s' * (len(curves) > 1)})"}
        draw_line(ax, line, grid[shared] / against.scale, median, (bottom, top), drawstyle="steps-post", **style)
    ax.set(xlabel=against.label, ylabel=label_of(metric), xlim=(0, None))
    title = f"median, {100 * low:g} to {100 * high:g} % of seeds" + ("\nwhere all seeds have run" if shorter else "")
    title += f"\n{left}" if (left := unfinished(results)) else ""
    if at is not None:
        title += f"\ncompared {in_words(at)}"
    if isinstance(at, Mapping) and axis in at:
        ax.axvline(at[axis] / against.scale, color="0.4", linestyle=":", linewidth=1.2)
    return finish_lines(figure, ax, path, xlim, ylim, title)


@named
def epsilon_vs_time(privacy: Any, ax: Axes | None = None, path: ImagePath = None) -> Figure:
    """Draws the largest ε of a client so far against simulated time in seconds.

    Args:
        privacy: what `Schedule.privacy` or `result.privacy` returns, or a dict of these by name: a line for each.
        ax: axes to draw into; `None` creates a figure.
        path: file of the figure (its ending sets the format); `None` saves nothing.

    Returns:
        The figure.

    Raises:
        ValueError: their δ differ.
    """
    found = dict(privacy) if isinstance(privacy, Mapping) and "max_epsilon" not in privacy else {"": privacy}
    deltas = sorted({one.attrs["delta"] for one in found.values()})
    if len(deltas) != 1:
        raise UserError(f"epsilon_vs_time: δ differs, {deltas}; expected one δ. Compute all with the same delta=")
    figure, [ax] = panels_of(ax, 8.5 if len(found) > 1 else 6.5, 4.2)
    for (name, one), style in styled(found.items()):
        ax.plot(one["time"], one["max_epsilon"], drawstyle="steps-post", linewidth=1.8, label=name, **style)
    ax.set(xlabel="simulated time (s)", ylabel=f"largest ε of a client (δ = {deltas[0]:g})", xlim=(0, None))
    ax.set_ylim(0, None)
    return finish_lines(figure, ax, path)
