"""Accuracy of single clients: its spread over time, and its relation to the number of arrivals."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxafl.options import UserError, named
from jaxafl.plot.canvas import ImagePath, check_image_path, finish, panels_of, tidy
from jaxafl.results.clients import NAMES, names_of, worst_tenth
from jaxafl.results.members import heading, members

_NAMED = 30  # names are drawn for at most this number of clients
_BANDS = ((10, 90, 0.15), (25, 75, 0.25))  # percentiles, opacity


@named
def client_spread(result: xr.Dataset, ax: Axes | None = None, path: ImagePath = None) -> Figure:
    """Draws the accuracy of single clients against simulated time.

    It shows the median, bands of 10 to 90 and 25 to 75 percent of the clients, and the mean of the worst 10 % (at least
    one client).

    Args:
        result: the result of one run with `diagnostics="per_client"`.
        ax: axes to draw into; `None` creates a figure.
        path: file of the figure (its ending sets the format); `None` saves nothing.

    Returns:
        The figure.

    Raises:
        TypeError, ValueError: this is not the result of one run, or it has no accuracies of clients.
    """
    file = check_image_path(path)
    run = _one(result)
    accuracy = 100 * run["client_accuracy"].dropna("population", how="all").values
    time = run["eval_time"].values
    figure, [ax] = panels_of(ax, 6.5, 4.2)
    for low, high, opacity in _BANDS:
        band = np.percentile(accuracy, [low, high], axis=1)
        ax.fill_between(time, *band, color="#0072B2", alpha=opacity, linewidth=0, label=f"{low} to {high} %")
    ax.plot(time, np.median(accuracy, axis=1), color="#0072B2", linewidth=1.8, label="median")
    ax.plot(time, worst_tenth(accuracy), color="#D55E00", linewidth=1.8, linestyle="--", label="worst 10 % (mean)")
    label = f"accuracy on their own samples (%), {accuracy.shape[1]} clients"
    ax.set(xlabel="simulated time (s)", ylabel=label, title=heading(result), xlim=(0, None), ylim=(0, None))
    ax.legend(frameon=False, fontsize=9)
    tidy(ax)
    return finish(figure, file)


@named
def accuracy_vs_participation(result: xr.Dataset, ax: Axes | None = None, path: ImagePath = None) -> Figure:
    """Draws the final accuracy of clients against their arrivals, coloured by the mean staleness of their updates.

    The figure shows if the server forgets rare or slow clients. Otherwise like `client_spread`.
    """
    file = check_image_path(path)
    run = _one(result)
    run = run.isel(population=np.isfinite(run["client_accuracy"].values[-1]))
    arrivals, staleness = run["participation"].values, run["mean_staleness"].values
    accuracy = 100 * run["client_accuracy"].values[-1]
    figure, [ax] = panels_of(ax, 6.5, 4.2)
    never = ~np.isfinite(staleness)
    points = ax.scatter(arrivals[~never], accuracy[~never], c=staleness[~never], s=24, cmap="viridis", clip_on=False)
    if never.any():
        ax.scatter(arrivals[never], accuracy[never], s=28, facecolors="none", edgecolors="0.4", label="never arrived")
        ax.legend(frameon=False, fontsize=9)
    if NAMES in run.coords and len(accuracy) <= _NAMED:
        for x, y, name in zip(arrivals, accuracy, names_of(run), strict=True):
            ax.annotate(name, (x, y), (4, 3), textcoords="offset points", fontsize=7, color="0.3")
    figure.colorbar(points, ax=ax, label="mean staleness of its updates")
    label = "accuracy on its own samples (%)"
    ax.set(xlabel="arrivals of the client", ylabel=label, title=heading(result), xlim=(0, None), ylim=(0, None))
    tidy(ax)
    return finish(figure, file)


def _one(result: xr.Dataset) -> xr.Dataset:
    found = members(result, "client_accuracy", "participation")
    if len(found) != 1 or len(found[0].runs) != 1:
        runs = sum(len(member.runs) for member in found)
        raise UserError(f"this figure takes one run, got {runs}; choose one of a sweep, e.g. result.isel(seed=0)")
    return found[0].runs[0]
