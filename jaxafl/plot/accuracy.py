"""Accuracy against simulated time and against server steps."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, Formatter

from jaxafl.options import UserError, named, user_errors
from jaxafl.plot.canvas import (
    ImagePath,
    check_image_path,
    finish,
    legend_beside,
    line_styles,
    mark_failures,
    panels_of,
    tidy,
)  # fmt: skip
from jaxafl.results.members import Member, Results, heading, members

_GRID = 400  # points at which the runs of different seeds are averaged


@named
def accuracy_vs_time(results: Results, ax: Axes | None = None, path: ImagePath = None) -> Figure:
    """Test accuracy in percent against simulated time in seconds.

    Runs that differ in their seed only become one line, their mean, in a band of one standard deviation to each side.
    Their evaluations come at different times, so they are interpolated, over the time that all of them cover. A cross
    is where a line ends because parameters stopped being finite.

    Args:
        results: a result, a dict of results by name, or a sweep: one line for each member but `seed`.
        ax: axes to draw into; `None` makes a figure.
        path: where to save the figure (its ending sets the format); `None` saves nothing.

    Returns:
        The figure.

    Raises:
        TypeError, ValueError: these are no results, or they have no accuracy.
    """
    return _accuracy(results, "eval_time", "simulated time (s)", ax, path)


@named
def accuracy_vs_steps(results: Results, ax: Axes | None = None, path: ImagePath = None) -> Figure:
    """Test accuracy in percent against server steps; as `accuracy_vs_time` in everything else."""
    return _accuracy(results, "eval_step", "server steps", ax, path)


@named
def accuracy_vs_bytes(results: Results, ax: Axes | None = None, path: ImagePath = None) -> Figure:
    """Test accuracy in percent against bytes sent, up and down; as `accuracy_vs_time` in everything else."""
    return _accuracy(results, "eval_bytes", "bytes sent, up and down", ax, path, EngFormatter("B"))


def _accuracy(
    results: Results, against: str, axis_label: str, ax: Axes | None, path: ImagePath, unit: Formatter | None = None
) -> Figure:
    file = check_image_path(path)
    lines = members(results, "accuracy", against)
    figure, [ax] = panels_of(ax, 8.5 if len(lines) > 1 else 6.5, 4.2)
    labels, header = _legend(lines)
    failed = 0
    for line, label, style in zip(lines, labels, line_styles(len(lines)), strict=True):
        with user_errors(line.name):
            at, mean, deviation = _mean(line.runs, against)
        ax.plot(at, mean, label=label, linewidth=1.8, marker="" if len(at) > 1 else "o", **style)
        failed += mark_failures(ax, line, at, mean, style["color"])
        if len(line.runs) > 1:
            ax.fill_between(at, mean - deviation, mean + deviation, color=style["color"], alpha=0.15, linewidth=0)
    ax.set(xlabel=axis_label, ylabel="test accuracy (%)", title=heading(results), xlim=(0, None), ylim=(0, None))
    if unit is not None:
        ax.xaxis.set_major_formatter(unit)
    tidy(ax)
    if len(lines) > 1 or header or failed:
        legend_beside(ax, len(lines) + failed, header)
    return finish(figure, file)


def _legend(lines: list[Member]) -> tuple[list[str], str | None]:
    """The labels of the lines and the header over them; lines of unlike numbers of seeds each name theirs."""
    names = [line.name or "all" for line in lines]
    seeds = [len(line.runs) for line in lines]
    if set(seeds) == {1}:
        return names, None
    if len(set(seeds)) == 1:
        return names, f"mean ± std of {seeds[0]} seeds"
    counted = [f"{name} ({count} seed{'s' * (count > 1)})" for name, count in zip(names, seeds, strict=True)]
    return counted, "mean ± std over seeds"


def _mean(runs: list[xr.Dataset], against: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where, mean and standard deviation over the runs, in percent."""
    curves = [_curve(run, against) for run in runs]
    if len(curves) == 1:
        at, values = curves[0]
        return at, values, np.zeros_like(values)
    begin, end = max(at[0] for at, _ in curves), min(at[-1] for at, _ in curves)
    at = np.linspace(begin, end, _GRID)
    values = np.stack([np.interp(at, *curve) for curve in curves])
    return at, values.mean(axis=0), values.std(axis=0, ddof=1)


def _curve(run: xr.Dataset, against: str) -> tuple[np.ndarray, np.ndarray]:
    """The evaluations of one run; a shorter run in a sweep, or one that failed, has no accuracy at the end."""
    accuracy = run["accuracy"].values
    made = np.isfinite(accuracy)
    if not made.any():
        raise UserError("a result has no evaluation with a finite accuracy; there is nothing to plot")
    return run[against].values[made].astype(float), 100 * accuracy[made]
