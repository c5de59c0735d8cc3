"""Interactive figures of a report, as data for its page: curves, and members by values of the axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxafl.plot.report.lines import MANY, Lines, amount, last, lower, metrics_of, scale_of
from jaxafl.results.curves import AXES, curve, over_seeds, to_its_end
from jaxafl.results.points import in_words

_POINTS = 24_000  # most points of a metric's curves over all lines; phones draw more of them too slowly
_GRID = 60  # points at which the runs of different seeds are averaged


class Series(NamedTuple):
    """Series of a figure: a line, bars or points.

    Attributes:
        line: index of its line in the report; -1 if it belongs to none.
        name: name in the legend.
        x, y: float [points]; bars have no x.
        low, high: limits of a band, or `None`.
    """

    line: int
    name: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


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
        series = [[one.line, one.name if one.line < 0 else "", *map(place, one[2:])] for one in view.series]
        return {name: getattr(view, name) for name in ("kind", "x", "y", "says", "labels")} | {"series": series}

    return {"key": figure.key, "views": {key: data(view) for key, view in figure.views.items()}}


def curves(lines: Lines) -> list[Figure]:
    """Returns the figure of metrics against their cost; none without evaluations."""
    metrics = metrics_of(lines)
    axes = {name: axis for name, axis in AXES.items() if all(axis.variable in line.runs[0].variables for line in lines)}
    views: dict[str, View] = {}
    for metric, label in metrics.items():
        for name, axis in axes.items():
            found = [_curve(lines, place, metric, name) for place in range(len(lines))]
            series = [one._replace(x=one.x / axis.scale) for one in found if one is not None]
            says = _ends(lines, series, metric)
            views[f"{metric}|{name}"] = View("lines", axis.label, label, series, says)
    if not any(view.series for view in views.values()):
        return []
    metrics = {name: label for name, label in metrics.items() if views[f"{name}|{next(iter(axes))}"].series}
    seeds = max(len(line.runs) for line in lines)
    lead = "Every evaluated model. "
    if seeds > 1:
        lead += "Lines are means over seeds, bands one standard deviation to each side, where all seeds have run. "
    switches = {"Show": metrics, "Against": {name: axis.label for name, axis in axes.items()}}
    return [Figure("curves", "Curves", lead, switches, views)]


def by_axis(lines: Lines) -> list[Figure]:
    """Returns the figure of metrics by the values of each axis of a sweep; none without an axis of several values."""
    values = {axis: list(dict.fromkeys(line.place.get(axis, "") for line in lines)) for axis in axes_of(lines)}
    known = metrics_of(lines)
    metrics = {name: known[name] for name in known if any(np.isfinite(last(line, name)).any() for line in lines)}
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


def axes_of(lines: Lines) -> list[str]:
    """Returns the axes along which lines differ."""
    axes = dict.fromkeys(axis for line in lines for axis in line.place if axis != "result")
    return [axis for axis in axes if len({line.place.get(axis, "") for line in lines}) > 1]


def _short(number: float) -> float | None:
    if not np.isfinite(number):
        return None
    rounded = float(f"{number:.6g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e9 else rounded


def _curve(lines: Lines, place: int, metric: str, axis: str) -> Series | None:
    """Returns the curve of a line; `None` if one of its runs has no values."""
    runs = [run for run in lines[place].runs if metric in run.variables]
    found = [curve(run, AXES[axis].variable, metric) for run in runs]
    points = max(40, min(400, _POINTS // len(lines)))
    if not found or not all(one.at.size for one in found):
        return None
    if len(found) == 1:
        chosen = thin(found[0].at.size, points)
        return Series(place, lines[place].name, found[0].at[chosen], scale_of(metric) * found[0].values[chosen])
    found = [to_its_end(*one, axis) for one in zip(runs, found, strict=True)]
    at, mean, std = over_seeds(found, min(_GRID, points), scale_of(metric))
    return Series(place, lines[place].name, at, mean, mean - std, mean + std) if at[0] <= at[-1] else None


def thin(count: int, most: int) -> np.ndarray:
    """Returns the indices of at most `most` of `count` points, including the first and the last."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def _ends(lines: Lines, series: Sequence[Series], metric: str) -> str:
    """Returns a sentence with the means over seeds at the point of comparison, which curves may not reach."""
    means = {lines[one.line].name: float(last(lines[one.line], metric).mean()) for one in series}
    means = {name: mean for name, mean in means.items() if np.isfinite(mean)}
    words = in_words(lines[0].at)
    if not means:
        return f"No line has a value of all its runs {words}."
    falling = lower([run for line in lines for run in line.runs], metric)
    return f"{words[0].upper()}{words[1:]}: {listed(means, metric, falling)}"


def listed(values: dict[str, float], metric: str, falling: bool | None) -> str:
    """Returns values in words, `FedAsync 80.1 %, FedBuff 78.2 %.`, best first; of many only the best and the worst.

    Args:
        values: name -> mean.
        metric: metric of the values.
        falling: True if lower is better; with `None` the highest comes first.
    """
    order = sorted(values, key=values.__getitem__, reverse=not falling)
    said = [f"{name or 'the run'} {amount(metric, values[name])}" for name in order]
    if len(order) <= MANY:
        return ", ".join(said) + "."
    return f"{len(order):,} values from {said[0]} to {said[-1]}."


def _by_value(lines: Lines, metric: str, label: str, axis: str, values: list[str]) -> View:
    """Returns mean and standard deviation of a metric over the finished runs with each value of an axis."""
    runs: list[list[float]] = [[] for _ in values]
    for line in lines:
        runs[values.index(line.place.get(axis, ""))].extend(last(line, metric))
    finite = [[number for number in group if np.isfinite(number)] for group in runs]
    places = [place for place, group in enumerate(finite) if group]
    mean = np.asarray([np.mean(finite[place]) for place in places])
    std = np.asarray([np.std(finite[place], ddof=1) if len(finite[place]) > 1 else 0.0 for place in places])
    means = {values[place]: float(number) for place, number in zip(places, mean, strict=True)}
    said = listed(means, metric, lower([run for line in lines for run in line.runs], metric))
    failed = sum(map(len, runs)) - sum(map(len, finite))
    left = f" {failed:,} runs failed or have not run; they are left out." if failed else ""
    series = Series(-1, "mean", np.asarray(places, float), mean, mean - std, mean + std)
    labels = [value.removeprefix(f"{axis}=") for value in values]
    return View("points", axis, label, [series], f"Means {in_words(lines[0].at)}: {said}{left}", labels)
