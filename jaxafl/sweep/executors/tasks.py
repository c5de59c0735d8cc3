"""Batches of a sweep in other processes, by an executor of the user.

A task is one batch of members that share a program. It reads its work from the folder of the sweep, and writes its
results there, so that finished tasks are skipped.
"""

from __future__ import annotations

import functools
import pathlib
import pickle
import signal
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor
from typing import Any

import jax
import jax.numpy as jnp

from jaxafl.callbacks.hooks import Interrupted, Watch
from jaxafl.options import UserError, warn
from jaxafl.readers.replacing import replacing
from jaxafl.sweep.folder import SweepFolder
from jaxafl.sweep.members import Work

_WORK = "work.pickle"
_POLL = 0.05  # seconds


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
        work, batches, wide = _work(folder, (pathlib.Path(folder) / _WORK).stat().st_mtime_ns)
        watch = Watch()
        try:
            with jax.enable_x64(wide), watch.recorded():
                work.completed(batches[number], kept, watch)
            work.schedules.clear()  # the memory of this process would grow with every batch
        except Exception as error:
            return f"{type(error).__name__}: {error}\n\n{traceback.format_exc()}"
        finally:
            # After the death of a worker, a pool terminates the others and waits for them. Without this line they wait
            # for more work, and for ever if the dead worker locked the queue.
            if watch.noticed == signal.SIGTERM:
                signal.raise_signal(signal.SIGTERM)
        return None

    def checkpoint(self, *args: Any) -> Any:
        """Returns the submission of the same task, for submitit after a preemption."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *args)


def run_in(executor: Any, work: Work, batches: Sequence[Sequence[int]], kept: SweepFolder, watch: Watch) -> None:
    """Runs the batches of a sweep that are not finished in other processes.

    A batch that ends with an error has the error in the folder; the same call runs it again.

    Args:
        executor: the executor, or a function that makes one.
        work: the sweep.
        batches: for each batch, the indices of its members.
        kept: folder of the sweep.
        watch: the signals; its reporter receives the server steps of finished batches.

    Raises:
        ValueError: the executor is a process pool whose workers are forks.
        BrokenExecutor: a worker died; finished and saved members are kept, and the same call continues.
    """
    import cloudpickle

    task = work, [list(places) for places in batches], jnp.result_type(float) == jnp.float64
    with replacing(kept.path / _WORK) as unfinished:
        unfinished.write_bytes(cloudpickle.dumps(task))
    pool = executor if hasattr(executor, "submit") else executor()
    context = getattr(pool, "_mp_context", None)
    if context is not None and context.get_start_method() == "fork":  # it has the locks of JAX without its threads
        raise UserError(
            f"sweep(executor=...) got a {type(pool).__name__} that forks this process, and forks of JAX can wait for "
            "ever; expected another start of workers. Give executor=jaxafl.process_pool(4), or "
            "mp_context=multiprocessing.get_context('spawn') to the pool"
        )
    begun, ran, running = time.perf_counter(), 0, {}
    try:
        for number, places in enumerate(batches):
            if not kept.are_finished(places):
                kept.failed(places, "")
                running[pool.submit(Task(), str(kept.path), number)] = places
        while running:
            watch.end(f"with {len(running)} of {len(batches)} batches left")
            time.sleep(_POLL)
            for future in [one for one in running if one.done()]:
                places = running.pop(future)
                _check_end(future, places, work, kept)
                ran += len(places)
                done = (len(batches) - len(running)) * work.server_steps
                if watch.reporter is not None:
                    watch.reporter.update(done, ran * work.server_steps / (time.perf_counter() - begun), {})
    finally:
        for future in running:
            getattr(future, "cancel", bool)()
        if pool is not executor:
            pool.shutdown(wait=True, cancel_futures=True)


def _check_end(future: Any, places: Sequence[int], work: Work, kept: SweepFolder) -> None:
    """Records the error of a batch that has ended without a result, and warns of it."""
    try:
        text = future.result()
    except BrokenExecutor:
        raise
    except (Exception, Interrupted) as error:  # the worker has died, or never began
        text = f"{type(error).__name__}: {error}"
    if not kept.are_finished(places):
        text = text or "its worker has left no result"
        kept.failed(places, text)
        where, first = work.members[places[0]].where, text.splitlines()[0]
        warn(f"not finished {where}: {first}; the same call runs it again")


@functools.lru_cache(maxsize=1)
def _work(folder: str, written: int) -> tuple[Work, list[list[int]], bool]:
    """Reads the tasks of a folder: the sweep, the members of each batch, and if it has 64 bits; `written`: its time."""
    return pickle.loads((pathlib.Path(folder) / _WORK).read_bytes())
