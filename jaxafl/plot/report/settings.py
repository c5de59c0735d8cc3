"""Settings of results: options as tables, and citations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from jaxafl.plot.report.lines import MANY, PARTS, Lines
from jaxafl.plot.report.markup import ABSENT, Html, element, table
from jaxafl.references import citation
from jaxafl.results.curves import note
from jaxafl.results.tables.members import Member

_RUN = ("seed", "server_steps", "eval_every", "num_clients", "precision", "backend", "jaxafl_version", "resumed")
_GROUPS = ("server", "clock", "client", "attack", "data", "model", "run")
_VALUES = 8  # further values of an option are only counted


def settings(lines: Lines) -> Html:
    """Returns the tables of options that differ between lines, and of options that are equal for all."""
    tables, few = [_flat(line) for line in lines], len(lines) <= MANY
    groups: dict[str, list[list[str]]] = {part: [] for part in _GROUPS}
    differing = []
    for option in dict.fromkeys(option for values in tables for option in values):
        column = [values.get(option, ABSENT) for values in tables]
        part, _, name = option.partition(".")
        if len(set(column)) > 1:
            differing.append([option, *(column if few else [_several(column)])])
        else:
            groups[part if part in groups else "run"].append([name or part, column[0]])
    parts = []
    if differing:
        names = [line.name for line in lines] if few else ["values"]
        title = f"Options in which {'they' if few else 'members'} differ"
        parts.append(element("div", table(title, ["option", *names], differing), class_="wide"))
    for part, rows in groups.items():
        title = part.capitalize() + ", the same for all" * (len(lines) > 1)
        parts += [table(title, ["option", "value"], rows)] if rows else []
    return element("div", *parts, class_="settings")


def cited(lines: Lines) -> str:
    """Returns the BibTeX of all results, each entry once."""
    texts = [note(run, "citation") or citation() for line in lines for run in line.runs]
    return "\n\n".join(dict.fromkeys(entry for text in texts for entry in text.split("\n\n")))


def _flat(line: Member) -> dict[str, str]:
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
