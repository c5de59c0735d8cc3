"""Columns of schedules whose server steps differ in their numbers of arrivals."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np


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
