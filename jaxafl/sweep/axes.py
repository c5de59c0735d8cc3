"""The axes of a sweep: paths to options, and their values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxafl.data.federated import FederatedData
from jaxafl.models.model import Model
from jaxafl.options import UserError, bounds_of, did_you_mean, options_of
from jaxafl.simulation import Simulation

PARTS = ("data", "model", "client", "server", "clock", "attack")


class Axis(NamedTuple):
    """A dimension of a sweep.

    Attributes:
        name: name of the dimension.
        paths: the options that vary along the axis.
        rows: values of the paths, one row per position.
        names: names of the rows, if the user gave them.
    """

    name: str
    paths: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    names: list[str] | None = None

    def column(self, path: str) -> list[Any]:
        """Returns the values of a path."""
        return [row[self.paths.index(path)] for row in self.rows]


class NamedPaths(tuple[str, ...]):
    """Paths that vary along one named axis: the key of the axes that `sample` returns."""

    name: str

    def __new__(cls, paths: Iterable[str], name: str) -> NamedPaths:
        key = super().__new__(cls, paths)
        key.name = name
        return key


def axes_of(simulation: Any, axes: Any) -> tuple[Simulation, list[Axis]]:
    """Returns the simulation and the checked axes of a sweep.

    Args:
        simulation: one simulation; or a list or mapping of several, which become the axis `simulation`.
        axes: path -> values, or tuple of paths -> rows of values.
    """
    several = simulation if isinstance(simulation, Mapping | list | tuple) else {}
    names = [str(name) for name in several] if isinstance(several, Mapping) else None
    simulations = list(several.values()) if isinstance(several, Mapping) else list(several)
    if not isinstance(axes, Mapping) or not (axes or simulations):
        raise ValueError(f'a sweep needs at least one axis, e.g. {{"seed": range(5)}}; got {axes!r}')
    found = [Axis("simulation", ("simulation",), [(one,) for one in simulations], names)] if simulations else []
    paths: list[str] = []
    for key, column in axes.items():
        axis = _axis(key, column)
        if axis.name == "together" and (more := sum(other.name.startswith("together") for other in found)):
            axis = axis._replace(name=f"together_{more + 1}")
        for path in axis.paths:
            for other in paths:
                if f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}."):
                    raise ValueError(f"the sweep axes {other!r} and {path!r} overlap: give one of them")
            paths.append(path)
        found.append(axis)
    return simulations[0] if simulations else simulation, found


def _axis(key: Any, column: Any) -> Axis:
    together = isinstance(key, tuple)
    paths = tuple(map(str, key)) if together else (str(key),)
    name = getattr(key, "name", "together") if together else paths[0]
    for path in paths or [""]:
        part = path.partition(".")[0]
        meant = did_you_mean(part, (*PARTS, "seed"))
        if part not in (*PARTS, "seed") or not all(path.split(".")) or path.startswith("seed."):
            raise ValueError(f"a sweep axis is 'seed' or begins with {', '.join(PARTS)}; got {path!r}{meant}")
    if not isinstance(column, Iterable) or isinstance(column, str) or not (column := list(column)):
        raise UserError(f"the sweep axis {name!r} needs a list of values, got {column!r}")
    rows = column if together else [(value,) for value in column]
    for row in rows:
        if not isinstance(row, Sequence) or isinstance(row, str) or len(row) != len(paths):
            raise ValueError(f"the sweep axis {name!r} needs {len(paths)} values in each place, got {row!r}")
    if name == "seed" and len({str(*row) for row in rows}) < len(rows):
        raise ValueError(f"the sweep axis 'seed' names a seed more than once, whose runs would be the same: {column!r}")
    columns: list[Any] = []
    for path, values in zip(paths, zip(*rows, strict=True), strict=True):
        # floats instead of integers among floats, so that 0.5 and 1 run in one program; of an attack 1 could mean all
        mixed = {type(value) for value in values} == {int, float} and path != "attack.clients"
        columns.append(map(float, values) if mixed else values)
    return Axis(name, paths, list(zip(*columns, strict=True)))


def replace_at(node: Any, path: str, value: Any, full_path: str | None = None) -> Any:
    """Returns a copy of a simulation, or of a part of it, with one option replaced.

    Args:
        node: a part, or a simulation.
        path: dotted names from the node to the option.
        value: the new value.
        full_path: the path that the user wrote, for messages; `None` if it is `path`.

    Raises:
        ValueError: the option does not exist.
    """
    full_path = full_path or path
    name, _, rest = path.partition(".")
    fields = _options(node)
    if name not in fields:
        before = full_path.removesuffix(f".{path}")
        listed = f"there are {', '.join(sorted(fields))}" if fields else f"sweep over whole ones: {{{before!r}: [...]}}"
        raise ValueError(f"no option {name!r} in the path {full_path!r}; {listed}{did_you_mean(name, fields)}")
    new = replace_at(fields[name], rest, value, full_path) if rest else value
    return dataclasses.replace(node, **{name: new})


def _options(node: Any) -> dict[str, Any]:
    """Returns the options that a path can name; none of data and models, which are fixed when they are made."""
    if isinstance(node, FederatedData | Model) or not dataclasses.is_dataclass(node):
        return {}
    return options_of(node)


def is_static_path(simulation: Simulation, path: str) -> bool:
    """Returns True if a change of this option compiles a new program."""
    node: Any = simulation
    *parents, name = path.split(".")
    for parent in parents:
        node = _options(node)[parent]
    return node is simulation or any(one.name == name and bounds_of(one).static for one in dataclasses.fields(node))
