"""What is read off runs: a number per seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.suite.experiment import Array, Measure
from jaxafl.models.metrics import reaches
from jaxafl.results.curves import falls


def last(variable: str = "accuracy", of: int = 5, unit: str = " %", factor: float = 100.0, digits: int = 2) -> Measure:
    """The mean of a variable over the last evaluations of each run; 0 (of a loss infinity) where its parameters stopped
    being finite."""
    lost = np.inf if variable.endswith("loss") else 0.0

    def value(runs: Any) -> Array:
        values = np.apply_along_axis(lambda one: one[np.isfinite(one)][-of:].mean(), -1, runs[variable].values)
        failed = runs["failed_step"].values if "failed_step" in runs else runs.attrs.get("failed_step", -1)
        return np.where(np.asarray(failed) >= 0, lost, factor * values)

    return Measure(value, unit, digits)


def best(variable: str = "accuracy", unit: str = " %", factor: float = 100.0) -> Measure:
    """The largest value of a variable at any evaluation."""
    return Measure(lambda runs: factor * np.nanmax(runs[variable].values, axis=-1), unit)


def time_to(
    target: float | None = None, variable: str = "accuracy", along: str = "eval_time", unit: str = " s", digits: int = 2
) -> Measure:
    """Where a coordinate first reaches a target, by default the cell's; infinite for runs that never do."""

    def of(runs: Any) -> Array:
        goal = runs.attrs["target"] if target is None else target
        reached = reaches(runs[variable].values, goal, falls(runs, variable))
        where = np.broadcast_to(runs[along].values, runs[variable].shape)
        first = np.take_along_axis(where, reached.argmax(-1)[..., None], -1)[..., 0]
        return np.where(reached.any(-1), first, np.inf)

    return Measure(of, unit, digits)


def more_than(number: float) -> tuple[float, float]:
    """A published number that is only known to be larger than this."""
    return number, np.inf


def sooner(one: Array, other: Array) -> Array:
    """By how much one time is shorter: (other - one) / (other + one), between -1 and 1.

    Times are infinite where a target was not reached: 1 where only the first is ever reached, 0 where none is.
    """
    fast, slow = 1 / np.asarray(one, float), 1 / np.asarray(other, float)
    both = fast + slow
    return np.where(both == 0, 0.0, (fast - slow) / np.where(both == 0, 1.0, both))


def schedules(of: Callable[[Any], float], unit: str = "", digits: int = 2) -> Measure:
    """A number of each schedule, where the clock alone is run."""
    return Measure(lambda made: np.asarray([of(schedule) for schedule in made], float), unit, digits)
