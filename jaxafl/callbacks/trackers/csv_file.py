"""A table of the evaluations, as text."""

from __future__ import annotations

import contextlib
import csv
import os
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

from jaxafl.callbacks.base import Chunk, Run, Tracker, scalars_of, set_aside
from jaxafl.options import UserError, as_path
from jaxafl.readers.replacing import replacing
from jaxafl.results.files import check_ending, check_path

try:
    import fcntl
except ImportError:  # on Windows, where processes of a sweep do not lock the file
    fcntl = None  # type: ignore[assignment]

_writing = threading.Lock()
_NUMBERS = ("staleness_mean", "staleness_max", "delta_norm")


class Csv(Tracker):
    """Appends a row per evaluation to a CSV file.

    Columns: axes of a sweep, `seed`, `step` (server steps), `time` (simulated seconds), `seconds` (of wall-clock time),
    metrics, also of single clients and test sets, staleness (mean, largest) and mean norm of the updates. A resumed run
    continues its rows. Members of a sweep and methods of a comparison share the file, and each replaces the rows with
    its own seed and axes. A file of earlier runs is renamed: `log.csv` becomes `log-1.csv`, or the next free number.

    Args:
        path: the file.

    Raises:
        FileNotFoundError, PermissionError, IsADirectoryError: the file cannot be written.
        ValueError: the file holds another table, or has the ending of another format than `.csv` or `.txt`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = as_path(path)
        check_ending(path, (".csv", ".txt"), "Csv writes text with commas")
        check_path(self.path)
        if self.path.is_file():
            with self.path.open(newline="", errors="replace") as file:
                header = next(csv.reader([file.readline()]), [])
            if header and not {"seed", "step", "time", "seconds"} <= set(header):
                raise UserError(f"Csv: {path} holds another table, which is not replaced; name another file")

    def renew(self) -> None:
        with _locked(self.path.absolute().parent):
            set_aside(self.path)

    def begin(self, run: Run) -> None:
        self.run = run
        self.begun = False
        self.key = {name: str(value) for name, value in {**run.member, "seed": run.seed}.items()}

    def chunk(self, chunk: Chunk) -> None:
        place = {"step": chunk.stop, "time": chunk.time, "seconds": round(chunk.seconds, 3)}
        row = {**self.key, **place, **dict.fromkeys((*chunk.evaluation, *_NUMBERS), ""), **scalars_of(chunk)}
        with _locked(self.path.absolute().parent):
            if not self.begun and not self.run.member and self.run.resumed is None:
                set_aside(self.path)
            names = self._columns(list(row))
            with self.path.open("a", newline="") as file:
                csv.DictWriter(file, names, restval="").writerow(row)

    def _columns(self, asked: list[str]) -> list[str]:
        """Returns the columns of the file, which is written anew if it lacks some, or holds rows that are replaced."""
        names: list[str] = []
        rows: list[dict[str, Any]] = []
        if self.path.is_file():
            with self.path.open(newline="") as file:
                reader = csv.DictReader(file)
                names = list(reader.fieldnames or [])  # members with other metrics may have added some
                if self.begun and set(asked) <= set(names):
                    return names
                rows = [row for row in reader if self._stays(row)]
        names = list(dict.fromkeys([*names, *asked])) if rows else asked
        with replacing(self.path) as unfinished, unfinished.open("w", newline="") as file:
            writer = csv.DictWriter(file, names, restval="", extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
        self.begun = True
        return names

    def _stays(self, row: dict[str, Any]) -> bool:
        """Returns True for a row of another run, of this call, or from before the run resumed."""
        if self.begun or any(row.get(name) != value for name, value in self.key.items()):
            return True
        return self.run.resumed is not None and int(row["step"]) <= self.run.resumed


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
    """Holds a lock, so that no other thread or process of a sweep writes tables in the folder."""
    with _writing, contextlib.ExitStack() as stack:
        if fcntl is not None:
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)  # releases the lock
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
