"""Batches of a sweep in other processes, by whatever executor the user has.

A task is one batch of members that share a program. It gets a path: what to do lies in the folder of the sweep, and
what was made goes there, so that a task which has been done, by this or an earlier call, is skipped.
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

from jaxafl.callbacks.hooks import Reporting
from jaxafl.callbacks.interrupts import Interrupted, Interrupts
from jaxafl.callbacks.progress import Reporter, reporter_of
from jaxafl.callbacks.store import say
from jaxafl.options import UserError, check_whole, shown
from jaxafl.sweep.folder import SweepFolder
from jaxafl.sweep.work import Work

_WORK = "work.pickle"
_POLL = 0.05  # seconds
_REPORT = 10.0  # seconds between looks at how far workers are
_DEATHS = 20  # of the workers of one batch, without a checkpoint between them
_REFUSALS = 3  # of all batches in turn, without any that began


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
    if devices is not None:
        raise UserError(f"sweep(executor=...) leaves devices to the workers: leave devices={shown(devices)} out")


class Task:
    """One batch, in a worker; submitit calls `checkpoint` where a job is preempted."""

    def __call__(self, folder: str, number: int) -> str | None:
        """Runs a batch, unless it is there already.

        Args:
            folder: of the sweep.
            number: of the batch.

        Returns:
            An error, with its traceback, so that only the death of a worker raises.
        """
        kept = SweepFolder(folder)
        places, work, wide = _work(folder, (pathlib.Path(folder) / _WORK).stat().st_mtime_ns)[number]
        if kept.are_finished(places):
            return None
        with _attempts(kept, places).open("ab") as file:  # before anything that may end the worker
            file.write(b".")
        interrupts = Interrupts()
        try:
            with jax.enable_x64(wide), interrupts:
                reporting = Reporting(reporter_of(False, "", 0))
                kept.keep(places, work.run(places, kept.checkpoint(places), reporting, interrupts))
            work.schedules.made.clear()  # of batches that this worker has done
        except Exception as error:
            return f"{type(error).__name__}: {error}\n\n{traceback.format_exc()}"
        finally:
            # A pool of which a worker has died tells the others to end, and waits until they have. One that went back
            # for more work would wait for ever, if the dead one had locked the queue.
            if interrupts.noticed == signal.SIGTERM:
                signal.raise_signal(signal.SIGTERM)
        return None

    def checkpoint(self, *args: Any) -> Any:
        """What submitit does instead after a preemption: the same."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *args)


class Elsewhere:
    """The batches of a sweep that an executor runs."""

    def __init__(
        self, work: Work, batches: Sequence[Sequence[int]], kept: SweepFolder, executor: Any, retries: int
    ) -> None:
        """
        Args:
            work: the sweep.
            batches: the places of the members of each.
            kept: its folder.
            executor: who runs them, or a function that makes one.
            retries: of a batch that ends with an error.
        """
        _ship(work, batches, kept)
        self.work, self.batches, self.kept, self.retries = work, batches, kept, retries
        self.make: Callable[[], Any] | None = None if hasattr(executor, "submit") else executor
        self.pool = self._made() if self.make else executor
        self.left = {number for number, places in enumerate(batches) if not kept.are_finished(places)}
        for number in self.left:
            kept.failed(batches[number], "")
        self.running: dict[int, tuple[Any, int, int]] = {}  # number -> what `submit` said, starts and saves until then
        self.errors: Counter[int] = Counter()
        self.deaths: Counter[int] = Counter()
        self.refusals = 0

    def run(self, reporter: Reporter, interrupts: Interrupts) -> None:
        """Runs them all.

        Args:
            reporter: told of the server steps of batches that have ended.
            interrupts: what notices signals.

        Raises:
            RuntimeError: no worker begins, or the executor broke and cannot be made anew.
        """
        begun, ran = time.perf_counter(), 0
        told, tell = begun, getattr(reporter, "piece", None)
        try:
            while self.left:
                interrupts.end(f"with {len(self.left)} of {len(self.batches)} batches left")
                if tell is not None and time.perf_counter() - told > _REPORT:
                    told, under_way = time.perf_counter(), self._under_way()
                    made = (len(self.batches) - len(self.left)) * self.work.server_steps + under_way
                    tell(made, ran * self.work.server_steps / (told - begun))
                broken = self._submit()
                time.sleep(_POLL)
                for number in [number for number, (future, *_) in self.running.items() if future.done()]:
                    broken = self._ended(number) or broken
                    if number not in self.left:
                        ran += len(self.batches[number])
                        made = (len(self.batches) - len(self.left)) * self.work.server_steps
                        reporter.update(made, ran * self.work.server_steps / (time.perf_counter() - begun), {})
                if broken is not None:
                    self._mend(broken)
        finally:
            for future, *_ in self.running.values():
                getattr(future, "cancel", bool)()
            if self.make is not None:
                self.pool.shutdown(wait=True, cancel_futures=True)

    def _under_way(self) -> int:
        """Returns the server steps of the batches that run, as far as they have been saved."""
        saved = self.kept.under_way()
        return sum(max((saved.get(place, 0) for place in self.batches[number]), default=0) for number in self.running)

    def _made(self) -> Any:
        """An executor."""
        pool = self.make() if self.make else None
        if not hasattr(pool, "submit"):
            raise TypeError(f"sweep(executor=...): the function has made {shown(pool)}, which has no method submit")
        return pool

    def _submit(self) -> BaseException | None:
        """Submits what is not running; what broke the executor."""
        for number in sorted(self.left - self.running.keys()):
            places = self.batches[number]
            try:
                future = self.pool.submit(Task(), str(self.kept.path), number)
            except BrokenExecutor as error:
                return error
            self.running[number] = future, _starts(self.kept, places), _saves(self.kept, places)
        return None

    def _ended(self, number: int) -> BaseException | None:
        """Notes what became of a batch; what broke the executor."""
        (future, starts, saves), places = self.running.pop(number), self.batches[number]
        try:
            said, broken = future.result(), None
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
            said = f"its worker died {_DEATHS} times, at last with {type(error).__name__}: {error}"
        self.refusals = 0
        if said is None and self.kept.are_finished(places):
            self.left.discard(number)
            return broken
        self.errors[number] += 1
        if self.errors[number] > self.retries:
            self.left.discard(number)
            said = said or "its worker has left no result"
            self.kept.failed(places, said)
            where, first = self.work.members[places[0]].where, said.splitlines()[0]
            warnings.warn(f"given up {where}, after {self.errors[number]} errors: {first}", stacklevel=4)
        return broken

    def _mend(self, broken: BaseException) -> None:
        """A new executor in the place of a broken one."""
        if self.make is None:
            raise RuntimeError(
                f"the executor is broken, because a worker has died; what was finished is kept in {self.kept.path}. "
                "Give a function that makes an executor, executor=lambda: ..., which then makes another one"
            ) from broken
        say("a worker has died: its pool is made anew")
        self.pool.shutdown(wait=True, cancel_futures=True)
        self.running.clear()
        self.pool = self._made()


def _ship(work: Work, batches: Sequence[Sequence[int]], kept: SweepFolder) -> None:
    """Leaves in the folder what the tasks need, under another name first."""
    wide = jnp.result_type(float) == jnp.float64
    try:
        content = cloudpickle.dumps((work.bare(), [list(places) for places in batches], wide))
    except Exception as error:  # of whatever cannot be pickled
        raise UserError(
            f"this sweep cannot be sent to other processes ({type(error).__name__}: {error}): make what holds an open "
            "file, a lock or a connection inside the function that uses it"
        ) from error
    part = kept.path / f".{_WORK}.{os.getpid()}.part"
    part.write_bytes(content)
    part.replace(kept.path / _WORK)


@functools.lru_cache(maxsize=1)
def _work(folder: str, written: int) -> list[tuple[list[int], Work, bool]]:
    """What the tasks of a folder are, read once per process; `written`: when."""
    work, batches, wide = pickle.loads((pathlib.Path(folder) / _WORK).read_bytes())
    return [(places, work, wide) for places in batches]


def _attempts(kept: SweepFolder, places: Sequence[int]) -> pathlib.Path:
    """A file with a byte for every time that a worker has begun a batch."""
    return pathlib.Path(kept.path) / f".begun-{places[0]:05}-{len(places)}"


def _starts(kept: SweepFolder, places: Sequence[int]) -> int:
    """How many times a batch was begun."""
    file = _attempts(kept, places)
    return file.stat().st_size if file.is_file() else 0


def _saves(kept: SweepFolder, places: Sequence[int]) -> int:
    """The number of the newest checkpoint of a batch."""
    return max((int(path.name) for path in kept.batch(places).glob("[0-9]*") if path.name.isdigit()), default=-1)
