"""The best model of a run."""

from __future__ import annotations

import contextlib
import json
import math
import os
import zlib

from jaxafl.callbacks.base import Chunk, Run, Tracker, check_metric, file_of, set_aside
from jaxafl.models.adapters.checkpoint import named_leaves, save_parameters
from jaxafl.options import as_path
from jaxafl.readers.replacing import replacing
from jaxafl.results.files import check_path


class Best(Tracker):
    """Keeps the parameters of the best evaluated model as a safetensors file (`jaxafl.models.load_parameters`).

    A second file `best.safetensors.json` holds its server step, simulated time and metrics. Batch statistics, if the
    model has any, are in `best.state.safetensors`: `initialised(model, "best.safetensors", "best.state.safetensors")`
    is the best model again. Each member of a sweep has its own files. A file of an earlier run is renamed:
    `best.safetensors` becomes `best-1.safetensors`, or the next free number. A resumed run continues its own file,
    unless another run has renamed it.

    Args:
        path: the file, e.g. `best.safetensors`.
        metric: the metric that decides; `None` takes `validation_accuracy`, because a choice by the test set
            is not fair. The model declares the better direction, or the name of the metric implies it.

    Raises:
        ValueError: (before compilation) the metric does not exist, or its better direction is unknown.
        FileNotFoundError, PermissionError, IsADirectoryError: the file cannot be written.
        ImportError: (at the first evaluation) safetensors is not installed; the extra `bert` brings it.
    """

    def __init__(self, path: str | os.PathLike[str], metric: str | None = None) -> None:
        self.path = as_path(path)
        self.metric = metric or "validation_accuracy"
        check_path(self.path)

    def check(self, run: Run) -> None:
        check_metric("Best", run, self.metric)

    def begin(self, run: Run) -> None:
        self.sign = -1 if check_metric("Best", run, self.metric) else 1
        self.target = file_of(self.path, run)
        self.state = self.target.with_stem(f"{self.target.stem}.state")
        self.about = self.target.with_name(f"{self.target.name}.json")
        self.mark = f"{zlib.crc32(json.dumps([run.seed, run.options, self.metric], default=str).encode()):08x}"
        known = {}
        if run.resumed is not None:
            with contextlib.suppress(OSError, ValueError):  # an unreadable file must not end the run
                known = json.loads(self.about.read_text())
        if known.get("run") == self.mark:
            self.best = self.sign * known[self.metric]
            return
        self.best = -math.inf
        for path in (self.target, self.state, self.about):
            set_aside(path)

    def chunk(self, chunk: Chunk) -> None:
        value = self.sign * chunk.evaluation[self.metric]
        if value > self.best:
            self.best = value
            params, state = chunk.model()
            save_parameters(self.target, params)
            if named_leaves(state):
                save_parameters(self.state, state)
            with replacing(self.about) as unfinished:
                about = {"step": chunk.stop, "time": chunk.time, **chunk.evaluation, "run": self.mark}
                unfinished.write_text(json.dumps(about, indent=2))
