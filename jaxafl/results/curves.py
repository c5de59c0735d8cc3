"""The curve of a run, a metric of its evaluated models, and numbers read off it: values, and points of a target.

Between two evaluations a curve has the value of the earlier one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxafl.models import metrics
from jaxafl.options import UserError, check_number, did_you_mean, shown

if TYPE_CHECKING:  # importing xarray here would slow down `import jaxafl`
    import xarray as xr

_PLACES = ("last", "last5", "best")


class Axis(NamedTuple):
    """A cost against which runs are compared.

    Attributes:
        variable: the variable of a result.
        name: the name in words.
        unit: the unit in which it is shown; empty for a number.
        scale: the size of the shown unit in units of the variable.
    """

    variable: str
    name: str
    unit: str = ""
    scale: float = 1.0

    @property
    def label(self) -> str:
        """The name and the unit."""
        return f"{self.name} ({self.unit})" if self.unit else self.name


AXES = {
    "time": Axis("eval_time", "simulated time", "s"),
    "server_steps": Axis("eval_step", "server steps"),
    "client_updates": Axis("eval_updates", "client updates"),
    "local_steps": Axis("eval_local_steps", "local steps"),
    "bytes": Axis("eval_bytes", "data sent", "MB", 1e6),
}
"""The axes of comparisons, by the names that users give."""


class Curve(NamedTuple):
    """Evaluations of a run with a finite metric, both float64 [E]; E = 0 if the run is missing."""

    at: np.ndarray
    values: np.ndarray

    def before(self, points: np.ndarray) -> np.ndarray:
        """Returns the metric of the last evaluation at or before each point; NaN outside the run."""
        place = np.searchsorted(self.at, points, side="right") - 1
        inside = (place >= 0) & (points <= self.at[-1:].max(initial=-np.inf))
        return np.where(inside, np.append(self.values, np.nan)[place], np.nan)


def over_seeds(curves: Sequence[Curve], points: int, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Computes points, and mean and standard deviation of curves that are interpolated at them, float [points].

    A single curve has its own points, and a deviation of 0.

    Args:
        curves: a curve of each seed, with evaluations.
        points: number of points, evenly spaced over the range that all curves cover; none if there is no such range.
        scale: factor of the values.
    """
    if len(curves) == 1:
        return curves[0].at, scale * curves[0].values, np.zeros_like(curves[0].values)
    first, last = max(one.at[0] for one in curves), min(one.at[-1] for one in curves)
    at = np.linspace(first, last, points if first <= last else 0)
    values = scale * np.stack([np.interp(at, *one) for one in curves])
    return at, values.mean(axis=0), values.std(axis=0, ddof=1)


def percent(metric: str) -> bool:
    """Returns True if figures and tables show a metric in percent, as they do accuracies."""
    return metric.endswith("accuracy")


def scale_of(metric: str) -> float:
    """Returns the factor from a metric to its shown value."""
    return 100.0 if percent(metric) else 1.0


def falls(results: xr.Dataset | Iterable[xr.Dataset], metric: str, owner: str = "") -> bool:
    """Returns True if lower values of a metric are better.

    The attribute `better` of the variable decides; without it, the name of the metric.

    Args:
        results: one or several results; some may lack the metric.
        metric: a variable of the evaluations.
        owner: the calling function, for the message.

    Raises:
        ValueError: the direction is not known, or results contradict each other.
    """
    several = [results] if hasattr(results, "variables") else list(results)
    attributes = [one.variables[metric].attrs for one in several if metric in one.variables]
    carried = {found.get("better") or metrics.better_of(metric) for found in attributes} - {None}
    if len(carried) > 1:
        raise UserError(
            f"{owner + ': ' if owner else ''}the metric {metric!r} is better when it is higher in some of the results, "
            "and when it is lower in others; they cannot be compared by it. Give one of them another name"
        )
    return metrics.falls(metric, dict.fromkeys([metric], *carried) if carried else None, owner)


def curve(run: xr.Dataset, variable: str, metric: str, finite: bool = True) -> Curve:
    """Returns the curve of a run against a variable, without the padding to the length of longer runs.

    Args:
        run: a run, without the dimensions of a sweep.
        variable: the variable.
        metric: the metric.
        finite: if True, without evaluations whose metric is infinite or missing.
    """
    at, values = (run[name].values.astype(float) for name in (variable, metric))
    shown = np.isfinite(values if finite else at)
    return Curve(at[shown], values[shown])


def stated(result: xr.Dataset, name: str, default: Any = None) -> Any:
    """Returns an attribute of a result, or the variable that replaces it if the members of a sweep differ."""
    return result[name] if name in result.variables else result.attrs.get(name, default)


def note(run: xr.Dataset, name: str) -> Any:
    """Returns what `stated` does for one run, as a plain value; `None` for a missing value."""
    found = np.asarray(stated(run, name)).item()
    return None if str(found) in ("None", "nan", "") else found


def failed_steps(result: xr.Dataset) -> Any:
    """Returns the server steps at which the parameters of runs stopped being finite, an array; -1 if they did not."""
    return stated(result, "failed_step", np.asarray(-1))


def has_failed(run: xr.Dataset) -> bool:
    """Returns True if the parameters of a run stopped being finite."""
    return bool(failed_steps(run) >= 0)


def check_at(at: Any) -> None:
    """Raises `ValueError` unless `at` is a place or point that `value` accepts."""
    if isinstance(at, str) and at in _PLACES:
        return
    if not isinstance(at, Mapping) or len(at) != 1 or not set(at) <= set(AXES):
        raise UserError(
            f"at must be one of {', '.join(map(repr, _PLACES))}, or a point {{axis: number}} of one of the axes "
            f"{', '.join(AXES)}; got {shown(at)}{did_you_mean(at, _PLACES)}"
        )
    check_number("at", *at, *at.values(), least=0)


def known_until(result: xr.Dataset, end: Any) -> Any:
    """Returns the simulated time up to which the models of runs are known: their end, or the limit that ended them.

    Args:
        result: the result of a run or a sweep.
        end: simulated time of the last evaluation of each run.
    """
    return np.fmax(end, stated(result, "until_time", np.nan))


def to_its_end(run: xr.Dataset, found: Curve, axis: str) -> Curve:
    """Returns a curve of a run that, against time, goes on to the limit of time that ended the run.

    Args:
        run: a run, without the dimensions of a sweep.
        found: its curve.
        axis: one of `AXES`; the curve is unchanged for all but `"time"`.
    """
    if axis != "time" or not found.at.size or has_failed(run):
        return found
    end = float(known_until(run, found.at[-1]))
    return found._replace(at=np.append(found.at, end), values=np.append(found.values, found.values[-1]))


def value(run: xr.Dataset, metric: str, at: str | Mapping[str, Any] = "last") -> float:
    """Returns a metric of a run at one point; NaN if the run failed or is missing.

    Args:
        run: a run, without the dimensions of a sweep.
        metric: a metric, such as `"accuracy"`.
        at: the `"last"` evaluation; `"last5"`, the mean of the last five; the `"best"`; or a point of an axis,
            `{"time": 100.0}`, which takes the last evaluation at or before it.

    Raises:
        ValueError: the run ends before that point.
    """
    axis, point = ("time", 0.0) if isinstance(at, str) else next(iter(at.items()))
    found = curve(run, AXES[axis].variable, metric, finite=at == "best")  # a perplexity that overflows counts
    if has_failed(run) or not found.values.size:
        return np.nan
    if isinstance(at, Mapping):
        found = to_its_end(run, found, axis)
        if point > found.at[-1]:
            raise UserError(f"a run ends at {axis}={found.at[-1]:g}, before {point:g}; make it longer, or ask for less")
        return float(found.before(np.asarray(point)))
    if at == "best":
        return float(found.values.min() if falls(run, metric, 'at="best"') else found.values.max())
    return float(found.values[-5:].mean() if at == "last5" else found.values[-1])


def reach(run: xr.Dataset, target: float, metric: str, axis: str) -> tuple[float, bool]:
    """Returns the point at which a run first reaches a target, and True; otherwise its end, and False.

    Against time, a run ends with the limit that ended it. A failed run ends at infinity, because it would never reach
    the target.
    """
    found = to_its_end(run, curve(run, AXES[axis].variable, metric, finite=False), axis)
    reached = metrics.reaches(found.values, target, falls(run, metric, "time_to"))
    if reached.any():
        return float(found.at[reached.argmax()]), True
    return (np.inf if has_failed(run) else float(found.at[-1:].sum())), False
