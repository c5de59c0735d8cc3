"""The results of a sweep's members as one dataset with a named dimension per axis."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxafl.results import MISSING, plain
from jaxafl.sweep.axes import PARTS

if TYPE_CHECKING:  # xarray takes a third of a second to import, so it is when a result is made
    import xarray as xr

_RENAMED = {"client": "local_training"}  # a variable of every result is called `client`
_FAILED = ("failed_step", "failed_client")  # variables of every sweep
_OWN = {"seed", "title"}  # an axis, and a text for people
_LONGEST = 40  # characters of an option's value in a label


def grid(members: list[xr.Dataset], named: dict[str, list[Any]]) -> xr.Dataset:
    """Results of all members as one dataset with a dimension per axis.

    Args:
        members: the members' results, in the order of the grid (the last axis fastest).
        named: axis -> the `labels` of its values.
    """
    import xarray as xr

    axes = {_RENAMED.get(name, name): column for name, column in named.items()}
    _keep_differing(members)
    places = xr.Dataset(coords={name: range(len(column)) for name, column in axes.items()}).stack(member=list(axes))
    folded = concatenated(members, "member").assign_coords(places.coords).unstack("member").transpose(*axes, ...)
    return folded.assign_coords({name: ([name], column) for name, column in axes.items()})


def concatenated(members: list[xr.Dataset], dim: str) -> xr.Dataset:
    """Results along a new dimension; shorter ones are filled with missing values."""
    import xarray as xr

    return xr.concat(
        members,
        dim=dim,
        data_vars="all",
        coords="different",
        join="outer",
        combine_attrs="drop_conflicts",
        compat="equals",
        fill_value={name: MISSING.get(str(name), np.nan) for dataset in members for name in dataset.variables},
    )


def labels(column: list[Any]) -> list[Any]:
    """Coordinates that NetCDF can hold, each its own: values of one name get the options in which they differ."""
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


def label(value: Any) -> Any:
    """A coordinate that NetCDF can hold."""
    if isinstance(value, bool | np.bool_ | None.__class__):
        return str(value)
    if isinstance(value, int | float | str | np.generic):
        return value
    if isinstance(value, jax.Array) and value.ndim == 0:
        return value.item()
    name = getattr(value, "__name__" if callable(value) else "name", None)
    if isinstance(name, str):
        return name
    return type(value).__name__ if dataclasses.is_dataclass(value) else repr(value)


def _options(value: Any) -> dict[str, Any]:
    """The options of a part by the paths that a sweep gives them."""
    description = getattr(value, "description", None)
    return _flat(description if isinstance(description, dict) else plain(value), ())


def _flat(node: Any, path: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(node, dict):
        return {".".join(path): node}
    table: dict[str, Any] = {}
    for key, value in node.items():
        is_table = isinstance(value, dict) and "name" not in value  # a path leaves its name out
        table |= _flat(value, path if is_table else (*path, key))
    return table


def _keep_differing(members: list[xr.Dataset]) -> None:
    """Attributes in which the runs differ become variables; the options of a part are named `<part>_options`."""
    known = {name for dataset in members for name in dataset.attrs}
    for name in dict.fromkeys([*_FAILED, *sorted(known - _OWN)]):
        column = [dataset.attrs.get(name) for dataset in members]
        if name in _FAILED or len(set(map(str, column))) > 1:
            numbers = all(isinstance(value, int | float | None) for value in column)
            variable = f"{name}_options" if name in PARTS else name
            for dataset, value in zip(members, column, strict=True):
                dataset[variable] = (math.nan if value is None else value) if numbers else str(value)
