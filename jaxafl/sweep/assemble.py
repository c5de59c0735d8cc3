"""Assembly of the results of a sweep's members into one dataset with a named dimension per axis."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np
import optax
from flax.traverse_util import flatten_dict

from jaxafl.results import MISSING, plain
from jaxafl.results.clients import NAMES
from jaxafl.simulation import Simulation
from jaxafl.sweep.axes import PARTS, Axis

if TYPE_CHECKING:  # xarray takes a third of a second to import, so it is when a result is made
    import xarray as xr

_FAILED = ("failed_step", "failed_client")  # variables of every sweep
_PER_RUN = {"seed", "title", "failed"}  # attributes that never become variables
_LONGEST = 40  # characters of an option's value in a label


Dimensions: TypeAlias = Mapping[str, Mapping[str, list[Any]]]
"""Dimensions of a sweep's result: name of an axis -> its coordinates, path -> labels. One has the name of the axis."""


def dimensions(axes: Sequence[Axis]) -> Dimensions:
    """Returns the dimensions of the axes of a sweep. The places of an axis of several paths are numbers."""
    found = {}
    for axis in axes:
        columns = {path: axis.names or labels(axis.column(path)) for path in axis.paths}
        found[axis.name] = {axis.name: list(range(len(axis.rows)))} | columns
    return found


def shape_of(dims: Dimensions) -> dict[str, int]:
    """Returns name -> size of the dimensions."""
    return {name: len(columns[name]) for name, columns in dims.items()}


def assembled(dims: Dimensions, ended: Mapping[int, xr.Dataset]) -> xr.Dataset:
    """Returns the result of a sweep. Members that have not run have no server steps, and common attributes.

    Args:
        dims: dimensions of the result.
        ended: index of a member in the grid (the last axis fastest) -> its result; at least one.
    """
    import xarray as xr

    first, *others = ended.values()
    missing = first.isel(step=slice(0), evaluation=slice(0), version=slice(0), missing_dims="ignore")
    for name, values in missing.data_vars.items():
        unknown = values.dtype.kind == "f" or (values.dtype.kind in "iu" and values.size)
        missing[name] = xr.full_like(values, np.nan, float) if unknown else xr.full_like(values, 0)
    missing.attrs = {
        name: text
        for name, text in first.attrs.items()
        if name not in (*_FAILED, "failed", "stopped") and all(one.attrs.get(name) == text for one in others)
    }
    shape = shape_of(dims)
    members = [ended.get(place, missing).copy() for place in range(math.prod(shape.values()))]
    _keep_differing(members)
    places = xr.Dataset(coords={name: range(size) for name, size in shape.items()}).stack(member=[*shape])
    if not all(NAMES in one.coords for one in members):
        members = [one.drop_vars(NAMES, errors="ignore") for one in members]
    fill = {str(name): MISSING.get(str(name), np.nan) for one in members for name in one.variables} | {NAMES: ""}
    how: Any = {"coords": "different", "combine_attrs": "drop_conflicts", "compat": "equals", "fill_value": fill}
    folded = xr.concat(members, "member", data_vars="all", join="outer", **how)  # shorter members are padded
    folded = folded.assign_coords(places.coords).unstack("member").transpose(*shape, ...)
    coords = {path: (name, column) for name, columns in dims.items() for path, column in columns.items()}
    folded = folded.assign_coords({path: (name, _exact(column)) for path, (name, column) in coords.items()})
    # an attribute that only some members have would be wrong for the whole sweep; it is a variable
    shared = set.intersection(*(set(one.attrs) for one in members)) - {"failed"}
    failed = int((folded["failed_step"] >= 0).sum())
    failures = {"failed": f"{failed} of {len(members)} runs, see failed_step"} if failed else {}
    folded.attrs = failures | {name: text for name, text in folded.attrs.items() if name in shared}
    folded.attrs["sweep"] = json.dumps({name: column for name, (_, column) in coords.items()}, default=str)
    return folded


def labels(column: list[Any]) -> list[Any]:
    """Returns unique coordinates that NetCDF can hold. Values with equal names get the options in which they differ."""
    found = [label(value) for value in column]
    for name in {name for name in found if isinstance(name, str) and found.count(name) > 1}:
        places = [place for place, other in enumerate(found) if other == name]
        options = [_options(column[place]) for place in places]
        keys = dict.fromkeys(key for table in options for key in table)
        short = [key for key in keys if all(len(str(table.get(key))) <= _LONGEST for table in options)]
        differing = [key for key in short if len({repr(table.get(key)) for table in options}) > 1]
        for number, (place, table) in enumerate(zip(places, options, strict=True)):
            described = ", ".join(f"{key}={table[key]}" for key in differing if key in table)
            found[place] = f"{name}({described})" if described else f"{name} {number}"
    return found


def _exact(column: list[Any]) -> Any:
    """Returns integers beyond int64 as a uint64 array, since NumPy would round them to floats; else the column."""
    whole = all(isinstance(value, int | np.integer) for value in column)
    return np.asarray(column, np.uint64) if whole and max(map(int, column)) > np.iinfo(np.int64).max else column


def label(value: Any) -> Any:
    """Returns a value as a coordinate that NetCDF can hold."""
    if isinstance(value, bool | np.bool_ | None):
        return str(value)
    if isinstance(value, int | float | str | np.generic):
        return value
    if isinstance(value, np.ndarray | jax.Array):
        text = value.item() if value.ndim == 0 else str(value.tolist())
        return text if value.ndim == 0 or len(text) <= _LONGEST else f"array{list(value.shape)}"
    if isinstance(value, Simulation):
        return f"{value.server.name} on {value.clock.name}"
    if isinstance(value, optax.GradientTransformation):
        return value.update.__qualname__.split(".")[0]  # of `clip.<locals>.update_fn`
    name = getattr(value, "__name__" if callable(value) else "name", None)
    if isinstance(name, str):
        return name
    return type(value).__name__ if dataclasses.is_dataclass(value) else re.sub(" at 0x[0-9a-f]+", "", repr(value))


def _options(value: Any) -> dict[str, Any]:
    """Returns path -> value of a part's options; empty for other values."""
    description = getattr(value, "description", None)
    node = description if isinstance(description, dict) else plain(value)
    return flatten_dict(node, sep=".") if isinstance(node, dict) else {}


def _keep_differing(members: list[xr.Dataset]) -> None:
    """Converts attributes in which the runs differ to variables.

    Options of a part are named `<part>_options`, and others `attribute_<name>` if a record has their name.
    """
    known = {name for dataset in members for name in dataset.attrs}
    taken = {name for dataset in members for name in dataset.variables}
    added: list[dict[str, Any]] = [{} for _ in members]
    for name in dict.fromkeys([*_FAILED, *sorted(known - _PER_RUN)]):
        column = [dataset.attrs.get(name) for dataset in members]
        if name in _FAILED or len(set(map(str, column))) > 1:
            numbers = all(isinstance(value, int | float | None) for value in column)
            variable = f"{name}_options" if name in PARTS else name
            if variable in taken:
                variable = f"attribute_{name}"
            for variables, value in zip(added, column, strict=True):
                variables[variable] = (math.nan if value is None else value) if numbers else str(value)
    for dataset, variables in zip(members, added, strict=True):
        dataset.update(variables)
