"""Columns and notes of the table of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from jaxafl.results.curves import AXES, falls, percent, scale_of
from jaxafl.results.paired import Summary
from jaxafl.results.points import in_words
from jaxafl.results.tables import Cell, decimals

_SIGNS = str.maketrans("-", "−")
Spread = Literal["std", "interval"]
"""Spread of a mean: a standard deviation, or an interval."""
Column = tuple[str, dict[str, Cell]]
"""Header, and the cell of each method by name."""


def means(comparison: Any, metric: str, at: Any, spread: Spread, confidence: float) -> Column:
    """Returns the column of the means of a metric, with standard deviations or intervals."""
    found = comparison.summary(metric, at, confidence)
    scale = scale_of(metric)
    lower = falls(comparison.results.values(), metric, "table")
    places = decimals([scale * (one.std if spread == "std" else (one.high - one.low) / 2) for one in found.values()])
    best = _best(found, lower)
    cells = {}
    for name, one in found.items():
        finite = np.isfinite(one.values)
        text = f"{scale * one.mean:.{places}f}"
        if not finite.all():
            word = "infinite" if np.isinf(one.values).any() else "missing"
            text = f"{'failed' if name in comparison.failed else word} ({(~finite).sum()}/{len(finite)})"
        elif len(finite) > 1:
            low, high = (f"{scale * edge:.{places}f}" for edge in (one.low, one.high))
            text += f" ± {scale * one.std:.{places}f}" if spread == "std" else f" [{low}, {high}]"
        cells[name] = Cell(text.translate(_SIGNS), one.mean == best)
    return _named(metric), cells


def against(comparison: Any, reference: str, metric: str, at: Any, confidence: float) -> Column:
    """Returns the column of the differences from a reference, with intervals and verdicts."""
    found = comparison.differences(reference, metric, at, confidence)
    scale = scale_of(metric)
    places = decimals([scale * (one.high - one.low) / 2 for one in found.values()])
    cells = {reference: Cell("—")}
    for name, one in found.items():
        mean, low, high = (f"{scale * number:+.{places}f}" for number in (one.mean, one.low, one.high))
        text = f"{mean} [{low}, {high}], {one.verdict}" if np.isfinite(one.low) else one.verdict
        text = text if np.isfinite(one.mean) else "a run failed, or is missing"
        cells[name] = Cell(text.translate(_SIGNS))
    return f"minus {reference}, {100 * confidence:g} % interval", cells


def times(comparison: Any, target: float, metric: str, axis: str) -> Column:
    """Returns the column of the times to a target."""
    found = comparison.time_to(target, metric, axis)
    unit = AXES[axis]
    best = min((one.median for one in found.values() if np.isfinite(one.median)), default=None)
    cells = {}
    for name, one in found.items():
        ends = one.at[~one.reached & np.isfinite(one.at)]
        shown = one.median if np.isfinite(one.median) else ends.max(initial=0.0)
        count = f"({one.reached.sum()}/{len(one.reached)})"
        text = f"{'' if np.isfinite(one.median) else '> '}{_short(shown / unit.scale)} {count}"
        known = np.isfinite(one.median) or shown > 0
        cells[name] = Cell(text if known else f"never {count}", one.median == best)
    amount = f"{scale_of(metric) * target:g} %" if percent(metric) else f"{target:g}"
    header = unit._replace(name=f"{unit.name.removeprefix('simulated ')} to {amount}").label
    return header, cells


def notes(
    comparison: Any, at: Any, spread: Spread, confidence: float, reference: str | None, times_to: str, axis: str
) -> str:
    """Returns sentences about the point, spreads, tests and times of a table; `times_to`: their metric, "" without."""
    seeds, percent = len(comparison.seeds), f"{100 * confidence:g} %"
    found = [f"Values: {in_words(comparison.point(at))}."]
    if seeds > 1:
        deviation = f"± is one standard deviation over {seeds} seeds."
        interval = f"Brackets behind means are {percent} intervals of Student's t over {seeds} seeds."
        found.append(deviation if spread == "std" else interval)
    if reference is not None and seeds > 1:
        level = f"{100 * (1 - confidence):.3g} %"
        found.append(f"Differences are paired by seed, with intervals and verdicts of Student's t at {level}.")
        if (count := len(comparison.results) - 1) > 1:
            found.append(
                f"The {count} comparisons are not corrected: each has this chance of a verdict without a difference. "
                f"confidence={1 - (1 - confidence) / count:.4g} corrects them (Bonferroni)."
            )
    if times_to:
        found.append(
            f"{AXES[axis].name.capitalize()} to values of the {times_to.replace('_', ' ')}: medians over seeds (Kaplan "
            "and Meier), with the runs that reach them in brackets."
        )
    return " ".join(found)


def _best(found: Mapping[str, Summary], lower: bool) -> float | None:
    means = [one.mean for one in found.values() if np.isfinite(one.mean)]
    return (min(means) if lower else max(means)) if means else None


def _named(metric: str) -> str:
    name = metric.replace("_", " ")
    return f"{name} (%)" if percent(metric) else name


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"
