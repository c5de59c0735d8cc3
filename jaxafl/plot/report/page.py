"""The page of a report, written to one file."""

from __future__ import annotations

import json
import os
import pathlib
import string
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxafl.options import UserError, as_path
from jaxafl.plot.canvas import COLOURS
from jaxafl.plot.report import clients, figures, settings, tables
from jaxafl.plot.report.figures import Figure, Pool
from jaxafl.plot.report.lines import MANY, Line, lines_of, metrics_of, named, score
from jaxafl.plot.report.markup import Html, element, escaped, section, together
from jaxafl.readers.replacing import replacing
from jaxafl.references import version
from jaxafl.results import check_path

_HERE = pathlib.Path(__file__).parent
PAPER = {"light": "#ffffff", "dark": "#14171c"}
CONTRAST = 3.0  # of lines against the paper, WCAG 2.2, 1.4.11


def report(
    results: Any, path: str | os.PathLike[str], *, title: str | None = None, reference: str | None = None
) -> pathlib.Path:
    """Writes a report of results: one HTML page that needs no network and nothing but a browser.

    It has a summary, interactive curves against all that they cost, staleness, participation, communication, the spread
    over clients, all settings, the code that runs it again and what to cite; what a result does not have is left out.
    Of more than seven lines the best seven are coloured, and chosen by the values of the sweep's axes.

    Args:
        results: a result of a run or a sweep, a dict of results by name, or a `jaxafl.Comparison`, whose differences
            are shown seed by seed, at its point of comparison.
        path: where to write the page; ends in `.html`.
        title: of the page; by default that of the result, or the names of the results.
        reference: the method that those of a `Comparison` are compared with; by default its first.

    Returns:
        The path.

    Raises:
        TypeError, ValueError: these are no results, or the path does not end in `.html`.
        FileNotFoundError, PermissionError, IsADirectoryError: it cannot be written there.
    """
    path = as_path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"a report is a page, and its path must end in .html; got {path}")
    check_path(path, b"<!doctype html")
    is_comparison = hasattr(results, "differences")
    if reference is not None and not is_comparison:
        raise UserError(
            f"report: reference={reference!r} is of a Comparison, of methods on the same seeds; leave it out here"
        )
    own = named(results)
    lines = lines_of(own, results.at if is_comparison else "last")
    drawn = [
        *figures.curves(lines),
        *figures.by_axis(lines),
        *clients.staleness(lines),
        *clients.participation(lines),
        *clients.communication(lines),
        *clients.spread(lines),
    ]
    parts = [("summary", "Summary", together([tables.endings(lines), tables.summary(lines)]))]
    if is_comparison:
        parts.append(("paired", "Paired differences", tables.paired(results, reference)))
    parts += [(figure.key, figure.title, _figure(figure)) for figure in drawn]
    parts.append(("settings", "Settings", settings.settings(lines)))
    parts.append(("again", "Run it again", settings.again(lines, own)))
    parts.append(("citation", "Citation", _citation(lines)))
    body = [section(*part) for part in parts]
    body.insert(1 + is_comparison, _chooser(lines))
    page = string.Template(_read("page.html")).substitute(
        title=escaped(title or _title(own)),
        lead=escaped(_lead(lines, own)),
        css=string.Template(_read("page.css")).substitute(colours=_palette()),
        contents=together(element("li", element("a", text, href=f"#{key}")) for key, text, _ in parts),
        body=together(body),
        made=escaped(f"Made by jaxafl {version()}. The page is complete: it loads nothing from anywhere."),
        data=_data(lines, drawn),
        chart=_chart(),
        script=_read("page.js"),
    )
    with replacing(path) as unfinished:
        unfinished.write_text(page, encoding="utf-8")
    return path


def _figure(figure: Figure) -> Html:
    """Its switches, its canvas, the values at the pointer or the cursor, its legend and its sentence."""
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
    return together([element("p", figure.lead, class_="lead"), element("figure", *parts, id=f"figure-{figure.key}")])


def _select(name: str, options: Mapping[str, str], **attributes: str) -> Html:
    inside = [element("option", text, value=key) for key, text in options.items()]
    return element("label", name, element("select", *inside, aria_label=name, **attributes))


def _chooser(lines: Sequence[Line]) -> Html:
    """Which lines figures show: a box for each of a few, of many those with some values of the axes."""
    keys = element(
        "p",
        "In a figure: arrow keys, or the pointer, read values; + and −, or dragging, show a part of the curves, 0 all.",
        class_="lead",
        id="figure-keys",
    )
    if len(lines) == 1:
        return keys
    if len(lines) <= MANY:
        boxes = [element("label", element("input", type="checkbox", checked=True), line.name) for line in lines]
        inside = [element("div", *boxes, class_="lines")]
    else:
        axes = dict.fromkeys(axis for line in lines for axis in line.place)
        inside = []
        for axis in axes:
            values = dict.fromkeys(line.place.get(axis, "") for line in lines)
            if len(values) > 1:
                labels = {value: value.removeprefix(f"{axis}=") or "none" for value in values}
                inside.append(_select(axis, {"": "all"} | labels, data_axis=axis))
        told = f"{len(lines):,} members; of those chosen, the {MANY} that end best are in colour, the others grey."
        inside = [element("p", told, class_="lead"), element("div", *inside, class_="controls")]
    return together([element("fieldset", element("legend", "Lines in the figures"), *inside, id="lines"), keys])


def _citation(lines: Sequence[Line]) -> Html:
    """BibTeX, and a button that copies it."""
    bibtex = element("pre", settings.cited(lines), id="bibtex", tabindex="0", role="region", aria_label="BibTeX")
    copied = element("span", id="bibtex-copied", role="status")
    return together([bibtex, element("p", element("button", "Copy", type="button", data_copy="bibtex"), " ", copied)])


def _title(results: Mapping[str, Any]) -> str:
    names = list(results)
    if len(names) == 1:
        return names[0]
    return f"Comparison of {', '.join(names[:-1])} and {names[-1]}" if len(names) <= MANY else f"{len(names)} results"


def _lead(lines: Sequence[Line], results: Mapping[str, Any]) -> str:
    runs = sum(len(line.runs) for line in lines)
    kind = "one run" if runs == 1 else f"{runs:,} runs"
    if len(results) == 1 and runs > 1:
        kind = f"a sweep of {runs:,} runs"
    elif len(results) > 1:
        kind = f"{len(results):,} results, {runs:,} runs in all"
    return f"Asynchronous federated learning, simulated: {kind}. Times are simulated seconds."


def _data(lines: Sequence[Line], drawn: Sequence[Figure]) -> str:
    """What the script reads; no `<` in it, which could end it."""
    pool, metric = Pool(), next(iter(metrics_of(lines)), "loss")
    scores = [score(line, metric) for line in lines]
    told = {
        "lines": [
            {"name": line.name, "place": line.place, "score": own if np.isfinite(own) else None}
            for line, own in zip(lines, scores, strict=True)
        ],
        "figures": [pool.packed(figure) for figure in drawn],
        "pool": pool.arrays,
        "colours": MANY,
    }
    return json.dumps(told, separators=(",", ":"), allow_nan=False, ensure_ascii=False).replace("<", "\\u003c")


def _palette() -> str:
    """The palette of all figures as variables of a style sheet, as far from the paper as lines have to be; its black is
    the colour of text."""
    pairs = [", ".join(readable(colour, paper) for paper in PAPER.values()) for colour in COLOURS[:-1]]
    return " ".join(
        f"--line-{place}: light-dark({pair});" for place, pair in enumerate([*pairs, "var(--ink), var(--ink)"])
    )


def readable(colour: str, paper: str) -> str:
    """A colour, moved towards black or white until its contrast with the paper is 3 : 1 or more."""
    start, towards = _channels(colour), 0.0 if _luminance(_channels(paper)) > 0.5 else 1.0
    for share in np.linspace(0, 1, 51):
        found = start + share * (towards - start)
        if contrast(found, _channels(paper)) >= CONTRAST:
            break
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in found)


def contrast(one: np.ndarray, other: np.ndarray) -> float:
    """(L₁ + 0.05) / (L₂ + 0.05) of relative luminances L₁ >= L₂, as WCAG 2.2 defines it.

    Args:
        one, other: sRGB in [0, 1], float [3].
    """
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: np.ndarray) -> float:
    linear = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def _channels(colour: str) -> np.ndarray:
    return np.asarray([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])


def _chart() -> str:
    """The library behind its licence, without the address of its source, which is not in the page."""
    code = _read("chart.umd.min.js").partition("//# sourceMappingURL")[0]
    return f"/*! {_read('chart.LICENSE')}*/\n{code}"


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
