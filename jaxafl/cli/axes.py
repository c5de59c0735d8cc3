"""The axes of `jaxafl sweep`: `--axis server.lam=1,3,5 --axis seed=0:5`."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxafl.cli import catalogue
from jaxafl.cli.expression import parse_durations
from jaxafl.cli.names import Chosen, find, is_given, values_of
from jaxafl.grid import PARTS
from jaxafl.simulation import Simulation
from jaxafl.sweep import replace_at

_FORM = "write NAME=VALUE,VALUE,... or NAME=FIRST:STOP, e.g. server.lam=1,3,5 or seed=0:5"
_WORDS = {"none": None, "true": True, "false": False}

Axes = dict[str, list[Any]]


def read_axes(arguments: Sequence[str]) -> Axes:
    """The axes as they are written, name -> values.

    Raises:
        ValueError: one has another form, is given twice, or beside the option that it varies.
    """
    axes: Axes = {}
    for name, values in map(parse_axis, values_of(arguments, "--axis")):
        if name in axes:
            raise ValueError(f"--axis {name} is given twice; write all of its values in one")
        flag = f"--{name.replace('_', '-')}"
        if is_given(arguments, flag):
            raise ValueError(f"{flag} is given beside --axis {name}, which sets it; leave one of them out")
        axes[name] = values
    return axes


def parse_axis(text: str) -> tuple[str, list[Any]]:
    """The name and values of `server.lam=1,3,5`, `seed=0:5` (0, 1, 2, 3, 4) or `client.steps=[1,2],[2,2]`.

    Raises:
        ValueError: it has another form, or a value is empty.
    """
    name, equals, values = text.partition("=")
    name = name.strip().replace("-", "_")
    if not (name and equals and values.strip()):
        raise ValueError(f"--axis {text!r}: {_FORM}")
    written = [value.strip() for value in _split(values)]
    if "" in written:
        raise ValueError(f"--axis {text!r}: there is an empty value beside a comma; {_FORM}")
    if ":" not in values:
        return name, [_value(value) for value in written]
    try:
        found = list(range(*(int(part) for part in values.split(":"))))
    except (ValueError, TypeError) as error:
        raise ValueError(f"--axis {text!r}: a range needs whole numbers; {_FORM}") from error
    if not found:
        raise ValueError(f"--axis {text!r}: the range is empty; {_FORM}")
    return name, found


def begin_with(options: Any, axes: Axes) -> Any:
    """The options with the first value of each axis, so that what is varied is there to be replaced."""
    for name, values in axes.items():
        part, _, option = name.partition(".")
        group = getattr(options, part, None)
        if option and dataclasses.is_dataclass(group) and hasattr(group, option):
            first = next((value for value in values if value is not None), None)
            options = dataclasses.replace(options, **{part: dataclasses.replace(group, **{option: first})})  # type: ignore[type-var]
    return options


def as_paths(axes: Axes, names: Chosen, simulation: Simulation) -> Axes:
    """The axes as `jaxafl.sweep` takes them: by paths in the simulation, with names and durations resolved.

    Raises:
        ValueError: there is no such option, or nothing of such a name.
    """
    resolved: Axes = {}
    for name, values in axes.items():
        path = "client.proximal" if (names.server.name, name) == ("fedprox", "server.mu") else name
        resolved[path] = [_resolved(name, value, names, simulation) for value in values]
        part, _, option = path.partition(".")
        if part not in PARTS or not option:
            continue
        try:
            replace_at(simulation, path, resolved[path][0])
        except ValueError as error:
            made = names.optimizer if part == "client" else getattr(names, part)
            what, flag = ("optimiser", "client.optimizer") if part == "client" else (part, part)
            raise ValueError(f"--axis {name}: {error}. The {what} is {made.name}; --{flag} chooses another") from error
    return resolved


def _resolved(name: str, value: Any, names: Chosen, simulation: Simulation) -> Any:
    if name == "client.optimizer":
        optimizer = find(str(value), "optimiser", catalogue.optimizers())
        unknown = set(simulation.client.hyperparameters) - {option.name for option in optimizer.options}
        if unknown:
            raise ValueError(f"--axis {name}: {value} has no option {', '.join(sorted(unknown))}")
        return optimizer.call
    if any(option.expression and name == f"clock.{option.name}" for option in names.clock.options):
        return parse_durations(str(value))
    return value


def _split(text: str) -> list[str]:
    """At the commas outside brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _value(text: str) -> Any:
    """A number, a list, True, False or None; anything else is a string, with or without quotes."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value if isinstance(value, int | float | str | list) else text
