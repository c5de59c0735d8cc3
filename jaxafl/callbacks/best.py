"""The best model of a run."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pathlib

from jaxafl.callbacks.base import Callback, Chunk, Run, name_of
from jaxafl.models.checkpoint import save_parameters
from jaxafl.options import UserError
from jaxafl.results import check_path


class Best(Callback):
    """Keeps the parameters of the best evaluated model as a safetensors file (`jaxafl.models.load_parameters`), beside
    a file `....json` that says at which server step it was made and how good it is. The members of a sweep have files
    of their own.

    Args:
        path: the file, e.g. `best.safetensors`.
        metric: by which: `None` takes `validation_accuracy`. Metrics called `..._loss` are best where they are lowest.

    Raises:
        ValueError: (when the run begins) there is no such metric: the test's would be no fair choice, so it has to be
            named.
        FileNotFoundError, PermissionError, IsADirectoryError: the file cannot be written there.
    """

    def __init__(self, path: str | os.PathLike[str], metric: str | None = None) -> None:
        self.path, self.metric = pathlib.Path(path), metric or "validation_accuracy"
        check_path(self.path)

    def begin(self, run: Run) -> None:
        name = name_of(run)
        self.target = self.path.with_name(f"{self.path.stem}-{name}{self.path.suffix}" if name else self.path.name)
        self.said = self.target.with_name(f"{self.target.name}.json")
        self.best = -math.inf
        if run.resumed is not None:
            with contextlib.suppress(OSError, ValueError, KeyError):  # then the next one is the best
                self.best = self._sign(json.loads(self.said.read_text())[self.metric])

    def chunk(self, chunk: Chunk) -> None:
        if self.metric not in chunk.evaluation:
            raise UserError(
                f"Best: there is no metric {self.metric!r}; there are {', '.join(chunk.evaluation)}. "
                "data.with_validation(0.1, seed=0) holds out samples to choose by, or name another: Best(path, metric)"
            )
        value = chunk.evaluation[self.metric]
        if self._sign(value) > self.best:
            self.best = self._sign(value)
            save_parameters(self.target, chunk.model()[0])
            unfinished = self.said.with_name(f".{self.said.name}.{os.getpid()}.part")
            unfinished.write_text(json.dumps({"step": chunk.stop, "time": chunk.time, **chunk.evaluation}, indent=2))
            unfinished.replace(self.said)

    def _sign(self, value: float) -> float:
        return -value if self.metric.endswith("loss") else value
