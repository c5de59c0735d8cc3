"""Variables of arrivals: a value per arrival slot of a server step, missing in slots without an arrival."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxafl.clock import Schedule
from jaxafl.results.curves import stated

if TYPE_CHECKING:  # importing xarray here would slow down `import jaxafl`
    import xarray as xr

MISSING: dict[str, float] = {"client_id": -1, "run_index": -1, "kind": -1, "arrived": False}
"""Values of indices and of `arrived` in slots without an arrival. Other variables are NaN in them."""
_NUMBERS = {name: name for name in ("staleness", "local_steps", "multiplicity")}
_NUMBERS |= {"started": "started_at", "arrived": "arrived_at"}


def masked(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Returns numbers as floats, NaN where the mask is False, so that means and sums skip padding.

    Integers become float64, which holds them and their sums exactly. Booleans become False.

    Args:
        values: [T, A].
        mask: bool [T, A], the arrivals.
    """
    return values & mask if values.dtype.kind == "b" else np.where(mask, values, np.nan)


def staleness_of(runs: Sequence[xr.Dataset]) -> np.ndarray:
    """Returns the staleness of all arrivals of some runs, float [arrivals]."""
    found = [run["staleness"].values.ravel() for run in runs if "staleness" in run.variables]
    every = np.concatenate([np.zeros(0), *found])
    return every[every >= 0]  # padding is NaN


def discarded_runs(run: xr.Dataset, name: str) -> float:
    """Returns the number of runs that were `"refused"`, `"stopped"` or `"lost"`; the mean over members of a sweep."""
    return float(np.mean(np.nan_to_num(np.asarray(stated(run, f"runs_{name}", 0), float))))


def of_schedule(schedule: Schedule, losses: np.ndarray | None) -> dict[str, Any]:
    """Returns the variables of a schedule, name -> (dimensions, values).

    Those of arrivals are followed by those of server steps: the number of arrivals, and means over them (NaN without
    an arrival).

    Args:
        schedule: the schedule.
        losses: mean loss of each run, [T, A]; `None` if it is not known.
    """
    mask, places = schedule.mask, ("step", "arrival")
    indices = {"client_id": schedule.client, "run_index": schedule.run}
    if schedule.kinds:
        indices["kind"] = schedule.kind
    found: dict[str, Any] = {"arrived": (places, mask.copy())}
    for name, values in indices.items():
        found[name] = places, np.where(mask, values, int(MISSING[name]))
    for column, name in _NUMBERS.items():
        found[name] = places, masked(getattr(schedule, column), mask)
    found["step_arrivals"] = "step", mask.sum(axis=1)
    averaged = {"step_staleness": (schedule.staleness, mask)}
    if losses is not None:
        averaged["step_loss"] = losses, mask & (schedule.local_steps > 0)  # others have none
    for name, (values, counted) in averaged.items():
        means = np.ma.masked_array(values, ~counted).mean(axis=1, dtype=float)
        found[name] = "step", np.ma.filled(means, np.nan)
    return found
