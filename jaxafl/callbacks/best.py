"""The best model of a run."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import pathlib
import zlib

from jaxafl.callbacks.base import Callback, Chunk, Run, check_metric, name_of, set_aside, set_aside_as
from jaxafl.models.checkpoint import save_parameters
from jaxafl.models.metrics import falls
from jaxafl.options import UserError, as_path
from jaxafl.readers.replacing import replacing
from jaxafl.results.files import check_ending, check_path


class Best(Callback):
    """Keeps the parameters of the best evaluated model as a safetensors file (`jaxafl.models.load_parameters`), beside
    a file `....json` that says at which server step it was made and how good it is. The members of a sweep have files
    of their own. A file of an earlier run is set aside: `best.safetensors` becomes `best-1.safetensors`, or the next
    number that is free; a run that goes on continues its own.

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
        self.mark = f"{zlib.crc32(json.dumps([run.seed, run.options, self.metric], default=str).encode()):08x}"
        self.best, self.begun = -math.inf, False
        if run.resumed is not None:
            self._take_up()

    def chunk(self, chunk: Chunk) -> None:
        if self.metric not in chunk.evaluation:
            raise UserError(f"Best: there is no metric {self.metric!r}; there are {', '.join(chunk.evaluation)}")
        value = self.sign * chunk.evaluation[self.metric]
        if value > self.best:
            if not self.begun and (earlier := set_aside(self.target)) and _said(self.target).is_file():
                _said(self.target).rename(_said(earlier))
            self.best, self.begun = value, True
            save_parameters(self.target, chunk.model()[0])
            with replacing(_said(self.target)) as unfinished:
                said = {"step": chunk.stop, "time": chunk.time, **chunk.evaluation, "run": self.mark}
                unfinished.write_text(json.dumps(said, indent=2))

    def _take_up(self) -> None:
        """Goes on with the file of a run that goes on, which another run may have set aside."""
        for place in itertools.takewhile(
            pathlib.Path.is_file, itertools.chain([self.target], set_aside_as(self.target))
        ):
            with contextlib.suppress(OSError, ValueError, KeyError):  # then the next one is the best
                said = json.loads(_said(place).read_text())
                if said.get("run", self.mark) == self.mark:
                    self.target, self.best, self.begun = place, self.sign * said[self.metric], True
                    return


def _said(target: pathlib.Path) -> pathlib.Path:
    return target.with_name(f"{target.name}.json")
