"""Heat maps of a report: a table per metric over two swept options."""

from __future__ import annotations

import numpy as np

from jaxafl.plot.report.figures import axes_of
from jaxafl.plot.report.lines import Lines, amount, label_of, last, lower, metrics_of
from jaxafl.plot.report.markup import ABSENT, Html, element, joined, table
from jaxafl.results.points import in_words
from jaxafl.results.tables import decimals


def over_two_options(lines: Lines) -> Html:
    """Returns a table per metric of one sweep over two options, the first open; empty for other results."""
    axes = axes_of(lines)
    metrics = [name for name in metrics_of(lines) if any(np.isfinite(last(line, name)).any() for line in lines)]
    if len(axes) != 2 or "result" in lines[0].place or not metrics:
        return Html("")
    several = "means over seeds, ± one standard deviation; " * any(len(line.runs) > 1 for line in lines)
    lead = f"Values {in_words(lines[0].at)}: {several}the best is framed, and a stronger colour is better."
    more = [element("details", element("summary", label_of(name)), _table(lines, name, *axes)) for name in metrics[1:]]
    return joined([element("p", lead, class_="lead"), _table(lines, metrics[0], *axes), *more])


def _table(lines: Lines, metric: str, row: str, column: str) -> Html:
    """Returns the table of a metric, with the values of one axis as rows and those of the other as columns."""
    places = {(line.place.get(row, ""), line.place.get(column, "")): last(line, metric) for line in lines}
    rows, columns = (list(dict.fromkeys(place[axis] for place in places)) for axis in (0, 1))
    means = {place: float(values.mean()) for place, values in places.items()}
    finite = {place: mean for place, mean in means.items() if np.isfinite(mean)}
    falling = lower([run for line in lines for run in line.runs], metric)
    best = min(finite, key=finite.__getitem__) if falling else max(finite, key=finite.__getitem__, default=None)
    span = (max(finite.values()) - min(finite.values())) if finite else 0.0
    digits = decimals([float(np.std(one, ddof=1)) for one in places.values() if one.size > 1] or [span / 10])

    def cell(place: tuple[str, str]) -> str:
        if place not in finite:
            return ABSENT if place not in places else "failed"
        share = (finite[place] - min(finite.values())) / span if span else 0.0
        values = places[place]
        spread = f" ± {values.std(ddof=1):.{digits}f}" if values.size > 1 else ""
        text = f"{finite[place]:.{digits}f}".replace("-", "−")
        shade = f"--share: {1 - share if falling else share:.3f}"
        return element("span", f"{text}{spread}", style=shade, class_="best" if place == best else "shade")

    header = [f"{row} ↓  {column} →", *(one.removeprefix(f"{column}=") for one in columns)]
    body = [[at.removeprefix(f"{row}="), *(cell((at, to)) for to in columns)] for at in rows]
    said = f"{label_of(metric)}; best {amount(metric, finite[best])}" if best is not None else label_of(metric)
    return element("div", table(said, header, body), class_="heat")
