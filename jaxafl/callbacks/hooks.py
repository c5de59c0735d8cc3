"""Hooks, which are called between pieces of server steps: their base, a list of hooks, progress and callbacks."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxafl.callbacks.base import Callback, Chunk, Run, check_watchers
from jaxafl.callbacks.progress import Reporter
from jaxafl.engine.execution import Execution
from jaxafl.engine.loop import Progress
from jaxafl.options import shown
from jaxafl.results.arrivals import masked

_PIECES = 1.0  # seconds between reports
PIECE_SECONDS = 2.0  # a longer piece delays the reaction to Ctrl-C


class Hook:
    """Base class of hooks (`jaxafl.engine.loop.RunHook`), and a context manager around the runs."""

    seconds: float = PIECE_SECONDS
    steps: int | None = None

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *args: Any) -> None:
        return None

    def begin(self, execution: Execution, progress: Progress) -> None:
        return None

    def piece(self, execution: Execution, progress: Progress) -> None:
        return None

    def chunk(self, execution: Execution, progress: Progress) -> Sequence[str | None]:
        return ()

    def settled(self, execution: Execution, progress: Progress) -> None:
        return None


class HookList(Hook):
    """A hook that calls several hooks in order."""

    def __init__(self, *hooks: Hook) -> None:
        self.hooks = hooks
        self.seconds = min(hook.seconds for hook in hooks)
        self.steps = next((hook.steps for hook in hooks if hook.steps), None)

    def begin(self, execution: Execution, progress: Progress) -> None:
        for hook in reversed(self.hooks):  # the checkpoint is last, and has to restore the runs before the others begin
            hook.begin(execution, progress)

    def piece(self, execution: Execution, progress: Progress) -> None:
        for hook in self.hooks:
            hook.piece(execution, progress)

    def chunk(self, execution: Execution, progress: Progress) -> Sequence[str | None]:
        answers = [hook.chunk(execution, progress) for hook in self.hooks]
        return [next(filter(None, reasons), None) for reasons in zip(*filter(None, answers), strict=True)]

    def settled(self, execution: Execution, progress: Progress) -> None:
        for hook in self.hooks:
            hook.settled(execution, progress)


class ProgressHook(Hook):
    """Reports pieces and chunks to a reporter."""

    def __init__(
        self, reporter: Reporter, batches: dict[int, tuple[int, float]] | None = None, number: int = 0
    ) -> None:
        """
        Args:
            reporter: the reporter, entered by the caller.
            batches: number of an execution -> (server steps, updates per second), shared by all with this reporter.
            number: number of this execution.
        """
        self.reporter = reporter
        self.batches = {} if batches is None else batches
        self.number = number

    def begin(self, execution: Execution, progress: Progress) -> None:
        self.ready = time.perf_counter()
        self.before = execution.updates(progress.eval_step[-1] if progress.eval_step else 0)
        self.reported = self.ready

    def piece(self, execution: Execution, progress: Progress) -> None:
        report = getattr(self.reporter, "piece", None)
        if report is not None and time.perf_counter() - self.reported > _PIECES:
            report(*self._so_far(execution, execution.step_of(progress.row)))

    def chunk(self, execution: Execution, progress: Progress) -> Sequence[str | None]:
        if done := progress.eval_step[-1]:
            latest = {name: float(np.mean(values)) for name, values in _pooled(progress).items()}
            self.reporter.update(*self._so_far(execution, done), latest)
        return ()

    def _so_far(self, execution: Execution, done: int) -> tuple[int, float]:
        """Returns the server steps and the updates per second of all executions.

        Args:
            execution: this execution.
            done: its server steps.
        """
        self.reported = time.perf_counter()
        self.batches[self.number] = done, (execution.updates(done) - self.before) / (self.reported - self.ready)
        steps, rates = zip(*self.batches.copy().values(), strict=True)  # other threads change the dict during iteration
        return sum(steps), sum(rates)

    def __exit__(self, *args: Any) -> None:
        if self.number in self.batches:
            self.batches[self.number] = self.batches[self.number][0], 0.0


class CallbackHook(Hook):
    """Calls the callbacks of all runs that have not stopped."""

    def __init__(self, callbacks: Sequence[Callback], runs: Sequence[Run], several: bool = False) -> None:
        """
        Args:
            callbacks: the callbacks.
            runs: the runs of the execution.
            several: if True, every run gets copies of the callbacks.
        """
        self.runs = runs
        check_watchers(callbacks, runs)
        self.copies = [[copy.copy(one) if several else one for one in callbacks] for _ in runs]

    def begin(self, execution: Execution, progress: Progress) -> None:
        self.begun = time.perf_counter()
        done = progress.eval_step[-1] if progress.eval_step else None
        for run, callbacks in zip(self.runs, self.copies, strict=True):
            for one in callbacks:
                one.begin(run._replace(resumed=done))

    def chunk(self, execution: Execution, progress: Progress) -> Sequence[str | None]:
        reasons: list[str | None] = []
        stop = progress.eval_step[-1]
        start = progress.eval_step[-2] if len(progress.eval_step) > 1 else 0
        failures = execution.failures() if self.runs else []
        for index, (run, callbacks) in enumerate(zip(self.runs, self.copies, strict=True)):
            reason = None
            failure = failures[index]
            if callbacks and not progress.stops[index] and not (failure and failure[0] < start):
                records = _of_arrivals(execution.arrivals(index, start, stop, progress.records))
                chunk = Chunk(
                    run=run,
                    start=start,
                    stop=stop,
                    time=float(records["time"][-1]) if stop else 0.0,
                    seconds=time.perf_counter() - self.begun,
                    records=records,
                    evaluation={name: float(values[index]) for name, values in _pooled(progress).items()},
                    model=functools.partial(execution.model, index),
                    parts=_of_parts(execution, progress, index),
                )
                for one in callbacks:  # a stop must not keep the chunk from the callbacks after it
                    answer = one.chunk(chunk)
                    if not (answer is None or isinstance(answer, str | bool | np.bool_)):
                        raise TypeError(
                            f"{type(one).__name__}: chunk returned {shown(answer)}; expected None to go on, or a text "
                            "or True to stop the run"
                        )
                    if answer:
                        reason = reason or (answer if isinstance(answer, str) else type(one).__name__)
            reasons.append(reason)
        return reasons

    def end(self, results: Sequence[Any]) -> None:
        """Calls `end` of all callbacks with the result of their run, then raises the first error."""
        errors = []
        for callbacks, result in zip(self.copies, results, strict=False):
            for one in callbacks:
                try:
                    one.end(result)
                except Exception as error:
                    errors.append(error)
        if errors:
            raise errors[0]


def _of_arrivals(records: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the records with `arrived` added, and with missing values in slots without an arrival."""
    if not records:
        return {}
    arrived = records["client_id"] >= 0
    shown = {name: masked(values, arrived) for name, values in records.items() if values.shape == arrived.shape}
    return records | shown | {"client_id": records["client_id"], "arrived": arrived}


def _of_parts(execution: Execution, progress: Progress, index: int) -> dict[str, dict[str, float]]:
    """Returns the latest metrics of single clients and test sets of a run, by name of the metric and of the part."""
    data = execution.problems[index].data
    found = {}
    for name, values in progress.evaluations[-1].items():
        if values.ndim == 2:
            labels: Any = data.test_sets
            if "client_" in name:
                clients = data.owners.clients
                labels = clients if data.client_names is None else data.client_names[clients]
            found[name] = dict(zip(map(str, labels), map(float, values[index]), strict=True))
    return found


def _pooled(progress: Progress) -> dict[str, np.ndarray]:
    """Returns the latest metrics, each [P], without metrics per client."""
    return {name: values for name, values in progress.evaluations[-1].items() if values.ndim == 1}
