"""Variables of arrivals: a value per place of a server step, missing at the places where nothing arrived."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from jaxafl.clock import Schedule

if TYPE_CHECKING:  # xarray takes a third of a second to import, so it is when a result is made
    import xarray as xr

MISSING: dict[str, float] = {"client": -1, "run_index": -1, "kind": -1, "arrived": False}
"""Values of indices, and of `arrived`, at places without an arrival; all other variables are NaN there."""
_PLACES = ("step", "arrival")
_TIMES = {"started": "started_at", "arrived": "arrived_at"}
_COUNTS = ("staleness", "local_steps", "multiplicity")


def masked(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Returns numbers as floats that are NaN where the mask is False, so that means and sums take arrivals only.

    Whole numbers become float64, in which they, and sums of them, are exact. Booleans become False.

    Args:
        values: [T, A].
        mask: bool [T, A], the arrivals.
    """
    if values.dtype.kind == "b":
        return values & mask
    return np.where(mask, values, np.nan if values.dtype.kind == "f" else np.float64(np.nan))


def of_schedule(made: Schedule) -> dict[str, Any]:
    """Variables of the arrivals of a schedule: name -> (dimensions, values)."""
    indices = {"client": made.client, "run_index": made.run} | ({"kind": made.kind} if made.kinds else {})
    found: dict[str, np.ndarray] = {"arrived": made.mask}
    found |= {name: np.where(made.mask, values, int(MISSING[name])) for name, values in indices.items()}
    found |= {name: masked(getattr(made, name), made.mask) for name in _COUNTS}
    found |= {own: masked(getattr(made, name), made.mask) for name, own in _TIMES.items()}
    return {name: (_PLACES, values) for name, values in found.items()}


def by_step(made: Schedule, losses: np.ndarray | None) -> dict[str, Any]:
    """Variables of server steps: their arrivals, and means over them; NaN where there is none.

    Args:
        made: the schedule.
        losses: mean loss of each run, [T, A]; `None` if it is not known.
    """
    counts = made.mask.sum(axis=1)
    found: dict[str, Any] = {"step_arrivals": counts, "step_staleness": _means(made.staleness, made.mask, counts)}
    found |= {} if losses is None else {"step_loss": _means(losses, made.mask, counts)}
    return {name: (("step",), values) for name, values in found.items()}


def renewed(result: xr.Dataset) -> xr.Dataset:
    """A result of an earlier version with the variables of this one.

    There, `arrived` and `started` were times (`arrived_at`, `started_at` here), `run_index` was called `run`, and
    counts were -1 or 0 at places without an arrival.
    """
    if "run_index" not in result and "run" in result and "client" in result:
        result = result.rename({"run": "run_index"})
    if "client" not in result or result.get("arrived") is None or result["arrived"].dtype.kind == "b":
        return result
    there = result["client"] >= 0
    renamed = result.rename({name: own for name, own in _TIMES.items() if name in result})
    counts = {name: renamed[name].where(there).astype(float) for name in _COUNTS if name in renamed}
    counts = {name: values.assign_attrs(renamed[name].attrs) for name, values in counts.items()}
    means = {"step_arrivals": there.sum("arrival"), "step_staleness": counts["staleness"].mean("arrival")}
    if "local_loss" in renamed:
        means["step_loss"] = renamed["local_loss"].mean("arrival")
    return renamed.assign(counts | means | {"arrived": there.assign_attrs(units="1")})


def _means(values: np.ndarray, mask: np.ndarray, counts: np.ndarray) -> np.ndarray:
    total = np.where(mask, values, 0).sum(axis=1, dtype=float)
    return np.divide(total, counts, out=np.full(len(counts), np.nan), where=counts > 0)
