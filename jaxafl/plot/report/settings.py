"""Settings of results: options as tables, and citations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from jaxafl.plot.report.lines import MANY, PARTS, Line, Lines, note
from jaxafl.plot.report.markup import ABSENT, Html, element, table
from jaxafl.references import citation

_RUN = ("seed", "server_steps", "eval_every", "num_clients", "precision", "backend", "jaxafl_version", "resumed")
_VALUES = 8  # further values of an option are only counted


def settings(lines: Lines) -> Html:
    """Returns the tables of options that differ between lines, and of options that are equal for all."""
    tables = [_flat(line) for line in lines]
    options = dict.fromkeys(option for values in tables for option in values)
    columns = {option: [values.get(option, ABSENT) for values in tables] for option in options}
    same = {option: column[0] for option, column in columns.items() if len(set(column)) == 1}
    parts = []
    if differing := {option: column for option, column in columns.items() if option not in same}:
        if len(lines) <= MANY:
            names = [line.name or line.result for line in lines]
            rows = [[option, *column] for option, column in differing.items()]
            found = table("Options in which they differ", ["option", *names], rows)
        else:
            rows = [[option, _several(column)] for option, column in differing.items()]
            found = table("Options in which members differ", ["option", "values"], rows)
        parts.append(element("div", found, class_="wide"))
    groups: dict[str, list[list[str]]] = {}
    for option, value in same.items():
        part, _, name = option.partition(".")
        groups.setdefault(part if part in PARTS else "run", []).append([name or part, value])
    for part in ("server", "clock", "client", "attack", "data", "model", "run"):
        if part in groups:
            title = part.capitalize() + ", the same for all" * (len(lines) > 1)
            parts.append(table(title, ["option", "value"], groups[part]))
    return element("div", *parts, class_="settings")


def cited(lines: Lines) -> str:
    """Returns the BibTeX of all results, each entry once."""
    texts = [note(run, "citation") or citation() for line in lines for run in line.runs]
    return "\n\n".join(dict.fromkeys(entry for text in dict.fromkeys(texts) for entry in str(text).split("\n\n")))


def _flat(line: Line) -> dict[str, str]:
    """Returns option -> value, as texts, of the first run of a line, without options that are not used."""
    found = {}
    for part in PARTS:
        text = note(line.runs[0], f"{part}_options") or line.runs[0].attrs.get(part)
        options = json.loads(text) if isinstance(text, str) else {}
        if "name" in options and part != "client":
            found[part] = str(options["name"])
        for option, value in options.items():
            if option != "name" and value not in (None, []):
                found[f"{part}.{option}"] = _shown(value)
    for name in _RUN:
        values = dict.fromkeys(_shown(value) for run in line.runs if (value := note(run, name)) is not None)
        if values:
            found[name.replace("jaxafl_version", "jaxafl").replace("_", " ")] = _several(list(values))
    return found


def _shown(value: Any) -> str:
    """Returns the value of an option as text; that of a part within a part is such as `uniform(low=1, high=5)`."""
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, dict):
        given = (f"{name}={_shown(one)}" for name, one in value.items() if name != "name" and one not in (None, []))
        return f"{value.get('name', 'dict')}({', '.join(given)})"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def _several(values: Sequence[str]) -> str:
    different = list(dict.fromkeys(values))
    more = f" … ({len(different):,} values)" if len(different) > _VALUES else ""
    return ", ".join(different[:_VALUES]) + more
