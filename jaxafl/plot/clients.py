"""Accuracy of single clients: its spread over time, and its relation to the number of arrivals."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxafl.options import named
from jaxafl.plot.canvas import ImagePath, Limits, finish, one_member, panels_of, tidy
from jaxafl.results.clients import names_of, standard_interval, worst_tenth
from jaxafl.results.curves import Curve, falls, over_seeds, percent, scale_of
from jaxafl.results.tables.members import heading

_NAMED = 30  # names are drawn for at most this number of clients
_POINTS = 200  # points at which seeds are averaged


@named
def client_spread(
    result: xr.Dataset,
    ax: Axes | None = None,
    path: ImagePath = None,
    metric: str = "accuracy",
    *,
    xlim: Limits = None,
    ylim: Limits = None,
) -> Figure:
    """Draws the accuracy, or another metric, of single clients against simulated time.

    It shows the median, bands of 10 to 90 and 25 to 75 percent of the clients, and the mean of the worst 10 % (at least
    one client). Of several seeds, median and worst tenth have error bars of one standard deviation over seeds, and the
    edges of the bands are means over seeds.

    Args:
        result: the result of a run, or of a sweep over `seed` alone, with `diagnostics="per_client"`.
        ax: axes to draw into; `None` creates a figure.
        path: file of the figure (its ending sets the format); `None` saves nothing.
        metric: metric to draw in the place of accuracy, such as `"rmse"`; its direction decides what is worst.
        xlim, ylim: (low, high), limits of the axes in the units of the figure; `None` shows all.

    Returns:
        The figure.

    Raises:
        TypeError, ValueError: the result varies in more than the seed, or it lacks the metric of clients.
    """
    variable = f"client_{metric}"
    runs = _seeds(result, variable)
    scale = scale_of(metric)
    rising = not falls(runs, variable, "client_spread")
    found = [(one["eval_time"].values, scale * one[variable].dropna("population", how="all").values) for one in runs]

    summaries = [[Curve(at, one) for one in _summaries(values, rising)] for at, values in found]
    lines = [over_seeds(curves, _POINTS) for curves in zip(*summaries, strict=True)]
    figure, [ax] = panels_of(ax, 6.5, 4.2)
    for label, opacity, low, high in (("10 to 90", 0.15, 0, 4), ("25 to 75", 0.25, 1, 3)):
        label = f"{label} % of clients"
        ax.fill_between(*lines[low][:2], lines[high][1], color="#0072B2", alpha=opacity, linewidth=0, label=label)
    styles = {"median": ("#0072B2", "-", lines[2]), "worst 10 %": ("#D55E00", "--", lines[5])}
    for label, (colour, dashes, (at, mean, deviation)) in styles.items():
        ax.plot(at, mean, color=colour, linewidth=1.8, linestyle=dashes, label=label)
        if len(runs) > 1:
            few = max(1, len(at) // 12)
            ax.errorbar(at, mean, deviation, fmt="none", errorevery=few, ecolor=colour, elinewidth=1, capsize=2)
    ylabel = f"{metric} on their own samples{' (%)' * percent(metric)}, {found[0][1].shape[1]} clients"
    ax.set(xlabel="simulated time (s)", ylabel=ylabel, title=heading(result), xlim=(0, None))
    if percent(metric) or ax.dataLim.ymin >= 0:
        ax.set_ylim(0, None)
    ax.legend(frameon=False, fontsize=9, title=f"error bars: std of {len(runs)} seeds" if len(runs) > 1 else None)
    tidy(ax, xlim, ylim)
    return finish(figure, path)


@named
def accuracy_vs_participation(
    result: xr.Dataset,
    ax: Axes | None = None,
    path: ImagePath = None,
    *,
    xlim: Limits = None,
    ylim: Limits = None,
) -> Figure:
    """Draws the final accuracy of clients against their arrivals, coloured by the mean staleness of their updates.

    The figure shows if the server forgets rare or slow clients. The error bar of a single run is the score interval of
    the client's held-out samples n (`client_samples`) at one standard error, about ±√(p(1 - p)/n). Of several seeds,
    dots are means over seeds, and error bars are one standard deviation over seeds. Clients that never arrived are open
    circles. Up to 30 clients are labelled. Otherwise like `client_spread`.
    """
    runs = _seeds(result, "client_accuracy")
    final = np.stack([run["client_accuracy"].values[-1] for run in runs])
    known = np.isfinite(final).all(axis=0)
    final = final[:, known]
    samples = runs[0]["client_samples"].values[known]
    arrivals = np.array([run["participation"].values[known] for run in runs], float)
    stale = np.ma.masked_invalid([run["mean_staleness"].values[known] for run in runs]).mean(axis=0)
    x = arrivals.mean(axis=0)
    y = 100 * final.mean(axis=0)
    if len(runs) > 1:
        errors = {"xerr": arrivals.std(axis=0, ddof=1), "yerr": 100 * final.std(axis=0, ddof=1)}
        said = f"mean ± std of {len(runs)} seeds"
    else:
        low, high = (100 * edge for edge in standard_interval(final[0], samples))
        errors = {"yerr": np.maximum([y - low, high - y], 0)}
        said = "± standard error of the held-out samples"
    figure, [ax] = panels_of(ax, 7.2, 4.4)
    ax.errorbar(x, y, **errors, fmt="none", ecolor="0.6", elinewidth=0.8, zorder=1)
    never = np.ma.getmaskarray(stale)
    points = ax.scatter(x[~never], y[~never], c=stale[~never], s=80, cmap="viridis", zorder=2)
    if never.any():
        ax.scatter(x[never], y[never], s=80, facecolors="none", edgecolors="0.4", label="never arrived")
        ax.legend(frameon=False, fontsize=9)
    if len(x) <= _NAMED:
        for place, name in enumerate(np.asarray(names_of(runs[0]))[known]):
            ax.annotate(name, (x[place], y[place]), (5, 4), textcoords="offset points", fontsize=7, color="0.3")
    figure.colorbar(points, ax=ax, label="mean staleness of its updates")
    ax.set(xlabel="arrivals of the client", ylabel="accuracy on its own samples (%)")
    ax.set_title(heading(result, said), fontsize=10)
    ax.margins(0.08)
    tidy(ax, xlim, ylim)
    return finish(figure, path)


def _summaries(values: np.ndarray, rising: bool) -> list[np.ndarray]:
    """Returns five percentiles of the clients, and the mean of the worst tenth, each [evaluations]."""
    return [*np.percentile(values, [10, 25, 50, 75, 90], axis=1), worst_tenth(values, rising)]


def _seeds(result: xr.Dataset, variable: str) -> list[xr.Dataset]:
    """Returns the runs of a result that varies in nothing but the seed, and has a metric of clients, each up to its
    last evaluation: runs of several lengths are padded."""
    runs = one_member(result, variable, "participation").runs
    return [run.isel(evaluation=run[variable].notnull().any("population").values) for run in runs]
