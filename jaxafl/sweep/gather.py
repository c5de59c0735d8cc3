"""The result of a sweep from its folder."""

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
    """Returns the result of a finished or unfinished sweep from its folder, in any process.

    Values are read on first use. Members that are not finished have missing values. `server_steps_made` holds the
    progress of each member, and `final_step` that of its last evaluation if it is finished. `member_error` is the error
    of a failed one.

    Args:
        folder: the folder of `sweep(folder=...)`.

    Raises:
        ValueError: the folder holds no sweep, or no member is finished.
    """
    from jaxafl.sweep.stacked import stacked

    kept = SweepFolder(folder)
    dims = [Dimension(*one) for one in kept.about["dims"]]
    steps = kept.about["steps"]
    shape = tuple(len(dim.labels) for dim in dims)
    known: dict[str, Any] = {}  # equal parts of members share memory
    contents = [_shared(kept.contents(place), known) for place in range(int(np.prod(shape)))]
    saved = kept.under_way()
    errors = [kept.error(place) for place in range(len(contents))]
    far = [saved.get(place, 0) if found is None else found.sizes["step"] for place, found in enumerate(contents)]
    finished = [found for found in contents if found is not None]
    if not finished:
        error = next(filter(None, errors), "")
        raise UserError(f"no member of the sweep in {kept.path} is finished (server steps made: {max(far)}){error}")
    missing = without_steps(finished[0].outline())
    common = {name for name in missing.attrs if all(one.attrs.get(name) == missing.attrs[name] for one in finished)}
    missing.attrs = {name: missing.attrs[name] for name in common}
    outlines = [missing.copy() if found is None else found.outline() for found in contents]
    dataset = grid(outlines, dims)
    axes = tuple(dim.name for dim in dims)
    for name in dict.fromkeys(name for found in finished for name in found.variables):
        inner, _, attributes = next(found.variables[name] for found in finished if name in found.variables)
        values = stacked(kept, name, contents, shape, tuple(dataset.sizes[dim] for dim in inner))
        dataset[name] = (*axes, *inner), values, attributes
    meaning = {"units": "1", "long_name": f"server steps made, at most {steps}", "server_steps": steps}
    dataset["server_steps_made"] = axes, np.reshape(far, shape), meaning
    if any(errors):
        dataset["member_error"] = axes, np.reshape(np.asarray(errors), shape)
    if kept.changed:
        dataset.attrs["resumed"] = kept.changed
    return with_finals(renewed(along_population(dataset)))


def _shared(found: Contents | None, known: dict[str, Any]) -> Contents | None:
    """Returns equal contents that share parts and attributes with earlier members, to save memory."""
    if found is None:
        return None
    attrs = {name: known.setdefault(repr(value), value) for name, value in found.attrs.items()}
    return Contents(attrs, *(known.setdefault(repr(part), part) for part in found[1:]))
