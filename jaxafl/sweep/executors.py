"""Batches of a sweep in other processes, by an executor of the user, and executors that are made here.

A task is one batch of members that share a program. It reads its work from the folder of the sweep, and writes its
results there, so that finished tasks are skipped.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import pickle
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxafl.callbacks.hooks import Interrupted, Interrupts
from jaxafl.callbacks.progress import Reporter
from jaxafl.options import UserError, check_whole, required, shown
from jaxafl.readers.replacing import replacing
from jaxafl.sweep.folder import SweepFolder
from jaxafl.sweep.members import Work

if TYPE_CHECKING:  # importing it here would slow down `import jaxafl`
    from concurrent.futures import ProcessPoolExecutor

_WORK = "work.pickle"
_POLL = 0.05  # seconds
_PATIENCE = 10  # seconds to wait for a scheduler
_GENERAL = ("name", "nodes", "tasks_per_node", "cpus_per_task", "gpus_per_node", "mem_gb", "timeout_min")


def check_executor(folder: Any, devices: Any) -> None:
    """Raises `ValueError` for an executor that has no folder, or whose devices are given."""
    if folder is None:
        raise UserError("sweep(executor=...) needs a folder=..., which all workers see and leave their results in")
    if devices is not None:
        raise UserError(f"sweep(executor=...) leaves devices to the workers: leave devices={shown(devices)} out")


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
        places = batches[number]
        if kept.are_finished(places):
            return None
        interrupts = Interrupts()
        try:
            with jax.enable_x64(wide), interrupts.recorded():
                kept.keep(places, work.run(places, kept.checkpoint(places), interrupts))
            work.schedules.clear()  # the memory of this process would grow with every batch
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


def run_in(
    executor: Any,
    work: Work,
    batches: Sequence[Sequence[int]],
    kept: SweepFolder,
    reporter: Reporter | None,
    interrupts: Interrupts,
) -> None:
    """Runs the batches of a sweep that are not finished in other processes.

    A batch that ends with an error has the error in the folder; the same call runs it again.

    Args:
        executor: the executor, or a function that makes one.
        work: the sweep.
        batches: for each batch, the indices of its members.
        kept: folder of the sweep.
        reporter: receives the server steps of finished batches, if somebody wants to see them.
        interrupts: the recorded signals.

    Raises:
        ValueError: the executor is a process pool whose workers are forks.
        BrokenExecutor: a worker died; finished and saved members are kept, and the same call continues.
    """
    import cloudpickle

    # without members and schedules
    task = dataclasses.replace(work), [list(places) for places in batches], jnp.result_type(float) == jnp.float64
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
            interrupts.end(f"with {len(running)} of {len(batches)} batches left")
            time.sleep(_POLL)
            for future in [one for one in running if one.done()]:
                places = running.pop(future)
                _check_end(future, places, work, kept)
                ran += len(places)
                done = (len(batches) - len(running)) * work.server_steps
                if reporter is not None:
                    reporter.update(done, ran * work.server_steps / (time.perf_counter() - begun), {})
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
        warnings.warn(f"not finished {where}: {first}; the same call runs it again", stacklevel=5)


@functools.lru_cache(maxsize=1)
def _work(folder: str, written: int) -> tuple[Work, list[list[int]], bool]:
    """Reads the tasks of a folder: the sweep, the members of each batch, and if it has 64 bits; `written`: its time."""
    return pickle.loads((pathlib.Path(folder) / _WORK).read_bytes())


def process_pool(workers: int) -> Callable[[], ProcessPoolExecutor]:
    """Returns a function that makes a pool of processes, for `sweep(executor=...)`.

    Every worker gets one NVIDIA GPU (`CUDA_VISIBLE_DEVICES`). If there are more workers than GPUs, those of one GPU
    reserve none of its memory in advance. Without GPUs, every worker gets a share of the cores. Workers import the
    script again, so its main part has to stand below `if __name__ == "__main__":`.

    Args:
        workers: number of processes.

    Raises:
        ValueError, TypeError: this is not a number of at least 1.
    """
    check_whole("process_pool", "workers", workers)

    def make() -> ProcessPoolExecutor:
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        context = multiprocessing.get_context("spawn")  # a fork of JAX's threads can deadlock
        number = context.Value("i", 0)
        return ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(number, workers, gpus()))

    return make


def dask_executor(address: str) -> Any:
    """Returns the executor of a Dask cluster.

    Args:
        address: address of its scheduler, e.g. tcp://10.0.0.1:8786.

    Raises:
        ValueError: there is no scheduler at the address.
    """
    distributed = required("distributed", "dask", "a sweep on a Dask cluster")
    try:
        return distributed.Client(address, timeout=_PATIENCE).get_executor(pure=False)
    except (OSError, TimeoutError, ValueError, TypeError) as error:
        raise UserError(f"there is no Dask scheduler at {address!r}: {str(error)[:200]}") from error


def slurm_executor(parameters: str, logs: pathlib.Path) -> Any:
    """Returns an executor that submits each batch as a Slurm job, by submitit.

    Args:
        parameters: parameters of submitit's `AutoExecutor` or of sbatch, e.g.
            "partition=gpu,gpus_per_node=1,timeout_min=240"; "cluster=local" runs the jobs on this machine.
        logs: folder for the output of the jobs.

    Raises:
        ValueError: the parameters are invalid, or Slurm is not installed.
    """
    submitit = required("submitit", "slurm", "a sweep by Slurm")
    pairs = [part.partition("=") for part in parameters.split(",")]
    if not all(name and equals and value for name, equals, value in pairs):
        raise UserError(f'slurm parameters are written like "partition=gpu,timeout_min=240", got {parameters!r}')
    given: dict[str, Any] = {name.strip(): int(value) if value.isdigit() else value for name, _, value in pairs}
    cluster = given.pop("cluster", "slurm")
    named = {name if name in _GENERAL else f"slurm_{name.removeprefix('slurm_')}": given[name] for name in given}
    try:
        executor = submitit.AutoExecutor(folder=logs, cluster=cluster)
        executor.update_parameters(**(named if cluster == "slurm" else given))
    except (RuntimeError, NameError, ValueError) as error:  # the types that submitit raises
        raise UserError(f"slurm={parameters!r}: {error}") from error
    return executor


def gpus() -> list[str]:
    """Returns the names of the visible NVIDIA GPUs without JAX, which would reserve their memory."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in visible.split(",") if name]
    return [str(number) for number, _ in enumerate(pathlib.Path("/proc/driver/nvidia/gpus").glob("*"))]


def _begin(number: Any, workers: int, devices: list[str]) -> None:
    """Assigns devices and cores to a new worker, before JAX initialises its backends.

    Args:
        number: shared counter of started workers.
        workers: number of workers.
        devices: names of the GPUs.
    """
    with number.get_lock():
        worker = number.value % workers
        number.value += 1
    if devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices[worker % len(devices)]
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "true" if workers <= len(devices) else "false"
    elif hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[worker % len(cores) :: workers])
