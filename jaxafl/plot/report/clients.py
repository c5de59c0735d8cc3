"""Figures of a report about arrivals and clients: staleness, participation, communication and spread."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxafl.plot.report.figures import Figure, Series, View, thin
from jaxafl.plot.report.lines import MANY, Line, Lines, steps_made
from jaxafl.results.arrivals import staleness_of
from jaxafl.results.clients import names_of
from jaxafl.results.curves import AXES

_BINS = 40
_BARS = 100  # at most this number of clients is shown as bars
_GROUPED = 3  # at most this number of lines is shown as grouped bars
_RANKS = 50  # points of a curve over ranked clients
_MB = AXES["bytes"].scale


def staleness(lines: Lines) -> list[Figure]:
    """Returns the histogram of the staleness of updates; none without arrivals."""
    ages = [(place, staleness_of(line.runs).astype(int)) for place, line in enumerate(lines)]
    ages = [(place, age) for place, age in ages if age.size]
    if not ages:
        return []
    worst = max(int(age.max()) for _, age in ages)
    width = -(-(worst + 1) // _BINS)
    bins = worst // width + 1
    labels = [str(at * width) if width == 1 else f"{at * width}–{(at + 1) * width - 1}" for at in range(bins)]
    series = [
        Series(place, lines[place].name, np.arange(bins), 100 * np.bincount(age // width, minlength=bins) / age.size)
        for place, age in ages
    ]
    every = np.concatenate([age for _, age in ages])
    said = f"Mean {every.mean():.2f}, median {np.median(every):g}, at most {every.max():,}, of {every.size:,} updates."
    kind = "bars" if len(lines) <= _GROUPED else "lines"
    view = View(kind, "staleness (versions)", "share of updates (%)", series, said, labels)
    lead = "Staleness is the number of server steps between a client's download and its upload."
    return [Figure("staleness", "Staleness", lead, {}, {"": view})]


def participation(lines: Lines) -> list[Figure]:
    """Returns the arrivals of clients and the mean staleness of their updates; none if a result lacks them."""
    if not all({"participation", "mean_staleness"} <= set(line.runs[0].variables) for line in lines):
        return []
    counts = [np.mean([run["participation"].values for run in line.runs], axis=0) for line in lines]
    several = len(lines) > 1 or counts[0].size > _BARS
    every = np.concatenate(counts)
    says = f"{every.min():,.4g} to {every.max():,.4g} arrivals per client, {(every == 0).sum():,} clients never."
    views = {}
    for name, label in (("participation", "arrivals"), ("mean_staleness", "mean staleness of its updates")):
        found = [_mean([run[name].values for run in line.runs]) for line in lines]
        if several:
            series = [_ranked(place, lines[place].name, values) for place, values in enumerate(found)]
            views[name] = View("lines", "clients, the one with most first", label, series, says)
        else:
            series = [Series(0, lines[0].name, np.arange(found[0].size), found[0])]
            views[name] = View("bars", "client", label, series, says, names_of(lines[0].runs[0]))
    lead = "How often the updates of each client arrived" + (", means over seeds." if len(lines[0].runs) > 1 else ".")
    switches = {"Show": {"participation": "arrivals", "mean_staleness": "mean staleness"}}
    return [Figure("participation", "Participation", lead, switches, views)]


def communication(lines: Lines) -> list[Figure]:
    """Returns the data sent, over time for one run and in total for a few lines; none for many lines."""
    if len(lines) > MANY or not all({"bytes_up", "bytes_down"} <= set(line.runs[0].variables) for line in lines):
        return []
    lead = "A download per start, an upload per arrival."
    if len(lines) == 1 and len(lines[0].runs) == 1:
        run = lines[0].runs[0]
        at = run["time"].values[: steps_made(run)]
        chosen = thin(at.size + 1, 400)
        sums = {way: np.append(0, np.cumsum(run[f"bytes_{way}"].values[: at.size])) / _MB for way in ("up", "down")}
        series = [Series(-1, way, np.append(0, at)[chosen], values[chosen]) for way, values in sums.items()]
        said = [f"{values[-1]:,.1f} MB {way}" for way, values in sums.items()]
        view = View("lines", AXES["time"].label, "data sent (MB)", series, " and ".join(said) + " in all.")
    else:
        totals = {name: np.asarray([sent(line, name).mean() / _MB for line in lines]) for name in ("up", "down")}
        series = [Series(-1, name, np.arange(len(lines)), values) for name, values in totals.items()]
        said = [
            f"{line.name}{': ' if line.name else ''}{up:,.1f} MB up, {down:,.1f} MB down"
            for line, up, down in zip(lines, totals["up"], totals["down"], strict=True)
        ]
        labels = [line.name or "all seeds" for line in lines]
        view = View("bars", "", "data sent by a run (MB)", series, "; ".join(said) + ".", labels)
    return [Figure("communication", "Communication", lead, {}, {"": view})]


def spread(lines: Lines) -> list[Figure]:
    """Returns the spread of accuracy over the clients of one run; none for several runs, because curves show it."""
    runs = [run for line in lines for run in line.runs]
    if len(runs) != 1 or "client_accuracy" not in runs[0].variables:
        return []
    (run,) = runs
    run = run.isel(population=np.isfinite(run["client_accuracy"].values).any(axis=0))
    evaluated = np.isfinite(run["client_accuracy"].values).all(axis=1)
    accuracy = 100 * run["client_accuracy"].values[evaluated]
    time = run["eval_time"].values[evaluated]
    if not accuracy.size:
        return []
    low, median, high = np.percentile(accuracy, [10, 50, 90], axis=1)
    worst = 100 * run["clients_worst_accuracy"].values[evaluated]
    label = "accuracy on their own samples (%)"
    bands = [Series(-1, "median, band of 10 to 90 % of clients", time, median, low, high)]
    bands.append(Series(-1, "mean of the worst 10 %", time, worst))
    says = (
        f"At the end, half of the {accuracy.shape[1]:,} clients have at least {median[-1]:.1f} %; the worst 10 % have "
        f"{worst[-1]:.1f} % on average, the best client {accuracy[-1].max():.1f} %."
    )
    views = {"time": View("lines", AXES["time"].label, label, bands, says)}
    if "participation" in run.variables:
        dots = [Series(-1, "a client", run["participation"].values.astype(float), accuracy[-1])]
        views["arrivals"] = View("points", "arrivals of the client", label, dots, says)
    switches = {"Show": {"time": "over time", "arrivals": "at the end, by arrivals"}} if len(views) > 1 else {}
    views = views if switches else {"": views["time"]}
    lead = "Each client's model is the global one, tested on the samples that the client holds out."
    return [Figure("clients", "Spread over clients", lead, switches, views)]


def sent(line: Line, way: str) -> np.ndarray:
    """Returns the bytes sent `"up"` or `"down"`, float [seeds]."""
    return np.asarray([np.nansum(run[f"bytes_{way}"].values.astype(float)) for run in line.runs])


def _mean(values: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the mean over finite values; NaN where none is finite."""
    return np.ma.masked_invalid(np.stack(values).astype(float)).mean(axis=0).filled(np.nan)


def _ranked(place: int, name: str, values: np.ndarray) -> Series:
    """Returns the values in decreasing order as a series."""
    order = np.sort(values[np.isfinite(values)])[::-1]
    chosen = thin(order.size, _RANKS) if order.size else np.zeros(0, int)
    return Series(place, name, chosen + 1.0, order[chosen])
