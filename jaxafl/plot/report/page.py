"""The page of a report, written to one file."""

from __future__ import annotations

import base64
import io
import json
import os
import pathlib
import string
from collections.abc import Mapping, Sequence
from typing import Any

from jaxafl.options import UserError, as_path
from jaxafl.plot.heat_map import heat_map
from jaxafl.plot.report import figures, settings, tables
from jaxafl.plot.report.figures import Figure, packed
from jaxafl.plot.report.lines import MANY, Lines, label_of, lines_of, lower, metrics_of, named, score
from jaxafl.plot.report.markup import Html, element, escaped, joined, section
from jaxafl.readers.replacing import replacing
from jaxafl.references import version
from jaxafl.results import check_path

_FOLDER = pathlib.Path(__file__).parent


def report(
    results: Any, path: str | os.PathLike[str], *, title: str | None = None, reference: str | None = None
) -> pathlib.Path:
    """Writes a report of results: one HTML page that needs a browser and no network.

    It has a summary, interactive curves against their costs, heat maps of a sweep over two options, staleness,
    participation, the spread over clients, all settings, and citations. Sections for which a result has no data are
    left out. If there are more than seven lines, the best seven are coloured.

    Args:
        results: a result of a run or a sweep, a dict of results by name, or a `jaxafl.Comparison`, with differences
            seed by seed at its point of comparison.
        path: file of the page, such as `report.html`.
        title: title of the page; by default the title of the result, or the names of the results.
        reference: method of a `Comparison` that the others are compared with; by default the first.

    Returns:
        The path.

    Raises:
        TypeError, ValueError: these are not results, the file holds no report, or `reference` is no method of a
            `Comparison`.
        FileNotFoundError, PermissionError, IsADirectoryError: the file cannot be written.
    """
    path = as_path(path)
    check_path(path, b"<!doctype html")
    is_comparison = hasattr(results, "differences")
    if reference is not None and not is_comparison:
        raise UserError(
            f"report: reference={reference!r} is of a Comparison, of methods on the same seeds; leave it out here"
        )
    by_name = named(results)
    lines = lines_of(by_name, results.at if is_comparison else "last")
    made = (figures.curves, figures.by_axis, figures.staleness, figures.participation, figures.spread)
    drawn = [figure for figures_of in made for figure in figures_of(lines)]
    parts = [("summary", "Summary", joined([tables.endings(lines), tables.summary(lines)]))]
    if is_comparison:
        parts.append(("paired", "Paired differences", tables.paired(results, reference)))
    for figure in drawn:
        parts.append((figure.key, figure.title, _figure(figure)))
        if figure.key == "axes" and (maps := _over_two_options(lines, by_name)):
            parts.append(("heat", "Over two options", maps))
    parts.append(("settings", "Settings", settings.settings(lines)))
    parts.append(("citation", "Citation", _citation(lines)))
    body = [section(*part) for part in parts]
    body.insert(1 + is_comparison, _chooser(lines))
    page = string.Template(_read("page.html")).substitute(
        title=escaped(title or (", ".join(by_name) if len(by_name) <= MANY else f"{len(by_name)} results")),
        lead=escaped(_lead(lines, by_name)),
        css=_read("page.css"),
        contents=joined(element("li", element("a", text, href=f"#{key}")) for key, text, _ in parts),
        body=joined(body),
        made=escaped(f"Written by jaxafl {version()}. The page is complete and needs no network."),
        data=_data(lines, drawn),
        # the page lacks the source map to which the library refers
        chart=f"/*! {_read('chart.LICENSE')}*/\n{_read('chart.umd.min.js').partition('//# sourceMappingURL')[0]}",
        script=_read("page.js"),
    )
    with replacing(path) as unfinished:
        unfinished.write_text(page, encoding="utf-8")
    return path


def _figure(figure: Figure) -> Html:
    """Returns the section of a figure: switches, canvas, values at the pointer, legend and caption."""
    switches = [_select(name, options) for name, options in figure.switches.items()]
    if figure.key == "curves":
        switches.append(element("button", "Whole range", type="button", class_="whole", disabled=True))
    view = next(iter(figure.views.values()))
    canvas = element("canvas", tabindex="0", role="img", aria_label=view.says, aria_describedby="figure-keys")
    caption = element("figcaption", element("span", view.says, class_="says"))
    parts = [
        element("div", *switches, class_="controls") if switches else Html(""),
        element("div", canvas, class_="plot"),
        element("p", class_="readout", aria_live="polite"),
        element("ul", class_="legend"),
        caption,
    ]
    return joined([element("p", figure.lead, class_="lead"), element("figure", *parts, id=f"figure-{figure.key}")])


def _select(name: str, options: Mapping[str, str]) -> Html:
    inside = [element("option", text, value=key) for key, text in options.items()]
    return element("label", name, element("select", *inside, aria_label=name))


def _over_two_options(lines: Lines, results: Mapping[str, Any]) -> Html:
    """Returns a picture per metric of one sweep over two options, the first open; empty for other results."""
    result = next(iter(results.values()))
    if len(results) > 1 or len(lines[0].place) != 2:
        return Html("")
    pictures: list[Html] = []
    for metric in metrics_of(lines):
        if f"final_{metric}" in result.variables and lower([result], metric) is not None:
            file = io.BytesIO()
            heat_map(result, metric).savefig(file, dpi=100)
            source = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
            picture = element("img", src=source, alt=f"Heat map of the final {label_of(metric)}")
            pictures.append(element("details", element("summary", label_of(metric)), picture, open=not pictures))
    return joined(pictures)


def _chooser(lines: Lines) -> Html:
    """Returns the help of the keys, and boxes that select the lines of figures if they are few."""
    keys = element(
        "p",
        "In a figure: arrow keys, or the pointer, read values; + and −, or dragging, show a part of the curves, 0 all.",
        class_="lead",
        id="figure-keys",
    )
    if len(lines) == 1:
        return keys
    if len(lines) > MANY:
        text = f"{len(lines):,} members; the {MANY} that end best are in colour, the others grey."
        return joined([element("p", text, class_="lead"), keys])
    boxes = [element("label", element("input", type="checkbox", checked=True), line.name) for line in lines]
    inside = element("div", *boxes, class_="lines")
    return joined([element("fieldset", element("legend", "Lines in the figures"), inside, id="lines"), keys])


def _citation(lines: Lines) -> Html:
    """Returns the BibTeX and a button that copies it."""
    bibtex = element("pre", settings.cited(lines), id="bibtex", tabindex="0", role="region", aria_label="BibTeX")
    copied = element("span", id="bibtex-copied", role="status")
    return joined([bibtex, element("p", element("button", "Copy", type="button", data_copy="bibtex"), " ", copied)])


def _lead(lines: Lines, results: Mapping[str, Any]) -> str:
    runs = sum(len(line.runs) for line in lines)
    counted = [f"{len(results):,} results"] * (len(results) > 1) + [f"{runs:,} run{'s' * (runs > 1)}"]
    return f"Asynchronous federated learning, simulated: {', '.join(counted)}. Times are simulated seconds."


def _data(lines: Lines, drawn: Sequence[Figure]) -> str:
    """Returns the JSON data of the script, with `<` escaped because it could end the script element."""
    pool: dict[tuple[float | None, ...], int] = {}
    metric = next(iter(metrics_of(lines)), "loss")
    data = {
        "lines": [{"name": line.name, "score": score(line, metric)} for line in lines],
        "figures": [packed(figure, pool) for figure in drawn],
        "pool": [*pool],
        "colours": MANY,
    }
    return json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False).replace("<", "\\u003c")


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
