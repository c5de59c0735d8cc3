"""Measurements of runs against the bound of a theorem."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxafl.options import named
from jaxafl.plot.canvas import ImagePath, Limits, finish_lines, panels_of, styled
from jaxafl.results.curves import curve
from jaxafl.results.tables.members import Results, finished_members, heading

_NEEDS = {"mean_gradient_norm_squared": "gradient_norm_squared", "gap_of_average": "average_loss"}


@named
def bound(
    results: Results,
    bound: xr.Dataset,
    *,
    optimum: float = 0.0,
    ax: Axes | None = None,
    path: ImagePath = None,
    xlim: Limits = None,
    ylim: Limits = None,
) -> Figure:
    """Draws the mean over seeds of a bounded quantity, its bound and the terms of the bound, against server steps T.

    Bounds hold in expectation, so runs that differ only in their seed become one line. The legend notes if the bound is
    not guaranteed, if its conditions do not hold, and if it is vacuous.

    Args:
        results: a result, a dict of results by name, or a sweep, with the bounded quantity: recorded by
            `diagnostics="gradient_norm"`, of which the mean over server steps up to T is drawn, or by `"average"`.
        bound: a bound of several T, from `jaxafl.theory`.
        optimum: F*, subtracted from the loss of the running average.
        ax: axes to draw into; `None` creates a figure.
        path: file of the figure (its ending sets the format); `None` saves nothing.
        xlim, ylim: (low, high), limits of the axes in the units of the figure; `None` shows all.

    Returns:
        The figure.

    Raises:
        TypeError, ValueError: these are not results, or they lack the bounded quantity.
    """
    variable = _NEEDS[bound.attrs["quantity"]]
    lines = finished_members(results, variable)
    figure, [ax] = panels_of(ax, 9.5, 4.2)
    for line, style in styled(lines):
        steps, mean = _mean(line.runs, variable, optimum)
        seeds = f"mean of {len(line.runs)} seeds" if len(line.runs) > 1 else "one run"
        label = f"{line.name}, {seeds}".removeprefix(", ")
        ax.plot(steps, mean, label=label, linewidth=1.8, **style)
    terms = [*bound.drop_vars("total").data_vars]
    T = bound["server_steps"].values
    ax.plot(T, bound["total"], color="black", linewidth=1.8, label=_label(bound))
    for name, style in styled(terms):
        if (bound[name] > 0).any():
            label = f"{name}: {bound[name].attrs['long_name']}"
            ax.plot(T, bound[name], label=label, linewidth=1, **style | {"linestyle": ":"})
    ax.set(xlabel="server steps T", ylabel=bound.attrs["bounds"], title=heading(results), yscale="log")
    return finish_lines(figure, ax, path, xlim, ylim)


def _label(bound: xr.Dataset) -> str:
    doubts = [] if bound.attrs["guaranteed"] else ["not guaranteed"]
    doubts += [] if bound.attrs["holds"] else ["conditions violated"]
    doubts += ["vacuous"] if bound.attrs.get("verdict", "").startswith("vacuous:") else []
    return f"{bound.attrs['statement']}{' (' + ', '.join(doubts) + ')' if doubts else ''}"


def _mean(runs: list[xr.Dataset], variable: str, optimum: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns T and the mean over the runs, at the server steps at which all runs have a value."""
    if variable == "average_loss":
        curves = [curve(run, "eval_step", variable) for run in runs]
        gaps = [pd.Series(one.values - optimum, one.at) for one in curves]
        shared = pd.concat(gaps, axis=1, join="inner")
        return shared.index.values[1:], shared.values.mean(axis=1)[1:]
    values = np.mean([run[variable].values.astype(float) for run in runs], axis=0)
    T = np.arange(1, len(values) + 1)
    return T, np.cumsum(values) / T
