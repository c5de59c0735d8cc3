"""Curves for TensorBoard."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import time
import zlib
from typing import Any

from jaxafl.callbacks.base import Callback, Chunk, Run, name_of, required, scalars_of
from jaxafl.options import as_path


class TensorBoard(Callback):
    """Event files for TensorBoard, which need no TensorFlow: metrics, staleness, norms of the updates and simulated
    time against server steps, options and citation as texts. Every member of a sweep has a folder of its own. Where
    another run has written there, a run has a folder `run-2`, `run-3` ... in it, a curve of its own in TensorBoard.

    Args:
        folder: where.

    Raises:
        ImportError: tensorboardX is not installed; the extra `tensorboard` brings it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = as_path(folder)
        self.module = required("tensorboardX", "tensorboard", "the callback TensorBoard")

    def begin(self, run: Run) -> None:
        done = run.resumed or 0
        again = {} if run.resumed is None else {"purge_step": done + 1}
        options = json.dumps({"seed": run.seed, **run.options}, indent=2, default=str)
        mark = f".{zlib.crc32(options.encode()):08x}."  # of the run, by which it finds its folder when it goes on
        own = f"{mark}{time.time_ns()}"  # by itself it would write over the file of a run that ended in the same second
        place = _place(self.folder / name_of(run), mark, goes_on=run.resumed is not None)
        self.writer = self.module.SummaryWriter(str(place), filename_suffix=own, **again)
        self.writer.add_text("options", f"    {options}".replace("\n", "\n    "), done)
        self.writer.add_text("citation", f"    {run.citation}".replace("\n", "\n    "), done)

    def chunk(self, chunk: Chunk) -> None:
        for name, value in {**scalars_of(chunk), "simulated_seconds": chunk.time}.items():
            self.writer.add_scalar(name, value, chunk.stop)
        self.writer.flush()

    def end(self, result: Any) -> None:
        self.writer.close()


def _place(folder: pathlib.Path, mark: str, goes_on: bool) -> pathlib.Path:
    """Returns the last folder with events of this run, for one that goes on; else the first without events."""
    places = (folder if number == 1 else folder / f"run-{number}" for number in itertools.count(1))
    taken = list(itertools.takewhile(lambda place: any(place.glob("events.out.tfevents.*")), places))
    if goes_on and (own := [place for place in taken if any(place.glob(f"events.out.tfevents.*{mark}*"))]):
        return own[-1]
    return folder if not taken else folder / f"run-{len(taken) + 1}"
