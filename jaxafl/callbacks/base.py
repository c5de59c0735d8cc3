"""The base class of callbacks, and the records that they receive."""

from __future__ import annotations

import itertools
import pathlib
import re
import sys
import types
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxafl.models.metrics import Better, falls
from jaxafl.options import UserError, did_you_mean

_METHODS = ("check", "begin", "chunk", "end")
PIECE_SECONDS = 2.0  # a longer piece delays the reaction to Ctrl-C
_LONGEST = 120  # characters of a file name: most file systems allow 255 bytes


class Run(NamedTuple):
    """The description of a run that callbacks receive.

    Attributes:
        name: names of the server, the clock and the data.
        options: options of every part, as in the attributes of a result.
        seed: seed of the run.
        server_steps: T, or the most server steps of a run that a limit ends.
        member: axis -> label of a member of a sweep; `{}` for a single run.
        citation: BibTeX of the methods and data that the run uses.
        resumed: server steps that an earlier process executed and reported; `None` for a new run.
        earlier: (server step, metrics) of the evaluations that an earlier process reported, x_0 included.
        metrics: metric -> the better direction, `"higher"` or `"lower"`; `None` if it is unknown.
    """

    name: str
    options: Mapping[str, Any]
    seed: int
    server_steps: int
    member: Mapping[str, Any]
    citation: str
    resumed: int | None = None
    earlier: Sequence[tuple[int, Mapping[str, float]]] = ()
    metrics: Mapping[str, Better | None] = types.MappingProxyType({})


class Chunk(NamedTuple):
    """The server steps between two evaluations; no steps for the evaluation of x_0.

    Attributes:
        run: the run.
        start, stop: the server steps start .. stop - 1.
        time: simulated seconds at server step stop - 1.
        seconds: wall-clock seconds since the run started or resumed.
        records: name -> [stop - start, ...]: `time` of the server steps. Per arrival slot [stop - start, A]: `arrived`
            (bool), `client_id` (-1 if empty), `staleness` and further numbers of a result (NaN if empty). Empty at x_0.
        evaluation: metrics of x_stop.
        model: () -> (parameters, non-trainable state) of x_stop, NumPy arrays on the host.
    """

    run: Run
    start: int
    stop: int
    time: float
    seconds: float
    records: Mapping[str, np.ndarray]
    evaluation: Mapping[str, float]
    model: Callable[[], tuple[Any, Any]]


class Callback:
    """Base class of callbacks, which the host calls between chunks of server steps.

    Every run of a sweep has its own shallow copy. An exception of a callback ends the run, and its attribute `dataset`
    holds the result so far. A stopped run stays stopped after a restore from its checkpoint, unless `until` changed.

    Attributes:
        ends: what decides where the callback ends runs, name -> value that JSON can hold. A sweep resumes from its
            folder only if this is unchanged. `{}` for a callback that ends no run, such as a logger. `None` compares
            the source of a class with a method `chunk`, and the attributes with the names of its constructor's
            arguments.
    """

    ends: Mapping[str, Any] | None = None

    def check(self, run: Run) -> None:
        """Raises `ValueError` if the callback cannot work with this run. Called before compilation."""

    def begin(self, run: Run) -> None:
        """Starts the callback. Called before the first chunk of this process.

        So that a resumed run ends where an uninterrupted one does, it takes what it must know from `run.earlier`.
        """

    def chunk(self, chunk: Chunk) -> str | bool | None:
        """Handles an evaluation. Called after each one, including x_0; a text (the reason) or `True` stops the run."""

    def end(self, result: Any) -> None:
        """Ends the callback. Called after the last chunk or an error.

        Args:
            result: the result of `Simulation.run`, or that of one member. After an error it is the result so far, or
                `None` if there is none.
        """


class Tracker(Callback):
    """Base class of the callbacks that end no run."""

    ends = types.MappingProxyType({})


def error_of(result: Any) -> BaseException | None:
    """Returns the error after which `Callback.end` receives a result; `None` if its run has ended."""
    error = sys.exception()  # the caller may handle another one
    return error if any(one is result for one in getattr(error, "datasets", ())) else None


def scalars_of(chunk: Chunk) -> dict[str, float]:
    """Returns the metrics of a chunk, and numbers of its updates: staleness, norm, `local_accuracy`."""
    found, arrived = dict(chunk.evaluation), chunk.records.get("arrived", np.zeros(0, bool))
    if arrived.any():
        staleness = chunk.records["staleness"][arrived]
        found |= {"staleness_mean": float(staleness.mean()), "staleness_max": float(staleness.max())}
        found["delta_norm"] = float(chunk.records["delta_norm"][arrived].mean())
        own = chunk.records.get("local_accuracy", np.zeros(0))
        if np.isfinite(own).any():
            found["local_accuracy"] = float(np.nanmean(own))
    return found


def check_metric(owner: str, run: Run, metric: str, others: Sequence[str] = ()) -> bool:
    """Returns True if lower values of a metric are better.

    Args:
        owner: the function that the user called, for messages.
        run: the run; every metric is accepted if its metrics are unknown.
        metric: the metric.
        others: names that would be accepted too, for messages.

    Raises:
        ValueError: the run does not evaluate the metric, or it is not known which way the metric is better.
    """
    known = [*others, *run.metrics]
    if run.metrics and metric not in run.metrics:
        close = did_you_mean(metric, known)
        raise UserError(f"{owner}: there is no metric {metric!r}; there are {', '.join(known)}{close}")
    return falls(metric, run.metrics, owner)


def name_of(run: Run) -> str:
    """Returns a unique file name for a member of a sweep; empty for a single run."""
    return file_name(",".join(f"{axis}={label}" for axis, label in run.member.items()))


def file_name(text: str) -> str:
    """Returns a text as a file name. A changed text gets a checksum, so that different texts have different names."""
    name = re.sub(r"[^\w.=,+-]+", "_", text)[:_LONGEST]
    return name if name == text else f"{name}-{zlib.crc32(text.encode()):08x}"


def file_of(path: pathlib.Path, run: Run) -> pathlib.Path:
    """Returns the file of a run: the path, or `log-seed=0.csv` of a member of a sweep."""
    return path.with_stem(f"{path.stem}-{name}") if (name := name_of(run)) else path


def set_aside(path: pathlib.Path) -> None:
    """Renames an existing file, e.g. `log.csv` to the first free name of `log-1.csv`, `log-2.csv` ..."""
    if path.is_file():
        names = (path.with_stem(f"{path.stem}-{number}") for number in itertools.count(1))
        path.rename(next(one for one in names if not one.exists()))


def in_notebook() -> bool:
    """Returns True in a notebook."""
    shell = sys.modules.get("IPython")
    return shell is not None and hasattr(shell.get_ipython(), "kernel")


def check_callbacks(callbacks: Any) -> tuple[Any, ...]:
    """Returns one or several callbacks as a tuple; raises `TypeError` for others, and for one that does nothing."""
    found = tuple(callbacks) if isinstance(callbacks, list | tuple) else (callbacks,)
    for one in found:
        if not isinstance(one, Callback) or all(getattr(type(one), m) is getattr(Callback, m) for m in _METHODS):
            raise TypeError(f"callbacks: {type(one).__name__} is no Callback with a method {', '.join(_METHODS)}")
    return found


def check_watchers(callbacks: Sequence[Any], runs: Iterable[Run]) -> None:
    """Calls `check` of the callbacks for every run, before compilation."""
    for run in runs:
        for one in callbacks:
            one.check(run)
