"""Evaluated quantities at one point of each run: a time, step or size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxafl.options import warn
from jaxafl.results.curves import AXES, check_at, known_until

if TYPE_CHECKING:  # importing xarray here would slow down `import jaxafl`
    import xarray as xr

_ALONG = "evaluation"
_WORDS = {"last": "at the end of each run", "last5": "mean of the last 5 evaluations of each run"}
_WORDS |= {"best": "at the best evaluation of each run"}


def in_words(at: str | Mapping[str, Any]) -> str:
    """Returns a point of comparison in words: `at 200 s simulated`, `at the end of each run`."""
    if isinstance(at, str):
        return _WORDS[at]
    check_at(at)
    ((axis, number),) = at.items()
    number = number / AXES[axis].scale
    amount = f"{number:,.0f}" if float(number).is_integer() else f"{number:,g}"
    said = {"time": "s simulated", "bytes": "MB sent"}.get(axis, AXES[axis].name)
    return f"at {amount} {said}"


def at(result: xr.Dataset, **point: float) -> xr.Dataset:
    """Returns the evaluated quantities of each run at a point, from the last evaluation at or before it.

    A run that ends before the point has NaN, with a warning; `.accuracy.fillna(result.final_accuracy)` carries its last
    value on. A mean over all seeds is `jaxafl.at(result, time=200).accuracy.mean("seed", skipna=False)`.

    Args:
        result: the result of a run or a sweep.
        **point: one of `time` (simulated seconds), `server_steps`, `client_updates`, `local_steps` and `bytes`: a
            number.

    Returns:
        Every variable with a dimension `evaluation`, without this dimension. The attribute `at` is the point in words.

    Raises:
        ValueError, TypeError: this is not a point.

    Examples:
        >>> import jaxafl as afl
        >>> problem = afl.theory.quadratic(clients=4)
        >>> client = afl.Client(learning_rate=0.1, steps=2, batch_size=None)
        >>> clock = afl.clock.free_running(concurrency=2, durations=afl.clock.constant(1.0))
        >>> sim = afl.Simulation(problem.data, problem.model, client, afl.server.fedasync(), clock)
        >>> grid = afl.sweep(sim, {"seed": range(3)}, server_steps=10, eval_every=5)
        >>> found = afl.at(grid, time=4.0)
        >>> found.attrs["at"], found.loss.dims, found.eval_step.values.tolist()
        ('at 4 s simulated', ('seed',), 5.0)
    """
    words = in_words(point)
    ((axis, number),) = point.items()
    # as data variables, all
    names = [name for name, values in result.variables.items() if _ALONG in values.dims and name != _ALONG]
    coords = [name for name in names if name in result.coords]
    plain = result.reset_coords(coords)[names].drop_vars(_ALONG, errors="ignore")
    along = plain[AXES[axis].variable]
    place, end = (along <= number).sum(_ALONG) - 1, along.max(_ALONG)  # costs never fall; -1 for a missing run
    if axis == "time":
        end = end.copy(data=known_until(result, end))
    lost = number > end
    known = (place >= 0) & ~lost
    found = plain.map(lambda values: values.isel({_ALONG: place.clip(min=0)}).where(known), keep_attrs=True)
    if lost.any():
        warn(
            f"at: {int(lost.sum())} of {lost.size} runs end before {axis}={number:g}, the first at "
            f"{float(end.where(lost).min()):g}: no value there (NaN)",
        )
    return found.set_coords(coords).assign_attrs(result.attrs | {"at": words})
