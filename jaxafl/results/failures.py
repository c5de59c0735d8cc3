"""Warnings and words for runs whose parameters stopped being finite."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:  # xarray takes a third of a second to import, so it is when a result is made
    import xarray as xr

T = TypeVar("T")
_NAMED = 5  # failed runs that are named one by one
_ADVICE = "Smaller learning rates may help."


class FailedRun(UserWarning):
    """Warns that a result ends where its parameters stopped being finite."""


def failures(result: xr.Dataset) -> tuple[str, int]:
    """Returns what to say of the runs that failed ("" if none did), and how many did not.

    Args:
        result: of a run or a sweep.
    """
    if "failed_step" not in result.variables:
        step, client = int(result.attrs.get("failed_step", -1)), int(result.attrs.get("failed_client", -1))
        return ("", 1) if step < 0 else (one_failure(step, client), 0)
    steps = result["failed_step"]
    failed = np.argwhere(steps.values >= 0)
    if not len(failed):
        return "", steps.size
    places = []
    for place in failed[:_NAMED]:
        run = steps[tuple(place)]
        at = zip(steps.dims, place, strict=True)
        named = ", ".join(f"{dim}={run[dim].item() if dim in run.coords else index}" for dim, index in at)
        places.append(f"{named} at step {int(run)}")
    places += [f"{len(failed) - _NAMED} more"] if len(failed) > _NAMED else []
    counted = f"the parameters of {len(failed)} of {steps.size} runs stopped being finite; their results end there"
    return f"{counted}: {'; '.join(places)}. {_ADVICE}", steps.size - len(failed)


def place_of(step: int, client: int) -> str:
    """Returns where a run failed, in words."""
    return f"at server step {step}" + (f", after an update of client {client}" if client >= 0 else "")


def one_failure(step: int, client: int) -> str:
    """Returns what to say of one run that failed at a server step, with an update of a client."""
    return f"the parameters stopped being finite {place_of(step, client)}; the result ends there. {_ADVICE}"


def warned(made: T, stacklevel: int = 4) -> T:
    """Returns what a run or a sweep made, after a warning of what failed.

    Args:
        made: a result, or what `train` returns.
        stacklevel: of the caller of the user's.
    """
    one: Any = made
    failure = getattr(one, "failure", None)
    said = one_failure(*failure) if failure else failures(one)[0] if hasattr(one, "variables") else ""
    if said:
        warnings.warn(said, FailedRun, stacklevel=stacklevel)
    return made
