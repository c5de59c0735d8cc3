"""Runs whose parameters stopped being finite: warnings and words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxafl.options import warn

if TYPE_CHECKING:  # importing xarray here would slow down `import jaxafl`
    import xarray as xr

_ADVICE = "Smaller learning rates may help."


class FailedRun(UserWarning):
    """Warning that a result ends where its parameters stopped being finite."""


def failures(result: xr.Dataset) -> tuple[str, int]:
    """Returns a message about failed runs ("" if there are none), and the number of other runs.

    Args:
        result: the result of a run or a sweep.
    """
    if "failed_step" not in result.variables:
        step, client = (int(result.attrs.get(name, -1)) for name in ("failed_step", "failed_client"))
        if step < 0:
            return "", 1
        return f"the parameters stopped being finite {place_of(step, client)}; the result ends there. {_ADVICE}", 0
    steps = result["failed_step"]
    failed = int((steps >= 0).sum())
    words = f"the parameters of {failed} of {steps.size} runs stopped being finite; their results end there"
    return f"{words}, see failed_step. {_ADVICE}" if failed else "", steps.size - failed


def place_of(step: int, client: int) -> str:
    """Returns the step and the client of a failure, in words."""
    return f"at server step {step}" + (f", after an update of client {client}" if client >= 0 else "")


def warned(outcome: Any) -> Any:
    """Warns about failed runs, and returns the outcome of a run or a sweep: a result, or the value of `train`."""
    result = outcome if hasattr(outcome, "variables") else getattr(outcome, "dataset", None)
    if result is not None and (message := failures(result)[0]):
        warn(message, FailedRun)
    return outcome
