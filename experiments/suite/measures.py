"""What is read off runs: a number per seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.suite.experiment import Array, Measure


def last(variable: str = "accuracy", of: int = 5, unit: str = " %", factor: float = 100.0, digits: int = 2) -> Measure:
    """The mean of a variable over the last evaluations."""
    return Measure(lambda runs: factor * runs[variable].values[..., -of:].mean(axis=-1), unit, digits)


def best(variable: str = "accuracy", unit: str = " %", factor: float = 100.0) -> Measure:
    """The largest value of a variable at any evaluation."""
    return Measure(lambda runs: factor * np.nanmax(runs[variable].values, axis=-1), unit)


def time_to(target: float, variable: str = "accuracy", along: str = "eval_time", unit: str = " s") -> Measure:
    """Where a coordinate first reaches a target; infinite for runs that never do."""

    def of(runs: Any) -> Array:
        reached, where = runs[variable].values >= target, np.broadcast_to(runs[along].values, runs[variable].shape)
        return np.where(reached.any(-1), np.take_along_axis(where, reached.argmax(-1)[:, None], -1)[:, 0], np.inf)

    return Measure(of, unit)


def schedules(of: Callable[[Any], float], unit: str = "", digits: int = 2) -> Measure:
    """A number of each schedule, where the clock alone is run."""
    return Measure(lambda made: np.asarray([of(schedule) for schedule in made], float), unit, digits)
