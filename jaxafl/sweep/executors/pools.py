"""Executors for `sweep(executor=...)`: processes of this machine, a Dask cluster, Slurm."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jaxafl.options import UserError, check_whole, required

if TYPE_CHECKING:  # importing it here would slow down `import jaxafl`
    from concurrent.futures import ProcessPoolExecutor

_PATIENCE = 10  # seconds to wait for a scheduler
_GENERAL = ("name", "nodes", "tasks_per_node", "cpus_per_task", "gpus_per_node", "mem_gb", "timeout_min")


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
