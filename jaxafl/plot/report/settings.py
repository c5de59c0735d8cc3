"""Settings of results: options as tables, code that repeats the runs, and citations."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import xarray as xr

from jaxafl import clock, server
from jaxafl.client import Client, attack
from jaxafl.plot.report.lines import MANY, PARTS, Line, Lines, note
from jaxafl.plot.report.markup import ABSENT, Html, element, joined, table
from jaxafl.references import citation
from jaxafl.results import plain
from jaxafl.server import aggregate

_RUN = ("seed", "server_steps", "eval_every", "num_clients", "precision", "backend", "jaxafl_version", "resumed")
_OPERATORS = {"Sum": "+", "Product": "*"}
_VALUES = 8  # further values of an option are only counted


def settings(lines: Lines) -> Html:
    """Returns the tables of options that differ between lines, and of options that are equal for all."""
    tables = [_flat(line) for line in lines]
    options = list(dict.fromkeys(option for values in tables for option in values))
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
            title = {"client": "Local training", "data": "Data", "run": "Run"}.get(part, part.capitalize())
            parts.append(table(f"{title}{', the same for all' * (len(lines) > 1)}", ["option", "value"], groups[part]))
    return element("div", *parts, class_="settings")


def again(lines: Lines, results: Mapping[str, xr.Dataset]) -> Html:
    """Returns the code that repeats each result."""
    blocks = []
    for name, dataset in results.items():
        first = next(line for line in lines if line.result == name)
        code = element("code", _code(first, dataset))
        code = element("pre", code, tabindex="0", role="region", aria_label=f"Python, {name}")
        blocks.append(element("details", element("summary", name), code) if len(results) > 1 else code)
    versions = sorted({str(one.attrs["jaxafl_version"]) for one in results.values() if "jaxafl_version" in one.attrs})
    release = f"With jaxafl {' and '.join(versions)}, " if versions else ""
    lead = (
        f"{release}the same seed gives the same result, bit for bit, on the same machine with the same packages. "
        "Options at their defaults are left out. Data and models, which have no code in a result, are comments."
    )
    return joined([element("p", lead[0].upper() + lead[1:]), *blocks])


def cited(lines: Lines) -> str:
    """Returns the BibTeX of all results, each entry once."""
    texts = [note(run, "citation") or citation() for line in lines for run in line.runs]
    return "\n\n".join(dict.fromkeys(entry for text in dict.fromkeys(texts) for entry in str(text).split("\n\n")))


_NESTED = (aggregate, attack)
"""Modules of the parts within parts, and of attacks."""


def written(part: Any, room: Any = clock) -> str:
    """Returns the expression that constructs a part, such as `afl.clock.uniform(low=1, high=5)`.

    Args:
        part: description of the part in a result, from JSON.
        room: module of its name; a name that the module lacks is a user's.
    """
    if isinstance(part, list):
        return f"[{', '.join(written(one, room) for one in part)}]"
    if isinstance(part, str) and part.startswith("array["):  # a long array, which results do not keep
        return "..."
    if not isinstance(part, dict):
        return repr(part)
    name = str(part.get("name", "dict"))
    room = next((one for one in (room, *_NESTED) if name in getattr(one, "__all__", ())), room)
    usual = _defaults(getattr(room, name, None))
    given = {key: value for key, value in part.items() if key != "name" and (key not in usual or usual[key] != value)}
    if name in _OPERATORS and set(given) == {"left", "right"}:
        return f"({written(given['left'])} {_OPERATORS[name]} {written(given['right'])})"
    prefix = f"afl.{room.__name__.rpartition('.')[2]}." if name in getattr(room, "__all__", ()) else ""
    return f"{prefix}{name}({', '.join(f'{key}={written(value, room)}' for key, value in given.items())})"


def _defaults(kind: Any) -> dict[str, Any]:
    """Returns the defaults of the options of a part's class, as plain values."""
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    return {field.name: plain(field.default) for field in fields if field.default is not dataclasses.MISSING}


def _parts(line: Line) -> dict[str, Any]:
    """Returns the description of each part, for the first run of a line."""
    found = {}
    for part in PARTS:
        text = note(line.runs[0], f"{part}_options") or line.runs[0].attrs.get(part)
        if isinstance(text, str):
            found[part] = json.loads(text)
    return found


def _flat(line: Line) -> dict[str, str]:
    """Returns option -> value, as texts, without options that are not used."""
    found = {}
    for part, options in _parts(line).items():
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
    if isinstance(value, dict | list):
        return written(value).replace("afl.clock.", "")
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def _several(values: Sequence[str]) -> str:
    different = list(dict.fromkeys(values))
    more = f" … ({len(different):,} values)" if len(different) > _VALUES else ""
    return ", ".join(different[:_VALUES]) + more


def _code(line: Line, dataset: xr.Dataset) -> str:
    """Returns the Python code of a run, with the descriptions of data and model as comments."""
    parts = _parts(line)
    run = line.runs[0]
    client = dict(parts.get("client", {}))
    optimizer = client.pop("optimizer", "sgd")
    usual = _defaults(Client)
    given = {key: value for key, value in client.items() if key != "name" and value != usual.get(key) and value != []}
    options = ", ".join([f"optax.{optimizer}", *(f"{key}={written(value)}" for key, value in given.items())])
    length = {"server_steps": note(run, "server_steps"), "eval_every": note(run, "eval_every")}
    steps = ", ".join(f"{name}={int(number)}" for name, number in length.items() if number and math.isfinite(number))
    if "sweep" in dataset.attrs:
        axes = json.loads(dataset.attrs["sweep"])
        call = f"result = afl.sweep(sim, {axes!r}, {steps})"
    else:
        call = f"result = sim.run({steps}, seed={int(note(run, 'seed') or 0)})"
    precision = (parts.get("model") or {}).get("precision")  # only recorded if it is not the default of JAX
    lines = [
        "import jaxafl as afl",
        "import optax",
        "",
        "sim = afl.Simulation(",
        f"    # {_words(parts.get('data'))}",
        "    data=...,",
        f"    # {_words(parts.get('model'))}",
        "    model=...,",
        f"    client=afl.Client({options}),",
        f"    server={written(parts.get('server', '...'), server)},",
        f"    clock={written(parts.get('clock', '...'))},",
        *[f"    attack={written(parts.get('attack'))},"] * ("attack" in parts),
        *[f"    precision={precision!r},"] * (precision is not None),
        ")",
        call,
    ]
    return "\n".join(lines)


def _words(options: Any) -> str:
    return ", ".join(f"{key} {_shown(value)}" for key, value in (options or {}).items() if value not in (None, []))
