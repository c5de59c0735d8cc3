"""Logs for TensorBoard."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import time
from typing import Any

from jaxafl.callbacks.base import Chunk, Run, Tracker, checksum, name_of, required, scalars_of
from jaxafl.options import as_path


class TensorBoard(Tracker):
    """Writes event files for TensorBoard, without TensorFlow.

    Metrics, staleness, norms of the updates and simulated time are scalars by server step; options and citation are
    texts. Each member of a sweep has its own folder. If another run wrote there, a subfolder `run-2`, `run-3` ... gives
    the run its own curve.

    Args:
        folder: the folder of the event files.

    Raises:
        ImportError: tensorboardX is not installed; the extra `tensorboard` brings it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = as_path(folder)
        self.module = required("tensorboardX", "tensorboard", "the callback TensorBoard")

    def begin(self, run: Run) -> None:
        done = run.resumed or 0
        again = {} if run.resumed is None else {"purge_step": done + 1}
        known = {"seed": run.seed, **run.options}
        options = json.dumps(known, indent=2, default=str)
        mark = f".{checksum(known)}."  # without it a resumed run cannot find its folder
        suffix = f"{mark}{time.time_ns()}"  # else two runs within one second would write the same file
        place = _place(self.folder / name_of(run), mark, resumed=run.resumed is not None)
        self.writer = self.module.SummaryWriter(str(place), filename_suffix=suffix, **again)
        self.writer.add_text("options", f"    {options}".replace("\n", "\n    "), done)
        self.writer.add_text("citation", f"    {run.citation}".replace("\n", "\n    "), done)

    def chunk(self, chunk: Chunk) -> None:
        for name, value in {**scalars_of(chunk), "simulated_seconds": chunk.time}.items():
            self.writer.add_scalar(name, value, chunk.stop)
        self.writer.flush()

    def end(self, result: Any) -> None:
        self.writer.close()


def _place(folder: pathlib.Path, mark: str, resumed: bool) -> pathlib.Path:
    """Returns the last folder with events of a resumed run; else the first folder without events."""
    places = (folder if number == 1 else folder / f"run-{number}" for number in itertools.count(1))
    taken = list(itertools.takewhile(lambda place: any(place.glob("events.out.tfevents.*")), places))
    if resumed and (found := [place for place in taken if any(place.glob(f"events.out.tfevents.*{mark}*"))]):
        return found[-1]
    return folder if not taken else folder / f"run-{len(taken) + 1}"
