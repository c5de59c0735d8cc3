"""Curves for TensorBoard."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from jaxafl.callbacks.base import Callback, Chunk, Run, name_of, required, scalars_of
from jaxafl.options import as_path


class TensorBoard(Callback):
    """Event files for TensorBoard, which need no TensorFlow: metrics, staleness, norms of the updates and simulated
    time against server steps, options and citation as texts. Every member of a sweep has a folder of its own.

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
        own = f".{time.time_ns()}"  # by itself it would write over the file of a run that ended in the same second
        self.writer = self.module.SummaryWriter(str(self.folder / name_of(run)), filename_suffix=own, **again)
        options = json.dumps({"seed": run.seed, **run.options}, indent=2, default=str)
        self.writer.add_text("options", f"    {options}".replace("\n", "\n    "), done)
        self.writer.add_text("citation", f"    {run.citation}".replace("\n", "\n    "), done)

    def chunk(self, chunk: Chunk) -> None:
        for name, value in {**scalars_of(chunk), "simulated_seconds": chunk.time}.items():
            self.writer.add_scalar(name, value, chunk.stop)
        self.writer.flush()

    def end(self, result: Any) -> None:
        self.writer.close()
