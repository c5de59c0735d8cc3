"""A table of the evaluations, as text."""

from __future__ import annotations

import contextlib
import csv
import os
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

from jaxafl.callbacks.base import Callback, Chunk, Run, scalars_of, set_aside
from jaxafl.options import UserError, as_path
from jaxafl.readers.replacing import replacing
from jaxafl.results.files import check_ending, check_path

try:
    import fcntl
except ImportError:  # not on Windows, where processes of a sweep are not kept apart
    fcntl = None  # type: ignore[assignment]

_writing = threading.Lock()
_NUMBERS = ("staleness_mean", "staleness_max", "delta_norm")


class Csv(Callback):
    """A row per evaluation, in a file that grows with the run: axes of a sweep, seed, server step, simulated and
    wall-clock seconds, metrics, mean and largest staleness, mean norm of the updates.

    A run that goes on continues its rows. The members of a sweep, and those of all methods of a comparison, share the
    file: each replaces its own rows, told apart by seed and axes. A file that earlier runs have written is set aside:
    `log.csv` becomes `log-1.csv`, or the next number that is free.

    Args:
        path: the file.

    Raises:
        FileNotFoundError, PermissionError, IsADirectoryError: it cannot be written there.
        ValueError: it holds something else.
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
        with _alone(self.path.absolute().parent):
            set_aside(self.path)

    def begin(self, run: Run) -> None:
        self.run, self.begun = run, False
        self.own = {name: str(value) for name, value in {**run.member, "seed": run.seed}.items()}

    def chunk(self, chunk: Chunk) -> None:
        place = {"step": chunk.stop, "time": chunk.time, "seconds": round(chunk.seconds, 3)}
        row = {**self.own, **place, **dict.fromkeys((*chunk.evaluation, *_NUMBERS), ""), **scalars_of(chunk)}
        with _alone(self.path.absolute().parent):
            if not self.begun and not self.run.member and self.run.resumed is None:
                set_aside(self.path)
            names = self._columns()
            if not self.begun or not set(row) <= set(names):
                names = self._replace(names, list(row))
                self.begun = True
            with self.path.open("a", newline="") as file:
                csv.DictWriter(file, names, restval="").writerow(row)

    def _columns(self) -> list[str]:
        """Returns the columns of the file, which members with other metrics may have widened."""
        if not self.path.is_file():
            return []
        with self.path.open(newline="") as file:
            return next(csv.reader(file), [])

    def _replace(self, names: list[str], own: list[str]) -> list[str]:
        """Writes the file with what stays of it, and with columns for rows of its own; returns all columns."""
        rows: list[dict[str, Any]] = []
        if self.path.is_file():
            with self.path.open(newline="") as file:
                rows = [row for row in csv.DictReader(file) if self._stays(row)]
        names = list(dict.fromkeys([*names, *own])) if rows else own
        with replacing(self.path) as unfinished, unfinished.open("w", newline="") as file:
            writer = csv.DictWriter(file, names, restval="", extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
        return names

    def _stays(self, row: dict[str, Any]) -> bool:
        """Returns True for a row of another run, of what this call has written, or of what was made before."""
        if self.begun or any(row.get(name) != value for name, value in self.own.items()):
            return True
        return self.run.resumed is not None and int(row["step"]) <= self.run.resumed


@contextlib.contextmanager
def _alone(folder: pathlib.Path) -> Iterator[None]:
    """No other member of a sweep, in a thread or a process, writes tables there."""
    with _writing, contextlib.ExitStack() as stack:
        if fcntl is not None:
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)  # which gives the lock back
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
