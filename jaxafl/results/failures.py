"""Runs whose parameters stopped being finite: warnings, words, and files that they do not replace."""

from __future__ import annotations

import os
import pathlib
import warnings
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from jaxafl.results.curves import failed_steps
from jaxafl.results.files import load, save

if TYPE_CHECKING:  # importing xarray here would slow down `import jaxafl`
    import xarray as xr

T = TypeVar("T")
_ADVICE = "Smaller learning rates may help."


class FailedRun(UserWarning):
    """Warning that a result ends where its parameters stopped being finite."""


def failures(result: xr.Dataset) -> tuple[str, int]:
    """Returns a message about failed runs ("" if there are none), and the number of other runs.

    Args:
        result: the result of a run or a sweep.
    """
    if "failed_step" not in result.variables:
        step, client = int(result.attrs.get("failed_step", -1)), int(result.attrs.get("failed_client", -1))
        return ("", 1) if step < 0 else (one_failure(step, client), 0)
    steps = result["failed_step"]
    failed = np.argwhere(steps.values >= 0)
    if not len(failed):
        return "", steps.size
    first = steps[tuple(failed[0])]
    at = zip(steps.dims, failed[0], strict=True)
    named = ", ".join(f"{dim}={first[dim].item() if dim in first.coords else index}" for dim, index in at)
    counted = f"the parameters of {len(failed)} of {steps.size} runs stopped being finite; their results end there"
    return f"{counted}, see failed_step: the first is {named}, at step {int(first)}. {_ADVICE}", steps.size - len(
        failed
    )


def place_of(step: int, client: int) -> str:
    """Returns the step and the client of a failure, in words."""
    return f"at server step {step}" + (f", after an update of client {client}" if client >= 0 else "")


def one_failure(step: int, client: int) -> str:
    """Returns the message about a run that failed at a server step, with an update of a client."""
    return f"the parameters stopped being finite {place_of(step, client)}; the result ends there. {_ADVICE}"


def warned(outcome: T, stacklevel: int = 4) -> T:
    """Warns about failed runs, and returns the outcome of a run or a sweep.

    Args:
        outcome: a result, or the value of `train`.
        stacklevel: frames up to the user's call, for the warning.
    """
    one: Any = outcome
    failure = getattr(one, "failure", None)
    message = one_failure(*failure) if failure else failures(one)[0] if hasattr(one, "variables") else ""
    if message:
        warnings.warn(message, FailedRun, stacklevel=stacklevel)
    return outcome


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
