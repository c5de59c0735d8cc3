"""The best model of a run."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import pathlib

from jaxafl.callbacks.base import Chunk, Run, Tracker, check_metric, checksum, name_of, set_aside, set_aside_as
from jaxafl.models.checkpoint import named_leaves, save_parameters
from jaxafl.models.metrics import falls
from jaxafl.options import as_path
from jaxafl.readers.replacing import replacing
from jaxafl.results.files import check_ending, check_path


class Best(Tracker):
    """Keeps the parameters of the best evaluated model as a safetensors file (`jaxafl.models.load_parameters`).

    A second file `best.safetensors.json` holds its server step, simulated time and metrics. Batch statistics, if the
    model has any, are in `best.state.safetensors`: `initialised(model, "best.safetensors", "best.state.safetensors")`
    is the best model again. Each member of a sweep has
    its own files. A file of an earlier run is renamed: `best.safetensors` becomes `best-1.safetensors`, or the next
    free number. A resumed run continues its own file.

    Args:
        path: the file, e.g. `best.safetensors`.
        metric: the metric that decides; `None` takes `validation_accuracy`, because a choice by the test set
            is not fair. The model declares the better direction, or the name of the metric implies it.

    Raises:
        ValueError: the path has the ending of another format. Before compilation: the metric does not exist, or its
            better direction is unknown.
        FileNotFoundError, PermissionError, IsADirectoryError: the file cannot be written.
        ImportError: (at the first evaluation) safetensors is not installed; the extra `bert` brings it.
    """

    def __init__(self, path: str | os.PathLike[str], metric: str | None = None) -> None:
        self.path = as_path(path)
        self.metric = metric or "validation_accuracy"
        check_ending(self.path, (".safetensors",), "Best writes safetensors")
        check_path(self.path)

    def check(self, run: Run) -> None:
        check_metric("Best", run, self.metric)

    def begin(self, run: Run) -> None:
        self.sign = -1 if falls(self.metric, run.metrics, "Best") else 1
        name = name_of(run)
        self.target = self.path.with_name(f"{self.path.stem}-{name}{self.path.suffix}" if name else self.path.name)
        self.mark = checksum([run.seed, run.options, self.metric])
        self.best, self.begun = -math.inf, False
        if run.resumed is not None:
            self._restore()

    def chunk(self, chunk: Chunk) -> None:
        value = self.sign * chunk.evaluation[self.metric]
        if value > self.best:
            if not self.begun and (earlier := set_aside(self.target)):
                for ending in (".json", ".state"):
                    if _beside(self.target, ending).is_file():
                        _beside(self.target, ending).rename(_beside(earlier, ending))
            self.best, self.begun = value, True
            params, state = chunk.model()
            save_parameters(self.target, params)
            if named_leaves(state):
                save_parameters(_beside(self.target, ".state"), state)
            with replacing(_beside(self.target, ".json")) as unfinished:
                about = {"step": chunk.stop, "time": chunk.time, **chunk.evaluation, "run": self.mark}
                unfinished.write_text(json.dumps(about, indent=2))

    def _restore(self) -> None:
        """Finds the file of a resumed run, which another run may have renamed."""
        for place in itertools.chain([self.target], set_aside_as(self.target)):
            if not place.is_file():
                return
            with contextlib.suppress(OSError, ValueError, KeyError):  # an unreadable file must not end the run
                about = json.loads(_beside(place, ".json").read_text())
                if about["run"] == self.mark:
                    self.target, self.best, self.begun = place, self.sign * about[self.metric], True
                    return


def _beside(target: pathlib.Path, ending: str) -> pathlib.Path:
    """Returns the file of the metrics (`".json"`), or of the batch statistics (`".state"`)."""
    name = f"{target.name}.json" if ending == ".json" else f"{target.stem}.state{target.suffix}"
    return target.with_name(name)
