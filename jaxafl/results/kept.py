"""Results under names that are taken."""

from __future__ import annotations

import os
import pathlib
import warnings
from typing import TYPE_CHECKING

import numpy as np

from jaxafl.results.files import load, save

if TYPE_CHECKING:
    import xarray as xr


def keep(dataset: xr.Dataset, path: str | os.PathLike[str]) -> pathlib.Path:
    """Saves a result, as `save` does, but beside an earlier file that holds more runs which came to their end.

    A result replaces an earlier file if any of its runs did come to its end and none is missing: runs whose parameters
    stopped being finite, and members of a sweep that have not run, are no reason to give a whole result up.

    Returns:
        The file that was written: `path`, or `NAME.incomplete.nc` beside it, which a warning says.
    """
    path = pathlib.Path(path)
    ended, missing = _ended(dataset)
    if (missing or not ended) and path.is_file():
        try:
            before, _ = _ended(load(path))
        except ValueError:  # damaged, or no result
            before = 0
        if before > ended:
            kept, path = path, path.with_name(f"{path.stem}.incomplete{path.suffix}")
            said = f"{missing} runs are missing" if missing else "the parameters stopped being finite"
            warnings.warn(f"{said}, so the result is written to {path}, and {kept} stays as it was", stacklevel=3)
    save(dataset, path)
    dataset.encoding["source"] = str(path)  # as xarray says where a dataset has been read
    return path


def _ended(dataset: xr.Dataset) -> tuple[int, int]:
    """Counts the runs that came to their end, and those that are missing."""
    failed = dataset["failed_step"] if "failed_step" in dataset.variables else dataset.attrs.get("failed_step", -1)
    there = np.ones(np.shape(failed), bool)
    if "server_steps_made" in dataset.variables:
        made = dataset["server_steps_made"]
        there = np.asarray(made.values >= made.attrs["server_steps"])
    return int(np.sum(there & ~(np.asarray(failed) >= 0))), int(np.sum(~there))
