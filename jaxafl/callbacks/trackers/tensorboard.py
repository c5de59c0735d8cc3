"""Logs for TensorBoard."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from jaxafl.callbacks.base import Chunk, Run, Tracker, name_of, required, scalars_of
from jaxafl.options import as_path


class TensorBoard(Tracker):
    """Writes event files for TensorBoard, without TensorFlow.

    Metrics, staleness, norms of the updates and simulated time are scalars by server step; options and citation are
    texts. Each member of a sweep has its own subfolder. A new run replaces the curves of an earlier one in its folder;
    a resumed run continues them.

    Args:
        folder: the folder of the event files.

    Raises:
        ImportError: tensorboardX is not installed; the extra `tensorboard` brings it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = as_path(folder)
        self.module = required("tensorboardX", "tensorboard", "the callback TensorBoard")

    def begin(self, run: Run) -> None:
        done = -1 if run.resumed is None else run.resumed
        options = json.dumps({"seed": run.seed, **run.options}, indent=2, default=str)
        suffix = f".{time.time_ns()}"  # else two runs within one second would write the same file
        place = str(self.folder / name_of(run))
        self.writer = self.module.SummaryWriter(place, filename_suffix=suffix, purge_step=done + 1)
        self.writer.add_text("options", f"    {options}".replace("\n", "\n    "), max(done, 0))
        self.writer.add_text("citation", f"    {run.citation}".replace("\n", "\n    "), max(done, 0))

    def chunk(self, chunk: Chunk) -> None:
        for name, value in {**scalars_of(chunk), "simulated_seconds": chunk.time}.items():
            self.writer.add_scalar(name, value, chunk.stop)
        self.writer.flush()

    def end(self, result: Any) -> None:
        self.writer.close()
