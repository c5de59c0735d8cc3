"""Batches of a sweep in other processes, by an executor of the user.

A task is one batch of members that share a program. It reads its work from the folder of the sweep, and writes its
results there, so that finished tasks are skipped.
"""

from __future__ import annotations

import functools
import os
import pathlib
import pickle
import signal
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor
from typing import Any

import cloudpickle
import jax
import jax.numpy as jnp

from jaxafl.callbacks.hooks import ProgressHook
from jaxafl.callbacks.interrupts import Interrupted, Interrupts
from jaxafl.callbacks.progress import Reporter, reporter_of
from jaxafl.callbacks.store import log_info
from jaxafl.options import UserError, check_whole, shown
from jaxafl.sweep.folder import SweepFolder
from jaxafl.sweep.work import Work

_WORK = "work.pickle"
_POLL = 0.05  # seconds
_REPORT = 10.0  # seconds between reports of the workers' progress
_DEATHS = 20  # most deaths of workers of one batch without a new checkpoint
_REFUSALS = 3  # most rounds of submissions in which no worker begins


def check_executor(executor: Any, folder: Any, devices: Any, retries: Any) -> None:
    """Raises `TypeError` or `ValueError` for an executor that cannot work."""
    check_whole("sweep", "retries", retries, least=0)
    if executor is None:
        return
    if isinstance(executor, type) or not (hasattr(executor, "submit") or callable(executor)):
        raise TypeError(
            "sweep(executor=...) must have a method submit(function, *args), or be a function that makes such an "
            f"object, e.g. jaxafl.process_pool(4); got {shown(executor)}"
        )
    if folder is None:
        raise UserError(
            "sweep(executor=...) needs a folder=..., which all workers see: they read what to do there and leave their "
            "results there"
        )
    _check_starts(executor)
    if devices is not None:
        raise UserError(f"sweep(executor=...) leaves devices to the workers: leave devices={shown(devices)} out")


def _check_starts(pool: Any) -> None:
    """Raises `ValueError` for a process pool with forks as workers, which have the locks of JAX without its threads."""
    context = getattr(pool, "_mp_context", None)
    if context is not None and context.get_start_method() == "fork":
        raise UserError(
            f"sweep(executor=...) got a {type(pool).__name__} that forks this process, and forks of JAX can wait for "
            "ever; expected another start of workers. Give executor=jaxafl.process_pool(4), or "
            "mp_context=multiprocessing.get_context('spawn') to the pool"
        )


class Task:
    """A batch in a worker. Submitit calls `checkpoint` if it preempts the job."""

    def __call__(self, folder: str, number: int) -> str | None:
        """Runs a batch, unless it is finished.

        Args:
            folder: folder of the sweep.
            number: index of the batch.

        Returns:
            The text of an error with its traceback, so that only the death of a worker raises; `None` on success.
        """
        kept = SweepFolder(folder)
        places, work, wide = _work(folder, (pathlib.Path(folder) / _WORK).stat().st_mtime_ns)[number]
        if kept.are_finished(places):
            return None
        with _attempts(kept, places).open("ab") as file:  # a later write would miss starts that end in a crash
            file.write(b".")
        interrupts = Interrupts()
        try:
            with jax.enable_x64(wide), interrupts:
                progress_hook = ProgressHook(reporter_of(False, "", 0))
                kept.keep(places, work.run(places, kept.checkpoint(places), progress_hook, interrupts))
            work.schedules.computed.clear()  # else the memory of the worker grows with every batch
        except Exception as error:
            return f"{type(error).__name__}: {error}\n\n{traceback.format_exc()}"
        finally:
            # After the death of a worker, a pool terminates the others and waits for them. Without this line they wait
            # for more work, and for ever if the dead worker locked the queue.
            if interrupts.noticed == signal.SIGTERM:
                signal.raise_signal(signal.SIGTERM)
        return None

    def checkpoint(self, *args: Any) -> Any:
        """Returns the submission of the same task, for submitit after a preemption."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *args)


class ExecutorRun:
    """The execution of the batches of a sweep by an executor."""

    def __init__(
        self, work: Work, batches: Sequence[Sequence[int]], kept: SweepFolder, executor: Any, retries: int
    ) -> None:
        """
        Args:
            work: the sweep.
            batches: for each batch, the indices of its members.
            kept: folder of the sweep.
            executor: the executor, or a function that makes one.
            retries: retries of a batch that ends with an error.
        """
        _write_work(work, batches, kept)
        self.work = work
        self.batches = batches
        self.kept = kept
        self.retries = retries
        self.make: Callable[[], Any] | None = None if hasattr(executor, "submit") else executor
        self.pool = self._make_pool() if self.make else executor
        self.left = {number for number, places in enumerate(batches) if not kept.are_finished(places)}
        for number in self.left:
            kept.failed(batches[number], "")
        self.running: dict[int, tuple[Any, int, int]] = {}  # batch -> future, starts and saves at its submission
        self.errors: Counter[int] = Counter()
        self.deaths: Counter[int] = Counter()
        self.refusals = 0

    def run(self, reporter: Reporter, interrupts: Interrupts) -> None:
        """Runs all batches.

        Args:
            reporter: receives the server steps of finished batches, and of the others up to their checkpoint.
            interrupts: the recorded signals.

        Raises:
            RuntimeError: no worker begins, or the executor broke and cannot be replaced.
        """
        begun = time.perf_counter()
        ran = 0
        reported = begun
        report = getattr(reporter, "piece", None)
        try:
            while self.left:
                interrupts.end(f"with {len(self.left)} of {len(self.batches)} batches left")
                if report is not None and time.perf_counter() - reported > _REPORT:
                    reported = time.perf_counter()
                    done = (len(self.batches) - len(self.left)) * self.work.server_steps + self._saved_steps()
                    report(done, ran * self.work.server_steps / (reported - begun))
                broken = self._submit()
                time.sleep(_POLL)
                for number in [number for number, (future, *_) in self.running.items() if future.done()]:
                    broken = self._ended(number) or broken
                    if number not in self.left:
                        ran += len(self.batches[number])
                        done = (len(self.batches) - len(self.left)) * self.work.server_steps
                        reporter.update(done, ran * self.work.server_steps / (time.perf_counter() - begun), {})
                if broken is not None:
                    self._replace_pool(broken)
        finally:
            for future, *_ in self.running.values():
                getattr(future, "cancel", bool)()
            if self.make is not None:
                self.pool.shutdown(wait=True, cancel_futures=True)

    def _saved_steps(self) -> int:
        """Returns the server steps in the checkpoints of the running batches."""
        saved = self.kept.under_way()
        return sum(max((saved.get(place, 0) for place in self.batches[number]), default=0) for number in self.running)

    def _make_pool(self) -> Any:
        """Makes an executor."""
        pool = self.make() if self.make else None
        if not hasattr(pool, "submit"):
            raise TypeError(f"sweep(executor=...): the function has made {shown(pool)}, which has no method submit")
        _check_starts(pool)
        return pool

    def _submit(self) -> BaseException | None:
        """Submits all batches that are not running. Returns the error that broke the executor, if any."""
        for number in sorted(self.left - self.running.keys()):
            places = self.batches[number]
            try:
                future = self.pool.submit(Task(), str(self.kept.path), number)
            except BrokenExecutor as error:
                return error
            self.running[number] = future, _starts(self.kept, places), _saves(self.kept, places)
        return None

    def _ended(self, number: int) -> BaseException | None:
        """Records the end of a batch. Returns the error that broke the executor, if any."""
        future, starts, saves = self.running.pop(number)
        places = self.batches[number]
        broken = None
        try:
            text = future.result()
        except (Exception, Interrupted) as error:  # the worker has died, or never began
            broken = error if isinstance(error, BrokenExecutor) else None
            died = _starts(self.kept, places) > starts
            self.refusals = 0 if died else self.refusals + 1
            if self.refusals > _REFUSALS * len(self.batches):
                raise RuntimeError(f"the executor's workers do not begin: {type(error).__name__}: {error}") from error
            self.deaths[number] = (self.deaths[number] + died) * (_saves(self.kept, places) <= saves)
            if self.deaths[number] < _DEATHS:
                return broken
            self.errors[number] = self.retries
            text = f"its worker died {_DEATHS} times, at last with {type(error).__name__}: {error}"
        self.refusals = 0
        if text is None and self.kept.are_finished(places):
            self.left.discard(number)
            return broken
        self.errors[number] += 1
        if self.errors[number] > self.retries:
            self.left.discard(number)
            text = text or "its worker has left no result"
            self.kept.failed(places, text)
            where = self.work.members[places[0]].where
            first = text.splitlines()[0]
            warnings.warn(f"given up {where}, after {self.errors[number]} errors: {first}", stacklevel=4)
        return broken

    def _replace_pool(self, broken: BaseException) -> None:
        """Replaces a broken executor by a new one."""
        if self.make is None:
            raise RuntimeError(
                f"the executor is broken, because a worker has died; what was finished is kept in {self.kept.path}. "
                "Give a function that makes an executor, executor=lambda: ..., which then makes another one"
            ) from broken
        log_info("a worker has died: its pool is made anew")
        self.pool.shutdown(wait=True, cancel_futures=True)
        self.running.clear()
        self.pool = self._make_pool()


def _write_work(work: Work, batches: Sequence[Sequence[int]], kept: SweepFolder) -> None:
    """Writes the work of all tasks to the folder, to a temporary name first."""
    wide = jnp.result_type(float) == jnp.float64
    try:
        content = cloudpickle.dumps((work.without_caches(), [list(places) for places in batches], wide))
    except Exception as error:  # objects raise many types when they cannot be pickled
        raise UserError(
            f"this sweep cannot be sent to other processes ({type(error).__name__}: {error}): make what holds an open "
            "file, a lock or a connection inside the function that uses it"
        ) from error
    part = kept.path / f".{_WORK}.{os.getpid()}.part"
    part.write_bytes(content)
    part.replace(kept.path / _WORK)


@functools.lru_cache(maxsize=1)
def _work(folder: str, written: int) -> list[tuple[list[int], Work, bool]]:
    """Reads the tasks of a folder: (members, sweep, 64-bit) of each batch. Cached per process.

    Args:
        folder: folder of the sweep.
        written: time of the file, which invalidates the cache.
    """
    work, batches, wide = pickle.loads((pathlib.Path(folder) / _WORK).read_bytes())
    return [(places, work, wide) for places in batches]


def _attempts(kept: SweepFolder, places: Sequence[int]) -> pathlib.Path:
    """Returns the path of a file with one byte per start of a batch by a worker."""
    return pathlib.Path(kept.path) / f".begun-{places[0]:05}-{len(places)}"


def _starts(kept: SweepFolder, places: Sequence[int]) -> int:
    """Returns how often a batch was started."""
    file = _attempts(kept, places)
    return file.stat().st_size if file.is_file() else 0


def _saves(kept: SweepFolder, places: Sequence[int]) -> int:
    """Returns the number of the newest checkpoint of a batch; -1 if there is none."""
    return max((int(path.name) for path in kept.batch(places).glob("[0-9]*") if path.name.isdigit()), default=-1)
