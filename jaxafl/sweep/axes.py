"""The axes of a sweep: paths to options, and their values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from jaxafl.data.federated import FederatedData
from jaxafl.models.model import Model
from jaxafl.options import is_static, options_of, tables_of
from jaxafl.simulation import Simulation

Axes = dict[str, list[Any]]
PARTS = ("data", "model", "client", "server", "clock")


def axis_values(simulation: Any, axes: Any) -> Axes:
    """The values of every axis, checked for what needs no simulation."""
    if not isinstance(simulation, Simulation):
        raise TypeError(f"sweep(simulation, ...) got {simulation!r}, which is not a Simulation")
    if not isinstance(axes, Mapping) or not axes:
        raise ValueError(f'a sweep needs at least one axis, e.g. {{"seed": range(5)}}; got {axes!r}')
    values: Axes = {}
    for name, column in axes.items():
        part = str(name).partition(".")[0]
        if part not in (*PARTS, "seed") or not all(str(name).split(".")) or str(name).startswith("seed."):
            raise ValueError(f"a sweep axis is 'seed' or begins with {', '.join(PARTS)}; got {name!r}")
        if not isinstance(column, Iterable) or isinstance(column, str):
            raise TypeError(f"the sweep axis {name!r} needs a list of values, got {column!r}")
        values[name] = _numbers(list(column))
        if not values[name]:
            raise ValueError(f"the sweep axis {name!r} has no values")
        if part in ("data", "model") and name != part:
            raise ValueError(
                f"the sweep axis {name!r} names what is fixed when the {part} is made; sweep over whole ones: "
                f'{{"{part}": [...]}}'
            )
        for other in values:
            if name.startswith(f"{other}.") or other.startswith(f"{name}."):
                raise ValueError(f"the sweep axes {other!r} and {name!r} overlap: give one of them")
    return values


def replace_at(node: Any, path: str, value: Any, whole: str | None = None) -> Any:
    """A copy of a simulation, or of a part of it, with one option replaced.

    Args:
        node: a part, or a simulation.
        path: names from it to the option, with dots.
        value: the new value.
        whole: the path as the user wrote it, for messages.

    Raises:
        ValueError: there is no such option.
    """
    whole = path if whole is None else whole
    name, _, rest = path.partition(".")
    fields = _options(node)
    if name not in fields:
        there = f"there are {', '.join(sorted(fields))}" if fields else "it has none"
        raise ValueError(f"no option {name!r} in the path {whole!r}; {there}")
    new = replace_at(fields[name], rest, value, whole) if rest else value
    for table in tables_of(node):
        if name in getattr(node, table):
            return dataclasses.replace(node, **{table: getattr(node, table) | {name: new}})
    return dataclasses.replace(node, **{name: new})


def _options(node: Any) -> dict[str, Any]:
    """The options that a path can name. What data and models are made of is none: they are swept over as a whole."""
    if isinstance(node, FederatedData | Model) or not dataclasses.is_dataclass(node):
        return {}
    return options_of(node)


def is_static_path(simulation: Simulation, path: str) -> bool:
    """Whether a change of this option compiles a new program."""
    node: Any = simulation
    *parents, name = path.split(".")
    for parent in parents:
        node = _options(node)[parent]
    return node is simulation or is_static(node, name)


def _numbers(column: list[Any]) -> list[Any]:
    """Whole numbers beside fractions as floats, so that 0.5 and 1 run in one program."""
    return [float(value) for value in column] if {type(value) for value in column} == {int, float} else column
