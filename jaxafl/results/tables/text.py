"""Tables for papers: Markdown, and LaTeX with booktabs."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, isfinite, log10
from typing import NamedTuple

from jaxafl.options import check_choice
from jaxafl.results.curves import percent

_LATEX = str.maketrans(
    {char: f"\\{char}" for char in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"±": r"$\pm$", "−": "$-$", ">": "$>$", "<": "$<$", "|": "$|$", "—": "---", "–": "--"}
)


class Cell(NamedTuple):
    """Text of a table's cell; `best` is True for the best value of its column."""

    text: str
    best: bool = False


def table(form: str, header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Returns a table as text; the first column holds names, the others numbers.

    Args:
        form: `"markdown"` or `"latex"`.
        header: names of the columns.
        rows: rows of cells.

    Raises:
        ValueError: the form is unknown.
    """
    check_choice("table", "format", form, ("markdown", "latex"))
    marks, escapes = (("%s", r"\textbf{%s}"), _LATEX) if form == "latex" else (("%s", "**%s**"), {ord("|"): r"\|"})
    every = [map(Cell, header), *rows]
    heads, *lines = [[marks[best] % text.translate(escapes) for text, best in row] for row in every]
    if form == "latex":
        body = [" & ".join(line) + r" \\" for line in [heads, *lines]]
        begin, end = rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}", r"\end{tabular}"
        return "\n".join([begin, r"\toprule", body[0], r"\midrule", *body[1:], r"\bottomrule", end])
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [heads, rule, *lines])


def header_of(metric: str) -> str:
    """Returns the name of a metric in words, with (%) if it is shown in percent."""
    return f"{metric.replace('_', ' ')}{' (%)' * percent(metric)}"


def decimals(deviations: Sequence[float]) -> int:
    """Returns the number of decimals that shows two digits of the largest deviation."""
    largest = max(filter(isfinite, deviations), default=0.0)
    return min(max(1 - floor(log10(largest)), 0), 6) if largest > 0 else 1
