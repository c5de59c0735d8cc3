"""Columns of server steps and schedules: fields with a value for each arrival."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np

from jaxafl.clock.contract import Runs, ServerStep

PER_STEP = ("time", "advances")
"""Fields of `ServerStep` with one value per server step."""
COLUMNS = (*Runs._fields, *(name for name in ServerStep._fields if name not in ("runs", *PER_STEP)))
"""Fields of `ServerStep`, and of its `runs`, with a value for each arrival."""


def without_step(step: ServerStep) -> ServerStep:
    """Returns the server step with None for the fields that have one value per step."""
    none: Any = dict.fromkeys(PER_STEP)
    return step._replace(**none)


def per_step(step: ServerStep) -> dict[str, Any]:
    """Returns the fields that have one value per server step, by name."""
    return {name: getattr(step, name) for name in PER_STEP}


def columns_of(step: ServerStep) -> dict[str, Any]:
    """Returns the fields with a value for each arrival, by name."""
    return {name: getattr(step.runs if name in Runs._fields else step, name) for name in COLUMNS}


class Ragged(NamedTuple):
    """Values of arrivals, [E], of server steps with `taken` [T] of at most `width` arrivals each."""

    values: np.ndarray
    taken: np.ndarray
    width: int

    def table(self) -> np.ndarray:
        """Returns the values as an array [T, A], with zeros for padding."""
        table = np.zeros((len(self.taken), self.width), self.values.dtype)
        table[np.arange(self.width) < self.taken[:, None]] = self.values
        return table

    def cut(self, begin: int, end: int | None) -> Ragged:
        """Returns the server steps begin .. end - 1."""
        ends = np.concatenate([[0], np.cumsum(self.taken)])
        begin, end, _ = slice(begin, end).indices(len(self.taken))
        return Ragged(self.values[ends[begin] : ends[end]], self.taken[begin:end], self.width)


class Column:
    """Field of a schedule, an array [T, A]. Of server steps whose numbers of arrivals differ it is built when used."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, schedule: Any, owner: type) -> np.ndarray:
        if schedule is None:
            raise AttributeError(self.name)
        value = schedule.__dict__[self.name]
        if isinstance(value, Ragged):
            tables = schedule.__dict__.setdefault("_tables", {})
            if self.name not in tables:
                tables[self.name] = value.table()
            value = tables[self.name]
        return cast(np.ndarray, value)

    def __set__(self, schedule: Any, value: Any) -> None:
        schedule.__dict__[self.name] = value
