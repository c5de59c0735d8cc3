"""What is called between pieces of server steps: progress, callbacks, checkpoints and signals."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import operator
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, TypedDict

import numpy as np

from jaxafl.callbacks.base import PIECE_SECONDS, Callback, Chunk, Run, check_watchers
from jaxafl.callbacks.checkpoint import Checkpoint
from jaxafl.callbacks.limits import Limited, Targets
from jaxafl.callbacks.progress import Reporter
from jaxafl.engine.execution import Execution
from jaxafl.engine.loop import Progress, Trained, run_to_end
from jaxafl.engine.problem import Observe
from jaxafl.options import UserError, shown
from jaxafl.results.arrivals import masked

_REPORT_SECONDS = 1.0  # between reports


class SharedOptions(TypedDict, total=False):
    """Options that runs and sweeps share."""

    lanes: int | None
    chunk: int | None
    deterministic: bool
    devices: Any
    observe: Observe | None
    diagnostics: str | Sequence[str]
    metrics: Mapping[str, Any] | None
    progress: bool | str | Reporter
    checkpoint_every: int | str


class RunOptions(SharedOptions, total=False):
    """Options of `Simulation.run` and `Simulation.train`; `Simulation.run` documents them."""

    eval_every: int | None
    seed: int
    callbacks: Sequence[Callback] | Callback
    folder: str | os.PathLike[str] | None
    until: Mapping[str, float] | None


class Interrupted(KeyboardInterrupt):
    """The exception of a run that a signal ended.

    Attributes:
        signal: number of the signal.
        dataset: the result so far.
    """

    signal: int = signal.SIGINT
    dataset: Any = None


@dataclasses.dataclass(eq=False)
class Watch:
    """What all runs of a call share: the signals that it has received, and the reporter of its progress.

    Attributes:
        reporter: receives the progress, if somebody wants to see it.
        noticed: number of the last signal, 0 before.
        reports: hook of an execution -> server steps and updates so far, and the time at which it began.
    """

    reporter: Reporter | None = None
    noticed: int = 0
    reports: dict[Hook, tuple[int, int, float]] = dataclasses.field(default_factory=dict)

    @contextlib.contextmanager
    def recorded(self) -> Iterator[Watch]:
        """Enters the reporter, and records SIGINT, SIGTERM and SIGUSR1 on the main thread within the block.

        Their default action does not happen. A second Ctrl-C interrupts at once. User-defined handlers stay, and
        ignored signals stay ignored, such as SIGINT in a background process of a script.
        """
        before: dict[signal.Signals, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
                if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                    before[number] = signal.signal(number, self._notice)
        try:
            with self.reporter or contextlib.nullcontext():
                yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self.noticed:  # a signal after the last piece would be lost to the caller
            signal.raise_signal(self.noticed)

    def end(self, where: str) -> None:
        """Raises `Interrupted` if a signal was recorded; `where`: the place, for the message."""
        if self.noticed:
            error = Interrupted(f"interrupted by {signal.Signals(self.noticed).name} {where}")
            error.signal = self.noticed
            raise error

    def _notice(self, number: int, frame: FrameType | None) -> None:
        if self.noticed and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.noticed = number


class Hook:
    """What the engine's loop calls: progress, the callbacks of runs that have not stopped, checkpoint and signals.

    Attributes:
        seconds: the longest duration of a piece.
        steps: server steps at whose multiples a piece ends; `None` for any.
    """

    def __init__(
        self,
        watch: Watch | None = None,
        callbacks: Sequence[Callback] = (),
        runs: Sequence[Run] = (),
        checkpoint: Checkpoint | None = None,
    ) -> None:
        """
        Args:
            watch: the signals and the reporter of the call.
            callbacks: the callbacks; every member of a sweep gets copies.
            runs: the runs of the execution, for the callbacks; none without callbacks.
            checkpoint: the checkpoint, if there is one.
        """
        self.watch = watch or Watch()
        self.checkpoint = checkpoint
        self.seconds = checkpoint.seconds if checkpoint else PIECE_SECONDS
        self.steps = checkpoint.steps if checkpoint else None
        self.copies = [[copy.copy(one) if run.member else one for one in callbacks] for run in runs]
        self.runs = runs
        check_watchers(callbacks, self.runs)

    def begin(self, execution: Execution, progress: Progress) -> None:
        if self.checkpoint:
            self.checkpoint.begin(execution, progress)  # restores the runs
        self.begun = time.perf_counter()
        done = progress.eval_step[-1] if progress.eval_step else None
        for index, (run, callbacks) in enumerate(zip(self.runs, self.copies, strict=True)):
            evaluated = zip(progress.eval_step, progress.evaluations, strict=True)
            earlier = [(step, _of_runs(evaluation, index)) for step, evaluation in evaluated]
            begun = run._replace(resumed=done, earlier=earlier)
            for one in callbacks:
                one.begin(begun)
                if isinstance(one, Targets) and progress.stops[index] is None:
                    self._restored(one, begun, index, progress)
        self.reported = self.ready = time.perf_counter()
        self.before = execution.updates(done or 0)

    def piece(self, execution: Execution, progress: Progress) -> None:
        report = getattr(self.watch.reporter, "piece", None)
        if report is not None and time.perf_counter() - self.reported > _REPORT_SECONDS:
            report(*self._so_far(execution, progress.step))
        if self.checkpoint:
            self.checkpoint.piece(execution, progress)
        if self.watch.noticed:
            self._interrupt(execution, progress)

    def chunk(self, execution: Execution, progress: Progress) -> Sequence[str | None]:
        start, stop = [0, *progress.eval_step][-2:]
        evaluated = progress.evaluations[-1]
        if stop and self.watch.reporter is not None:
            self.watch.reporter.update(*self._so_far(execution, stop), _of_runs(evaluated, slice(None)))
        reasons: list[str | None] = [None] * len(self.runs)
        failures = execution.failures() if self.runs else []
        for index, (run, callbacks, failure) in enumerate(zip(self.runs, self.copies, failures, strict=True)):
            if progress.stops[index] or (failure and failure[0] < start):
                continue
            records = _of_arrivals(execution.arrivals(index, start, stop, progress.records))
            chunk = Chunk(
                run=run,
                start=start,
                stop=stop,
                time=float(records["time"][-1]) if stop else 0.0,
                seconds=time.perf_counter() - self.begun,
                records=records,
                evaluation=_of_runs(evaluated, index),
                model=functools.partial(execution.model, index),
            )
            answers = [_answer(one, chunk) for one in callbacks]  # a stop keeps the chunk from no callback
            reasons[index] = next(filter(None, answers), None)
        return reasons

    def evaluated(self, execution: Execution, progress: Progress) -> None:
        if self.checkpoint:
            self.checkpoint.evaluated(execution, progress)
        if self.watch.noticed:
            self._interrupt(execution, progress)

    def end(self, results: Sequence[Any]) -> None:
        """Calls `end` of all callbacks with the result of their run, then raises their last error with all results."""
        try:
            with contextlib.ExitStack() as stack:
                for callbacks, result in zip(self.copies, results, strict=False):
                    for one in callbacks:
                        stack.callback(one.end, result)
        except Exception as error:
            _carry(error, results)
            raise

    def _restored(self, targets: Targets, run: Run, index: int, progress: Progress) -> None:
        """Stops a restored run whose last evaluation reaches a target, which may be new."""
        for step, evaluation in run.earlier:
            if why := targets.reached(evaluation, run):
                if step < progress.step:
                    raise UserError(
                        f"the folder holds {progress.step} server steps, and until is reached at {step} ({why}): name "
                        "another folder, or another target"
                    )
                progress.stops[index] = step, why

    def _so_far(self, execution: Execution, done: int) -> tuple[int, float]:
        """Returns the server steps and the updates per second of all executions; `done`: the steps of this one."""
        self.reported = time.perf_counter()
        self.watch.reports[self] = done, execution.updates(done) - self.before, self.ready
        steps, updates, begun = zip(*self.watch.reports.copy().values(), strict=True)  # other threads change the dict
        return sum(steps), sum(updates) / (self.reported - min(begun))

    def _interrupt(self, execution: Execution, progress: Progress) -> None:
        """Saves interrupted runs, and raises `Interrupted`."""
        where = f"after {progress.step} server steps"
        if self.checkpoint:
            self.checkpoint.save(execution, progress)
            saved = f"saved in {self.checkpoint.folder}: the same call goes on from there"
            where += f"; {saved if self.checkpoint.finish() else 'it could not be saved'}"
        self.watch.end(where)


def run_with_hooks(
    execution: Execution,
    server_steps: int,
    every: int,
    begun: float,
    hook: Hook,
    finish: Sequence[Callable[[Trained], Any]],
    limited: Limited,
) -> list[Any]:
    """Executes runs to their end and returns their results, which the callbacks receive at the end.

    An exception, such as an interruption, carries the results so far as `error.datasets`, and the first of them as
    `error.dataset`.

    Args:
        execution, server_steps, every, begun: as in `run_to_end`.
        hook: the hook of the runs.
        finish: for each run, a function from the finished run to its result.
        limited: the limits of the runs, for their notes.
    """
    found: list[Any] = [None] * len(finish)
    try:
        with hook.checkpoint or contextlib.nullcontext():
            ended = run_to_end(execution, server_steps, every, hook, begun)
    except BaseException as error:
        if partial := getattr(error, "trained", None):
            found = list(map(operator.call, finish, map(limited.noted, partial)))
            _carry(error, found)
        with contextlib.suppress(Exception):  # an error of a callback must not hide the first one
            hook.end(found)
        raise
    if hook.checkpoint and hook.checkpoint.changed:
        ended = [run._replace(notes={**run.notes, "resumed": hook.checkpoint.changed}) for run in ended]
    found = list(map(operator.call, finish, map(limited.noted, ended)))
    hook.end(found)
    return found


def _carry(error: Any, found: Sequence[Any]) -> None:
    error.dataset, error.datasets = found[0], found


def _answer(callback: Any, chunk: Chunk) -> str | None:
    """Returns the reason for which a callback stops a run, by default its name; `None` if it does not."""
    answer = callback.chunk(chunk)
    if not isinstance(answer, str | bool | np.bool_ | None):
        raise TypeError(
            f"{type(callback).__name__}: chunk returned {shown(answer)}; expected None to go on, or a text or True to "
            "stop the run"
        )
    reason = answer if isinstance(answer, str) else type(callback).__name__
    return reason if answer else None


def _of_arrivals(records: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the records with `arrived` added, and with missing values in slots without an arrival."""
    if not records:
        return {}
    arrived = records["client_id"] >= 0
    of_slots = {name: masked(values, arrived) for name, values in records.items() if values.shape == arrived.shape}
    return records | of_slots | {"client_id": records["client_id"], "arrived": arrived}


def _of_runs(evaluation: Mapping[str, np.ndarray], which: Any) -> dict[str, float]:
    """Returns the metrics of some runs, their means, without those of clients or test sets."""
    return {name: float(np.mean(values[which])) for name, values in evaluation.items() if values.ndim == 1}
