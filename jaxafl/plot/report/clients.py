"""Figures of a report about arrivals and clients: staleness, participation and spread."""

from __future__ import annotations

import numpy as np

from jaxafl.plot.report.figures import Figure, Series, View, thin
from jaxafl.plot.report.lines import Lines
from jaxafl.results.arrivals import staleness_of
from jaxafl.results.clients import names_of
from jaxafl.results.curves import AXES

_BINS = 40
_BARS = 100  # at most this number of clients is shown as bars
_GROUPED = 3  # at most this number of lines is shown as grouped bars
_RANKS = 50  # points of a curve over ranked clients


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
    """Returns the arrivals of clients, of one line by client, else in decreasing order; none if a result lacks them."""
    if not all("participation" in line.runs[0].variables for line in lines):
        return []
    counts = [np.mean([run["participation"].values for run in line.runs], axis=0) for line in lines]
    every = np.concatenate(counts)
    says = f"{every.min():,.4g} to {every.max():,.4g} arrivals per client, {(every == 0).sum():,} clients never."
    if len(lines) > 1 or every.size > _BARS:
        series = []
        for place, (line, values) in enumerate(zip(lines, counts, strict=True)):
            chosen = thin(values.size, _RANKS)
            series.append(Series(place, line.name, chosen + 1.0, -np.sort(-values)[chosen]))
        view = View("lines", "clients, the one with most first", "arrivals", series, says)
    else:
        series = [Series(0, lines[0].name, np.arange(every.size), every)]
        view = View("bars", "client", "arrivals", series, says, names_of(lines[0].runs[0]))
    lead = "How often the updates of each client arrived" + (", means over seeds." if len(lines[0].runs) > 1 else ".")
    return [Figure("participation", "Participation", lead, {}, {"": view})]


def spread(lines: Lines) -> list[Figure]:
    """Returns the spread of accuracy over the clients of one run; none for several runs, because curves show it."""
    runs = [run for line in lines for run in line.runs]
    if len(runs) != 1 or "client_accuracy" not in runs[0].variables:
        return []
    run = runs[0].isel(population=np.isfinite(runs[0]["client_accuracy"].values).any(axis=0))
    evaluated = np.isfinite(run["client_accuracy"].values).all(axis=1)
    accuracy = 100 * run["client_accuracy"].values[evaluated]
    time = run["eval_time"].values[evaluated]
    if not accuracy.size:
        return []
    low, median, high = np.percentile(accuracy, [10, 50, 90], axis=1)
    worst = 100 * run["clients_worst_accuracy"].values[evaluated]
    bands = [Series(-1, "median, band of 10 to 90 % of clients", time, median, low, high)]
    bands.append(Series(-1, "mean of the worst 10 %", time, worst))
    says = (
        f"At the end, half of the {accuracy.shape[1]:,} clients have at least {median[-1]:.1f} %; the worst 10 % have "
        f"{worst[-1]:.1f} % on average, the best client {accuracy[-1].max():.1f} %."
    )
    view = View("lines", AXES["time"].label, "accuracy on their own samples (%)", bands, says)
    lead = "Each client's model is the global one, tested on the samples that the client holds out."
    return [Figure("clients", "Spread over clients", lead, {}, {"": view})]
