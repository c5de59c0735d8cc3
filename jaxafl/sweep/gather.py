"""What there is in the folder of a sweep."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxafl.options import UserError
from jaxafl.results.arrivals import renewed
from jaxafl.results.clients import along_population
from jaxafl.results.points import with_finals
from jaxafl.sweep.assemble import Dimension, grid, without_steps
from jaxafl.sweep.folder import Contents, SweepFolder

if TYPE_CHECKING:  # xarray takes a third of a second to import, so it is when a result is made
    import xarray as xr


def gather(folder: str | os.PathLike[str]) -> xr.Dataset:
    """The result of a sweep from its folder, finished or under way, also from another process.

    Values are read when they are used. Members that are not finished are missing values; `server_steps_made` says how
    far each member is, `member_error` why one could not be run.

    Args:
        folder: that of `sweep(folder=...)`.

    Raises:
        ValueError: it is not the folder of a sweep, or no member is finished.
    """
    from jaxafl.sweep.stacked import stacked

    kept = SweepFolder(folder)
    dims, steps = [Dimension(*one) for one in kept.about["dims"]], kept.about["steps"]
    shape = tuple(len(dim.labels) for dim in dims)
    known: dict[str, Any] = {}  # what members have in common is held once
    contents = [_shared(kept.contents(place), known) for place in range(int(np.prod(shape)))]
    made, errors = kept.under_way(), [kept.error(place) for place in range(len(contents))]
    far = [made.get(place, 0) if found is None else steps for place, found in enumerate(contents)]
    there = [found for found in contents if found is not None]
    if not there:
        error = next(filter(None, errors), "")
        raise UserError(f"no member of the sweep in {kept.path} is finished (server steps made: {max(far)}){error}")
    missing = without_steps(there[0].outline())
    common = {name for name in missing.attrs if all(one.attrs.get(name) == missing.attrs[name] for one in there)}
    missing.attrs = {name: missing.attrs[name] for name in common}
    outlines = [missing.copy() if found is None else found.outline() for found in contents]
    dataset = grid(outlines, dims)
    axes = tuple(dim.name for dim in dims)
    for name in dict.fromkeys(name for found in there for name in found.variables):
        inner, _, attributes = next(found.variables[name] for found in there if name in found.variables)
        values = stacked(kept, name, contents, shape, tuple(dataset.sizes[dim] for dim in inner))
        dataset[name] = (*axes, *inner), values, attributes
    meaning = {"units": "1", "long_name": f"server steps made, of {steps}", "server_steps": steps}
    dataset["server_steps_made"] = axes, np.reshape(far, shape), meaning
    if any(errors):
        dataset["member_error"] = axes, np.reshape(np.asarray(errors), shape)
    if kept.changed:
        dataset.attrs["resumed"] = kept.changed
    return with_finals(renewed(along_population(dataset)))


def _shared(found: Contents | None, known: dict[str, Any]) -> Contents | None:
    """The same, its parts and attributes those of earlier members where they are equal."""
    if found is None:
        return None
    attrs = {name: known.setdefault(repr(value), value) for name, value in found.attrs.items()}
    return Contents(attrs, *(known.setdefault(repr(part), part) for part in found[1:]))
