"""What a callback is, and what it is told."""

from __future__ import annotations

import importlib
import itertools
import os
import pathlib
import re
import types
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxafl.models.metrics import Better
from jaxafl.options import UserError, did_you_mean, named, shown

_LONGEST = 120  # characters of a file's name, of the 255 bytes that most file systems allow


class Run(NamedTuple):
    """A run, as callbacks see it.

    Attributes:
        name: server, clock and data.
        options: of every part, as in the attributes of a result.
        seed: of the run.
        server_steps: T.
        member: of a sweep: axis -> label; `{}` for a single run.
        citation: BibTeX of what it uses.
        resumed: server steps that an earlier process has made, evaluated and told; `None` for a run that begins.
        metrics: metric of the evaluations -> `"higher"` or `"lower"`, which is better; `None` if that is not known.
    """

    name: str
    options: Mapping[str, Any]
    seed: int
    server_steps: int
    member: Mapping[str, Any]
    citation: str
    resumed: int | None = None
    metrics: Mapping[str, Better | None] = types.MappingProxyType({})


class Chunk(NamedTuple):
    """Server steps between two evaluations, or none before the evaluation of x_0.

    Attributes:
        run: whose.
        start, stop: the server steps start .. stop - 1.
        time: simulated seconds at the last of them.
        seconds: wall-clock seconds since the run began, or went on.
        records: of the server steps, name -> [stop - start, ...]: `time`, and of every place for an arrival `arrived`
            (bool), `client` (-1 without an arrival), `staleness` and further numbers of a result (NaN without one).
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

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value:.6g}" for name, value in self.evaluation.items())
        return f"Chunk(seed={self.run.seed}, server steps {self.start}..{self.stop}, time={self.time:.6g}, {shown})"


class Callback:
    """Base of callbacks: whoever is told how runs go, by the host, between chunks of server steps.

    Every run of a sweep has a (shallow) copy of its own. What a callback raises ends the run, and holds as its
    attribute `dataset` what was made until then. A run that was stopped stays stopped when it is taken up again,
    unless its `until` has changed.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = named(cls.__init__)  # type: ignore[method-assign]

    def check(self, run: Run) -> None:
        """Before anything is compiled; raises `ValueError` for what cannot work."""

    def renew(self) -> None:
        """Before a sweep that is not one that goes on: sets aside what earlier runs have written."""

    def begin(self, run: Run) -> None:
        """Before the first chunk, of this process."""

    def chunk(self, chunk: Chunk) -> str | bool | None:
        """After every evaluation, that of x_0 included; a text (why) or `True` stops the run there."""

    def end(self, result: Any) -> None:
        """After the last chunk, or an error; `result` is what `run` returns (of a member: as if it ran alone), or what
        was made before the error, `None` where nothing is known."""


def scalars_of(chunk: Chunk) -> dict[str, float]:
    """A chunk in numbers: its metrics; mean and largest staleness and mean norm of its updates, where there are any."""
    found = dict(chunk.evaluation)
    if chunk.records:
        arrived = chunk.records["arrived"]
        staleness, norms = chunk.records["staleness"][arrived], chunk.records["delta_norm"][arrived]
        if arrived.any():
            found |= {"staleness_mean": float(staleness.mean()), "staleness_max": float(staleness.max())}
            found |= {"delta_norm": float(norms.mean())}
    return found


def check_metric(owner: str, run: Run, metric: str) -> None:
    """Raises `ValueError` if the evaluations of a run have no such metric, as far as that is known."""
    known = list(run.metrics)
    if known and metric.removeprefix("average_") not in known:
        apart = metric.startswith("validation_") and "validation_loss" not in known
        remedy = ". data.with_validation(0.1, seed=0) holds out samples to choose by" if apart else ""
        raise UserError(
            f"{owner}: there is no metric {metric!r}; there are {', '.join(known)}{did_you_mean(metric, known)}{remedy}"
        )


def name_of(run: Run) -> str:
    """Returns a name of a member of a sweep that a file can have, each its own; empty for a single run."""
    return file_name(",".join(f"{axis}={label}" for axis, label in run.member.items()))


def file_name(text: str) -> str:
    """Returns a text as a name that a file can have; with a checksum if that changes it, so that no two are alike."""
    name = re.sub(r"[^\w.=,+-]+", "_", text)[:_LONGEST]
    return name if name == text else f"{name}-{zlib.crc32(text.encode()):08x}"


def set_aside(path: pathlib.Path) -> pathlib.Path | None:
    """Renames a file that exists, `log.csv` to the first of `log-1.csv`, `log-2.csv` ... that does not; returns it."""
    return path.rename(next(one for one in set_aside_as(path) if not one.exists())) if path.is_file() else None


def set_aside_as(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """The names under which a file is set aside, in their order."""
    return (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in itertools.count(1))


def in_notebook() -> bool:
    """Whether a cell of a notebook is running."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    shell = get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def required(module: str, extra: str, purpose: str) -> Any:
    """A module that only a callback needs; `ImportError` that says which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f'{purpose} needs {module}: pip install "jaxafl[{extra}]"') from error


def check_callbacks(callbacks: Any) -> tuple[Any, ...]:
    """The callbacks as a tuple; `TypeError` for what is none."""
    several = tuple(callbacks) if isinstance(callbacks, list | tuple) else (callbacks,)
    for one in several:
        if isinstance(one, type) or not all(callable(getattr(one, name, None)) for name in ("begin", "chunk", "end")):
            raise TypeError(
                f"callbacks must be a list of callbacks, objects with begin, chunk and end (see jaxafl.callbacks), "
                f"got {shown(one)}"
            )
    return several


def check_watchers(callbacks: Sequence[Any], runs: Iterable[Run]) -> None:
    """Lets callbacks that have a `check` raise for runs that they cannot watch, before anything is compiled."""
    for run in runs:
        for one in callbacks:
            if hasattr(one, "check"):
                one.check(run)


def renew(callbacks: Sequence[Any], folder: str | os.PathLike[str] | None) -> None:
    """Sets aside what earlier runs have written, unless a folder says that they go on."""
    if folder is None or not (path := pathlib.Path(folder)).is_dir() or not any(path.iterdir()):
        for one in callbacks:
            if hasattr(one, "renew"):
                one.renew()
