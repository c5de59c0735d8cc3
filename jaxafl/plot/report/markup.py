"""Construction of HTML with all texts of results escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import NamedTuple

ABSENT = "—"
_VOID = ("input", "img")  # elements that are not closed


class Html(str):
    """Text that is HTML and needs no escaping."""


class Cell(NamedTuple):
    """Text of a table's cell, and the number by which its column is sorted."""

    text: str
    key: float = float("nan")


def escaped(text: str) -> Html:
    """Returns text as escaped HTML."""
    return text if isinstance(text, Html) else Html(html.escape(str(text)))


def element(name: str, *inside: str, **attributes: str | bool) -> Html:
    """Returns an element, `<name attribute="value">inside</name>`.

    Args:
        name: name of the element.
        *inside: text, which is escaped, and `Html`.
        **attributes: `class_` is `class`, `data_key` is `data-key`; True gives an attribute without a value.
    """
    given = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html.escape(str(value))}"')
        for key, value in attributes.items()
        if value is not False
    )
    return Html(f"<{name}{given}>" if name in _VOID else f"<{name}{given}>{joined(inside)}</{name}>")


def joined(parts: Iterable[str]) -> Html:
    """Returns the concatenation of parts."""
    return Html("".join(map(escaped, parts)))


def table(caption: str, header: Sequence[str], rows: Sequence[Sequence[Cell | str]], sortable: bool = False) -> Html:
    """Returns a table in a box that scrolls if the page is too narrow.

    Args:
        caption: caption of the table.
        header: names of the columns; the first column holds names.
        rows: rows of cells.
        sortable: True if the headers are buttons that sort.
    """
    named = [element("button", text, type="button") if sortable else text for text in header]
    heads = [element("th", text, scope="col", aria_sort=sortable and "none") for text in named]
    body = [element("tr", *(_cell(cell, first=not place) for place, cell in enumerate(row))) for row in rows]
    head = element("thead", element("tr", *heads))
    content = element("table", element("caption", caption), head, element("tbody", *body))
    return element("div", content, class_="scroll", tabindex="0", role="region", aria_label=caption)


def section(key: str, title: str, *inside: str) -> Html:
    """Returns a section of the page with a heading."""
    return element("section", element("h2", title, id=key), *inside, aria_labelledby=key)


def _cell(cell: Cell | str, first: bool) -> Html:
    text, key = cell if isinstance(cell, Cell) else (cell, float("nan"))
    return element("th" if first else "td", text, scope=first and "row", data_key=key == key and f"{key:.9g}")
