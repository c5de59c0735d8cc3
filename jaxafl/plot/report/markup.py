"""HTML in which whatever comes from a result is text."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import NamedTuple

ABSENT = "—"
_VOID = ("input",)  # elements that are not closed


class Html(str):
    """Text that is HTML already."""


class Cell(NamedTuple):
    """What stands in a table, and the number by which its column is sorted."""

    text: str
    key: float = float("nan")


def escaped(text: str) -> Html:
    """Text as HTML that shows it."""
    return text if isinstance(text, Html) else Html(html.escape(str(text)))


def element(name: str, *inside: str, **attributes: str | bool) -> Html:
    """`<name attribute="value">inside</name>`.

    Args:
        name: of the element.
        *inside: text, which is escaped, and `Html`.
        **attributes: `class_` is `class`, `data_key` is `data-key`; True stands for one without a value.
    """
    given = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html.escape(str(value))}"')
        for key, value in attributes.items()
        if value is not False
    )
    return Html(f"<{name}{given}>" if name in _VOID else f"<{name}{given}>{together(inside)}</{name}>")


def together(parts: Iterable[str]) -> Html:
    """One after another."""
    return Html("".join(map(escaped, parts)))


def table(caption: str, header: Sequence[str], rows: Sequence[Sequence[Cell | str]], sortable: bool = False) -> Html:
    """A table in a box of its own that scrolls where the page is too narrow.

    Args:
        caption: what it shows.
        header: of the columns; the first is of names.
        rows: cells.
        sortable: whether the headers are buttons that sort.
    """
    heads = [
        element("th", element("button", text, type="button"), scope="col", aria_sort="none")
        if sortable
        else element("th", text, scope="col")
        for text in header
    ]
    body = [element("tr", *(_cell(cell, first=not place) for place, cell in enumerate(row))) for row in rows]
    made = element("table", element("caption", caption), element("thead", element("tr", *heads)), _body(body))
    return element("div", made, class_="scroll", tabindex="0", role="region", aria_label=caption)


def section(key: str, title: str, *inside: str) -> Html:
    """A part of the page under a heading of its own."""
    return element("section", element("h2", title, id=key), *inside, aria_labelledby=key)


def _body(rows: Sequence[Html]) -> Html:
    return element("tbody", *rows)


def _cell(cell: Cell | str, first: bool) -> Html:
    text, key = cell if isinstance(cell, Cell) else (cell, float("nan"))
    sorted_by = {} if key != key else {"data_key": f"{key:.9g}"}
    return element("th", text, scope="row", **sorted_by) if first else element("td", text, **sorted_by)
