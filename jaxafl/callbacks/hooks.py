"""What watches runs between pieces of server steps: `Hook`, several of them as one, and the hook of the callbacks."""

from __future__ import annotations

import contextlib
import copy
import functools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxafl.callbacks.base import Callback, Chunk, Run, check_watchers
from jaxafl.callbacks.progress import Reporter
from jaxafl.engine.execution import Execution
from jaxafl.engine.loop import Progress
from jaxafl.results.arrivals import masked

_PIECES = 1.0  # seconds between reports
PIECE_SECONDS = 2.0  # also what a second Ctrl-C waits for, at the most


class Hook:
    """Base of hooks, see `jaxafl.engine.loop.RunHook`; a context manager around the runs."""

    seconds: float = PIECE_SECONDS
    steps: int | None = None

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *args: Any) -> None:
        return None

    def begin(self, execution: Execution, made: Progress) -> None:
        return None

    def piece(self, execution: Execution, made: Progress) -> None:
        return None

    def chunk(self, execution: Execution, made: Progress) -> Sequence[str | None]:
        return ()

    def settled(self, execution: Execution, made: Progress) -> None:
        return None


class Several(Hook):
    """Hooks as one, told in their order."""

    def __init__(self, *hooks: Hook) -> None:
        self.hooks = hooks
        self.seconds = min(hook.seconds for hook in hooks)
        self.steps = next((hook.steps for hook in hooks if hook.steps), None)

    @contextlib.contextmanager
    def entered(self) -> Iterator[Several]:
        """All hooks, entered in their order and left in the opposite one."""
        with contextlib.ExitStack() as stack:
            for hook in self.hooks:
                stack.enter_context(hook)
            yield self

    def begin(self, execution: Execution, made: Progress) -> None:
        for hook in reversed(self.hooks):  # what takes runs up again comes last, and first here
            hook.begin(execution, made)

    def piece(self, execution: Execution, made: Progress) -> None:
        for hook in self.hooks:
            hook.piece(execution, made)

    def chunk(self, execution: Execution, made: Progress) -> Sequence[str | None]:
        said = [hook.chunk(execution, made) for hook in self.hooks]
        return [next(filter(None, whys), None) for whys in zip(*filter(None, said), strict=True)]

    def settled(self, execution: Execution, made: Progress) -> None:
        for hook in self.hooks:
            hook.settled(execution, made)


class Reporting(Hook):
    """Tells a reporter of every chunk."""

    def __init__(
        self, reporter: Reporter, batches: dict[int, tuple[int, float]] | None = None, number: int = 0
    ) -> None:
        """
        Args:
            reporter: whom; entered by its owner.
            batches: server steps made, and updates per second, of all executions that one reporter is told of.
            number: of this one among them.
        """
        self.reporter, self.batches, self.number = reporter, {} if batches is None else batches, number

    def begin(self, execution: Execution, made: Progress) -> None:
        self.ready, self.before = time.perf_counter(), execution.updates(made.eval_step[-1] if made.eval_step else 0)
        self.told = self.ready

    def piece(self, execution: Execution, made: Progress) -> None:
        tell = getattr(self.reporter, "piece", None)
        if tell is not None and time.perf_counter() - self.told > _PIECES:
            tell(*self._so_far(execution, execution.step_of(made.row)))

    def chunk(self, execution: Execution, made: Progress) -> Sequence[str | None]:
        if done := made.eval_step[-1]:
            latest = {name: float(np.mean(values)) for name, values in _pooled(made).items()}
            self.reporter.update(*self._so_far(execution, done), latest)
        return ()

    def _so_far(self, execution: Execution, done: int) -> tuple[int, float]:
        """Returns the server steps and the updates per second of all executions, this one having made so many steps."""
        self.told = time.perf_counter()
        self.batches[self.number] = done, (execution.updates(done) - self.before) / (self.told - self.ready)
        steps, rates = zip(*self.batches.copy().values(), strict=True)  # other threads write there
        return sum(steps), sum(rates)

    def __exit__(self, *args: Any) -> None:
        if self.number in self.batches:
            self.batches[self.number] = self.batches[self.number][0], 0.0


class Telling(Hook):
    """Tells callbacks of the chunks of all runs that have not been stopped; every run has copies of its own where there
    are several."""

    def __init__(self, callbacks: Sequence[Callback], runs: Sequence[Run], several: bool = False) -> None:
        """
        Args:
            callbacks: whom.
            runs: of the execution.
            several: whether there are other runs, in this execution or another one.
        """
        self.runs = runs
        check_watchers(callbacks, runs)
        self.told = [[copy.copy(one) if several else one for one in callbacks] for _ in runs]

    def begin(self, execution: Execution, made: Progress) -> None:
        self.begun = time.perf_counter()
        done = made.eval_step[-1] if made.eval_step else None
        for run, callbacks in zip(self.runs, self.told, strict=True):
            for one in callbacks:
                one.begin(run._replace(resumed=done))

    def chunk(self, execution: Execution, made: Progress) -> Sequence[str | None]:
        whys: list[str | None] = []
        stop, start = made.eval_step[-1], made.eval_step[-2] if len(made.eval_step) > 1 else 0
        failures = execution.failures() if self.runs else []
        for index, (run, callbacks) in enumerate(zip(self.runs, self.told, strict=True)):
            why, failure = None, failures[index]
            if callbacks and not made.stops[index] and not (failure and failure[0] < start):
                records = _of_arrivals(execution.arrivals(index, start, stop, made.records))
                chunk = Chunk(
                    run=run,
                    start=start,
                    stop=stop,
                    time=float(records["time"][-1]) if stop else 0.0,
                    seconds=time.perf_counter() - self.begun,
                    records=records,
                    evaluation={name: float(values[index]) for name, values in _pooled(made).items()},
                    model=functools.partial(execution.model, index),
                )
                for one in callbacks:  # all are told, the first that stops the run says why
                    if answer := one.chunk(chunk):
                        why = why or (answer if isinstance(answer, str) else type(one).__name__)
            whys.append(why)
        return whys

    def end(self, results: Sequence[Any]) -> None:
        """The results of the runs; all callbacks are told, and the first error is raised afterwards."""
        errors = []
        for callbacks, result in zip(self.told, results, strict=False):
            for one in callbacks:
                try:
                    one.end(result)
                except Exception as error:
                    errors.append(error)
        if errors:
            raise errors[0]


def _of_arrivals(records: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the records with `arrived`, and numbers that are missing at places without an arrival, as in a result."""
    if not records:
        return {}
    arrived = records["client"] >= 0
    shown = {name: masked(values, arrived) for name, values in records.items() if values.shape == arrived.shape}
    return records | shown | {"client": records["client"], "arrived": arrived}


def _pooled(made: Progress) -> dict[str, np.ndarray]:
    """The latest metrics, each [P], without those of single clients."""
    return {name: values for name, values in made.evaluations[-1].items() if values.ndim == 1}
