"""A table of the evaluations, as text."""

from __future__ import annotations

import csv
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from jaxafl.callbacks.base import Chunk, Run, Tracker, file_of, scalars_of, set_aside
from jaxafl.options import as_path
from jaxafl.readers.replacing import replacing
from jaxafl.results.files import check_path


class Csv(Tracker):
    """Appends a row per evaluation to a CSV file.

    Columns: axes of a sweep, `seed`, `step` (server steps), `time` (simulated seconds), `seconds` (of wall-clock time),
    metrics, staleness (mean, largest) and mean norm of the updates. Each member
    of a sweep has its own file, `log-seed=0.csv`. A resumed run continues its rows. An earlier file is renamed:
    `log.csv` becomes `log-1.csv`, or the next free number.

    Args:
        path: the file.

    Raises:
        FileNotFoundError, PermissionError, IsADirectoryError: the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = as_path(path)
        check_path(self.path)

    def begin(self, run: Run) -> None:
        self.key = {**run.member, "seed": run.seed}
        self.target = file_of(self.path, run)
        self.rows: list[dict[str, Any]] = []
        self.names: list[str] = []
        if run.resumed is None:
            set_aside(self.target)
        elif self.target.is_file():
            with self.target.open(newline="") as file:
                self.rows = [row for row in csv.DictReader(file) if int(row["step"]) <= run.resumed]

    def chunk(self, chunk: Chunk) -> None:
        place = {"step": chunk.stop, "time": chunk.time, "seconds": round(chunk.seconds, 3)}
        row = {**self.key, **place, **scalars_of(chunk)}
        self.rows.append(row)
        if set(row) <= set(self.names):
            self._write(self.target, [row])
        else:  # the first row has no columns of arrivals
            self.names = list(dict.fromkeys(name for one in self.rows for name in one))
            header = {name: name for name in self.names}
            with replacing(self.target) as unfinished:
                self._write(unfinished, [header, *self.rows])

    def _write(self, path: pathlib.Path, rows: Sequence[dict[str, Any]]) -> None:
        with path.open("a", newline="") as file:
            csv.DictWriter(file, self.names).writerows(rows)
