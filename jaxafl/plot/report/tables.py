"""Tables of a report: a row per line, runs that ended early, and paired differences of methods."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxafl.clock.accounts.privacy import NOT_PRIVATE
from jaxafl.options import UserError
from jaxafl.plot.report.lines import At, Lines, ending, label_of, last, metrics_of, steps_made
from jaxafl.plot.report.markup import ABSENT, Cell, Html, element, joined, table
from jaxafl.results.accessor import Privacy
from jaxafl.results.arrivals import discarded_runs, staleness_of
from jaxafl.results.curves import AXES, percent
from jaxafl.results.points import in_words
from jaxafl.results.tables.members import Member
from jaxafl.results.tables.text import decimals

_DELTA = 1e-5
_NAMED = 10  # further runs are only counted


def summary(lines: Lines) -> Html:
    """Returns the table of the main numbers of lines, without empty columns."""
    columns: dict[str, list[Cell]] = {}
    if any(len(line.runs) > 1 for line in lines):
        columns["seeds"] = [_number(len(line.runs), "d") for line in lines]
    for metric in metrics_of(lines):
        columns[f"{label_of(metric)}, {in_words(lines[0].at)}"] = _spread(lines, metric)
        if metric == "accuracy":
            columns[f"{label_of(metric)}, best"] = _spread(lines, metric, "best")
    columns["server steps"] = _means(lines, steps_made, ",.6g")
    columns["simulated time (s)"] = _means(lines, lambda run: np.nanmax(run["time"].values, initial=0.0), ",.4g")
    known = set.intersection(*(set(line.runs[0].variables) for line in lines))
    if "staleness" in known:
        columns["client updates"] = _means(lines, lambda run: staleness_of([run]).size, ",.6g")
        for what in ("refused", "stopped", "lost"):
            if any(discarded_runs(run, what) for line in lines for run in line.runs):
                columns[f"runs {what}"] = _means(lines, functools.partial(discarded_runs, name=what), ",.6g")
        ages = [staleness_of(line.runs) for line in lines]
        columns["staleness, mean"] = [_number(age.mean() if age.size else np.nan, ",.3g") for age in ages]
        columns["staleness, largest"] = [_number(age.max() if age.size else np.nan, ",.0f") for age in ages]
    mega = AXES["bytes"].scale
    costs = {"MB up": ("bytes_up", mega), "MB down": ("bytes_down", mega)}
    costs |= {"energy (J)": ("joules", 1.0), "carbon (g)": ("grams", 1.0)}
    for title, (name, unit) in costs.items():
        if name in known:
            columns[title] = _means(lines, lambda run, name=name, unit=unit: run[name].values.sum() / unit, ",.4g")  # type: ignore[misc]
    noise = [_epsilon(line) for line in lines]
    columns[f"largest ε of a client, δ = {_DELTA:g}"] = [_number(one, ",.4g") for one in noise]
    columns = {name: cells for name, cells in columns.items() if any(cell.text != ABSENT for cell in cells)}
    header = ["name" if "result" in lines[0].place else "member", *columns]
    several = ": means over seeds, ± one standard deviation" if "seeds" in columns else ""
    several += f". ε is that of the models; {NOT_PRIVATE}" if np.isfinite(noise).any() else ""
    rows: list[list[Cell | str]]
    if len(lines) == 1:
        rows = [[name, *cells] for name, cells in columns.items()]
        return element("div", table(f"Results{several}", ["quantity", "value"], rows), class_="single")
    rows = [[line.name, *cells] for line, *cells in zip(lines, *columns.values(), strict=True)]
    return table(f"Results{several}", header, rows, sortable=True)


def endings(lines: Lines) -> Html:
    """Returns a note of runs that failed, stopped early or have not run, a sentence for each; empty without them."""
    reasons = [(line.name, ending(run)) for line in lines for run in line.runs]
    early = [f"{name}: {reason}".removeprefix(": ") for name, reason in reasons if reason]
    if not early:
        return Html("")
    shown = [element("li", text) for text in early[:_NAMED]]
    if len(early) > _NAMED:
        shown.append(element("li", f"and {len(early) - _NAMED:,} more"))
    head = f"{len(early):,} of {len(reasons):,} runs ended early"
    return element("aside", element("p", element("strong", head)), element("ul", *shown), class_="note")


def paired(comparison: Any, reference: str | None) -> Html:
    """Returns the table of a comparison, in accuracy, or in loss without an accuracy, and the sentences below it.

    Args:
        comparison: a `jaxafl.Comparison`.
        reference: name of the method whose values are subtracted; by default the first.
    """
    base = reference or next(iter(comparison.results))
    metric = "accuracy" if all("accuracy" in one for one in comparison.results.values()) else "loss"
    header, rows, said = comparison.cells([metric], None, base, (), "time", "interval", 0.95)
    caption = f"{len(comparison.seeds)} seeds, paired by seed, {in_words(comparison.at)}"
    return joined([element("p", said), table(caption, header, [[cell.text for cell in row] for row in rows])])


def _spread(lines: Lines, metric: str, at: At | None = None) -> list[Cell]:
    """Returns the mean of a metric at a point, by default that of the line, and its deviation over the runs."""
    rows = [last(line, metric, at) for line in lines]
    places = decimals([row.std(ddof=1) if len(row) > 1 else np.nan for row in rows])
    cells = []
    for row in rows:
        missing, mean = int((~np.isfinite(row)).sum()), float(row.mean())
        if missing:
            text = ABSENT if len(row) == 1 else f"{ABSENT} ({missing} of {len(row)} missing)"
        elif len(row) > 1:
            text = f"{mean:.{places}f} ± {row.std(ddof=1):.{places}f}"
        else:
            text = f"{mean:.1f}" if percent(metric) else f"{mean:.4g}"
        cells.append(Cell(text.replace("-", "−"), mean))
    return cells


def _means(lines: Lines, of: Callable[[Any], float], form: str) -> list[Cell]:
    """Returns the mean of a number over the runs of each line."""
    return [_number(float(np.mean([of(run) for run in line.runs])), form) for line in lines]


def _epsilon(line: Member) -> float:
    """Returns the largest ε of a client in the runs of a line; NaN if there is none."""
    try:
        return max(float(Privacy(run)(delta=_DELTA)["epsilon"].max()) for run in line.runs)
    except UserError:
        return np.nan


def _number(number: float, form: str) -> Cell:
    return Cell(format(number, form) if np.isfinite(number) else ABSENT, float(number))
