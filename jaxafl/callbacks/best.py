"""The best model of a run."""

from __future__ import annotations

import contextlib
import json
import math
import os

from jaxafl.callbacks.base import Callback, Chunk, Run, check_metric, name_of
from jaxafl.models.checkpoint import save_parameters
from jaxafl.models.metrics import falls
from jaxafl.options import UserError, as_path
from jaxafl.readers.replacing import replacing
from jaxafl.results.files import check_ending, check_path


class Best(Callback):
    """Keeps the parameters of the best evaluated model as a safetensors file (`jaxafl.models.load_parameters`), beside
    a file `....json` that says at which server step it was made and how good it is. The members of a sweep have files
    of their own.

    Args:
        path: the file, e.g. `best.safetensors`.
        metric: by which: `None` takes `validation_accuracy`. Which way a metric is better, its model
            declares, or its name says.

    Raises:
        ValueError: (before anything is compiled) there is no such metric (the test's would be no fair choice, so it has
            to be named), or it is not known which way it is better.
        FileNotFoundError, PermissionError, IsADirectoryError: the file cannot be written there.
    """

    def __init__(self, path: str | os.PathLike[str], metric: str | None = None) -> None:
        self.path, self.metric = as_path(path), metric or "validation_accuracy"
        check_ending(self.path, (".safetensors",), "Best writes safetensors")
        check_path(self.path)

    def check(self, run: Run) -> None:
        check_metric("Best", run, self.metric)
        falls(self.metric, run.metrics, "Best")

    def begin(self, run: Run) -> None:
        self.sign = -1 if falls(self.metric, run.metrics, "Best") else 1
        name = name_of(run)
        self.target = self.path.with_name(f"{self.path.stem}-{name}{self.path.suffix}" if name else self.path.name)
        self.said = self.target.with_name(f"{self.target.name}.json")
        self.best = -math.inf
        if run.resumed is not None:
            with contextlib.suppress(OSError, ValueError, KeyError):  # then the next one is the best
                self.best = self.sign * json.loads(self.said.read_text())[self.metric]

    def chunk(self, chunk: Chunk) -> None:
        if self.metric not in chunk.evaluation:
            raise UserError(f"Best: there is no metric {self.metric!r}; there are {', '.join(chunk.evaluation)}")
        value = self.sign * chunk.evaluation[self.metric]
        if value > self.best:
            self.best = value
            save_parameters(self.target, chunk.model()[0])
            with replacing(self.said) as unfinished:
                unfinished.write_text(
                    json.dumps({"step": chunk.stop, "time": chunk.time, **chunk.evaluation}, indent=2)
                )
