"""Interactive figures of a report, as data for its page: curves, values of the axes, arrivals and clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from jaxafl.plot.canvas import thin
from jaxafl.plot.report.lines import MANY, Lines, last, lower, metrics_of, scale_of
from jaxafl.results.arrivals import staleness_of
from jaxafl.results.clients import names_of
from jaxafl.results.curves import AXES, curve, over_seeds, percent, to_its_end
from jaxafl.results.points import in_words

_POINTS = 24_000  # most points of a metric's curves over all lines; phones draw more of them too slowly
_GRID = 60  # points at which the runs of different seeds are averaged
_BINS = 40
_BARS = 100  # at most this number of clients is shown as bars
_GROUPED = 3  # at most this number of lines is shown as grouped bars
_RANKS = 50  # points of a curve over ranked clients


class Series(NamedTuple):
    """Series of a figure: a line, bars or points.

    Attributes:
        line: index of its line in the report; -1 if it belongs to none.
        x, y: float [points]; bars have no x.
        low, high: limits of a band, or `None`.
        name: name in the legend, if it is not that of a line.
    """

    line: int
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    name: str = ""


class View(NamedTuple):
    """Content of a figure at one position of its switches.

    Attributes:
        kind: `"lines"`, `"bars"` or `"points"`.
        x, y: labels of the axes.
        series: the drawn series.
        says: a sentence with the main numbers.
        labels: names of the ticks 0, 1, ... of an x axis that is not numeric.
    """

    kind: str
    x: str
    y: str
    series: list[Series]
    says: str
    labels: list[str] | None = None


class Figure(NamedTuple):
    """Figure of a report.

    Attributes:
        key: id on the page.
        title: heading.
        lead: introductory sentence.
        switches: name -> key -> label.
        views: the keys of all switches, joined by `|` -> view.
    """

    key: str
    title: str
    lead: str
    switches: dict[str, dict[str, str]]
    views: dict[str, View]


def packed(figure: Figure, pool: dict[tuple[float | None, ...], int]) -> dict[str, Any]:
    """Returns a figure as JSON data for the page.

    Args:
        figure: the figure.
        pool: array -> its place, to which the arrays of the figure are added, rounded to six digits. Lines share their
            steps, and views their values.
    """

    def place(values: np.ndarray | None) -> int:
        return -1 if values is None else pool.setdefault(tuple(map(_short, values.tolist())), len(pool))

    def data(view: View) -> dict[str, Any]:
        series = [[line, name, *map(place, values)] for line, *values, name in view.series]
        return {name: getattr(view, name) for name in ("kind", "x", "y", "says", "labels")} | {"series": series}

    return {"key": figure.key, "views": {key: data(view) for key, view in figure.views.items()}}


def curves(lines: Lines) -> list[Figure]:
    """Returns the figure of metrics against their cost; none without evaluations."""
    metrics = metrics_of(lines)
    axes = {name: axis for name, axis in AXES.items() if all(axis.variable in line.runs[0].variables for line in lines)}
    views: dict[str, View] = {}
    for metric, label in metrics.items():
        for name, axis in axes.items():
            series = [one for place in range(len(lines)) if (one := _curve(lines, place, metric, name))]
            says = _ends(lines, series, metric)
            views[f"{metric}|{name}"] = View("lines", axis.label, label, series, says)
    metrics = {name: label for name, label in metrics.items() if views[f"{name}|{next(iter(axes))}"].series}
    if not metrics:
        return []
    seeds = max(len(line.runs) for line in lines)
    lead = "Every evaluated model. "
    if seeds > 1:
        lead += "Lines are means over seeds, bands one standard deviation to each side, where all seeds have run. "
    switches = {"Show": metrics, "Against": {name: axis.label for name, axis in axes.items()}}
    return [Figure("curves", "Curves", lead, switches, views)]


def by_axis(lines: Lines) -> list[Figure]:
    """Returns the figure of metrics by the values of each axis of a sweep; none without an axis of several values."""
    places = pd.DataFrame([line.place for line in lines])
    places = places.drop(columns="result", errors="ignore").fillna("")
    values = {str(axis): column.unique().tolist() for axis, column in places.items() if column.nunique() > 1}
    metrics = metrics_of(lines)
    metrics = {name: metrics[name] for name in metrics if any(np.isfinite(last(line, name)).any() for line in lines)}
    if not values or not metrics:
        return []
    views = {
        f"{metric}|{axis}": _by_value(lines, metric, label, axis, values[axis])
        for metric, label in metrics.items()
        for axis in values
    }
    lead = f"Values {in_words(lines[0].at)}. "
    lead += "The line is the mean over all runs with a value, in a band of one standard deviation."
    return [Figure("axes", "By the values of options", lead, {"Show": metrics, "By": {a: a for a in values}}, views)]


def staleness(lines: Lines) -> list[Figure]:
    """Returns the histogram of the staleness of updates; none without arrivals."""
    ages = [staleness_of(line.runs).astype(int) for line in lines]
    every = np.concatenate(ages)
    if not every.size:
        return []
    worst = every.max()
    width = -(-(worst + 1) // _BINS)
    bins = worst // width + 1
    labels = [str(at) if width == 1 else f"{at * width}–{(at + 1) * width - 1}" for at in range(bins)]
    series = [
        Series(place, np.arange(bins), 100 * np.bincount(age // width, minlength=bins) / age.size)
        for place, age in enumerate(ages)
        if age.size
    ]
    said = f"Mean {every.mean():.2f}, median {np.median(every):g}, at most {every.max():,}, of {every.size:,} updates."
    kind = "bars" if len(lines) <= _GROUPED else "lines"
    view = View(kind, "staleness (versions)", "share of updates (%)", series, said, labels)
    lead = "Staleness is the number of server steps between a client's download and its upload."
    return [Figure("staleness", "Staleness", lead, {}, {"": view})]


def participation(lines: Lines) -> list[Figure]:
    """Returns the arrivals of clients, of one line by client, else in decreasing order; none if a result lacks them."""
    if not all("participation" in line.runs[0].variables for line in lines):
        return []
    counts = [np.mean([run["participation"].values for run in line.runs], axis=0) for line in lines]
    every = np.concatenate(counts)
    says = f"{every.min():,.4g} to {every.max():,.4g} arrivals per client, {(every == 0).sum():,} clients never."
    if len(lines) > 1 or every.size > _BARS:
        series = []
        for place, values in enumerate(counts):
            chosen = thin(values.size, _RANKS)
            series.append(Series(place, chosen + 1.0, -np.sort(-values)[chosen]))
        view = View("lines", "clients, the one with most first", "arrivals", series, says)
    else:
        series = [Series(0, np.arange(every.size), every)]
        view = View("bars", "client", "arrivals", series, says, names_of(lines[0].runs[0]))
    lead = "How often the updates of each client arrived" + (", means over seeds." if len(lines[0].runs) > 1 else ".")
    return [Figure("participation", "Participation", lead, {}, {"": view})]


def spread(lines: Lines) -> list[Figure]:
    """Returns the spread of accuracy over the clients of one run; none for several runs, because curves show it."""
    runs = [run for line in lines for run in line.runs]
    if len(runs) != 1 or "client_accuracy" not in runs[0].variables:
        return []
    names = ["client_accuracy"]
    run = runs[0].dropna("population", how="all", subset=names).dropna("evaluation", subset=names)
    accuracy, time = 100 * run["client_accuracy"].values, run["eval_time"].values
    if not accuracy.size:
        return []
    low, median, high = np.percentile(accuracy, [10, 50, 90], axis=1)
    worst = 100 * run["clients_worst_accuracy"].values
    bands = [Series(-1, time, median, low, high, "median, band of 10 to 90 % of clients")]
    bands.append(Series(-1, time, worst, name="mean of the worst 10 %"))
    says = (
        f"At the end, half of the {accuracy.shape[1]:,} clients have at least {median[-1]:.1f} %; the worst 10 % have "
        f"{worst[-1]:.1f} % on average, the best client {accuracy[-1].max():.1f} %."
    )
    view = View("lines", AXES["time"].label, "accuracy on their own samples (%)", bands, says)
    lead = "Each client's model is the global one, tested on the samples that the client holds out."
    return [Figure("clients", "Spread over clients", lead, {}, {"": view})]


def _short(number: float) -> float | None:
    return float(f"{number:.6g}") if np.isfinite(number) else None


def _curve(lines: Lines, place: int, metric: str, axis: str) -> Series | None:
    """Returns the curve of a line; `None` if one of its runs has no values."""
    runs = [run for run in lines[place].runs if metric in run.variables]
    found = [curve(run, AXES[axis].variable, metric) for run in runs]
    points = max(40, min(400, _POINTS // len(lines)))
    if not found or not all(one.at.size for one in found):
        return None
    if len(found) > 1:
        found = [to_its_end(*one, axis) for one in zip(runs, found, strict=True)]
    at, mean, std = over_seeds(found, min(_GRID, points), scale_of(metric))
    if not at.size:
        return None
    chosen = thin(at.size, points)
    band = (mean - std, mean + std) if len(found) > 1 else ()
    return Series(place, at[chosen] / AXES[axis].scale, mean[chosen], *band)


def _ends(lines: Lines, series: Sequence[Series], metric: str) -> str:
    """Returns a sentence with the means over seeds at the point of comparison, which curves may not reach."""
    means = {lines[one.line].name: float(last(lines[one.line], metric).mean()) for one in series}
    means = {name: mean for name, mean in means.items() if np.isfinite(mean)}
    words = in_words(lines[0].at)
    if not means:
        return f"No line has a value of all its runs {words}."
    return f"{words[0].upper()}{words[1:]}: {listed(lines, means, metric)}"


def listed(lines: Lines, values: dict[str, float], metric: str) -> str:
    """Returns values in words, `FedAsync 80.1 %, FedBuff 78.2 %.`, best first; of many only the best and the worst.

    Args:
        lines: the lines of the report, which may say that lower is better; otherwise the highest comes first.
        values: name -> mean.
        metric: metric of the values.
    """
    falling = lower([run for line in lines for run in line.runs], metric)
    order = sorted(values, key=values.__getitem__, reverse=not falling)
    form = "{:.1f} %" if percent(metric) else "{:.4g}"
    said = [f"{name or 'the run'} {form.format(values[name])}" for name in order]
    if len(order) <= MANY:
        return ", ".join(said) + "."
    return f"{len(order):,} values from {said[0]} to {said[-1]}."


def _by_value(lines: Lines, metric: str, label: str, axis: str, values: list[str]) -> View:
    """Returns mean and standard deviation of a metric over the finished runs with each value of an axis."""
    numbers = []
    for line in lines:
        place = values.index(line.place.get(axis, ""))
        numbers += [(place, number) for number in last(line, metric)]
    runs = pd.DataFrame(numbers, columns=["place", "number"])
    finite = runs[np.isfinite(runs.number)]
    groups = finite.groupby("place").number
    mean, std = groups.mean(), groups.std().fillna(0.0)
    said = listed(lines, {values[place]: number for place, number in mean.items()}, metric)
    failed = len(runs) - len(finite)
    left = f" {failed:,} runs failed or have not run; they are left out." if failed else ""
    low, high = mean - std, mean + std
    series = Series(-1, mean.index.values, mean.values, low.values, high.values, "mean")
    labels = [value.removeprefix(f"{axis}=") for value in values]
    return View("points", axis, label, [series], f"Means {in_words(lines[0].at)}: {said}{left}", labels)
