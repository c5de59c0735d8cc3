"""Saving a result without replacing a more complete file."""

from __future__ import annotations

import os
import pathlib
import warnings
from typing import TYPE_CHECKING

import numpy as np

from jaxafl.results.curves import failed_steps
from jaxafl.results.files import load, save

if TYPE_CHECKING:
    import xarray as xr


def keep(dataset: xr.Dataset, path: str | os.PathLike[str]) -> pathlib.Path:
    """Saves a result with `save`, under another name if an earlier file holds more completed runs.

    A result replaces the earlier file if none of its runs is missing and at least one was completed. Failed runs and
    missing members of a sweep never replace a more complete result.

    Returns:
        The written file: `path`, or with a warning `NAME.incomplete.nc` in the same directory.
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
            reason = f"{missing} runs are missing" if missing else "the parameters stopped being finite"
            warnings.warn(f"{reason}, so the result is written to {path}, and {kept} stays as it was", stacklevel=3)
    save(dataset, path)
    dataset.encoding["source"] = str(path)  # the key under which xarray keeps the file of a loaded dataset
    return path


def _ended(dataset: xr.Dataset) -> tuple[int, int]:
    """Returns the numbers of completed and of missing runs."""
    failed = failed_steps(dataset)
    complete = np.ones(np.shape(failed), bool)
    if "server_steps_made" in dataset.variables:
        complete = np.isfinite(dataset["final_time"].values)
    return int(np.sum(complete & ~(np.asarray(failed) >= 0))), int(np.sum(~complete))
