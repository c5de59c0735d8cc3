"""Sweeps: a simulation with many seeds and options, in as few programs as possible."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxafl import results
from jaxafl.callbacks.base import Callback
from jaxafl.callbacks.hooks import SharedOptions, Watch
from jaxafl.callbacks.progress import Reporter, reporter_of
from jaxafl.device.hardware import host_bytes
from jaxafl.engine.problem import Observe
from jaxafl.options import UserError, named, shown
from jaxafl.results.failures import warned
from jaxafl.simulation import Simulation
from jaxafl.sweep.assemble import assembled
from jaxafl.sweep.folder import SweepFolder, gather
from jaxafl.sweep.members import Work

if TYPE_CHECKING:  # xarray takes a third of a second to import, so it is when a result is made
    import xarray as xr


class SweepOptions(SharedOptions, total=False):
    """Options that `sweep` shares with `compare` and `tune`; `sweep` documents them."""

    together: int | None
    executor: Any
    part: tuple[int, int] | None


@named
def sweep(
    simulation: Simulation | Sequence[Simulation] | Mapping[str, Simulation],
    axes: Mapping[Any, Iterable[Any]],
    server_steps: int | None = None,
    *,
    until: Mapping[str, float] | None = None,
    eval_every: int | None = None,
    seed: int = 0,
    together: int | None = None,
    lanes: int | None = None,
    chunk: int | None = None,
    observe: Observe | None = None,
    diagnostics: str | Sequence[str] = (),
    metrics: Mapping[str, Any] | None = None,
    progress: bool | str | Reporter = False,
    save: str | None = None,
    deterministic: bool = False,
    callbacks: Sequence[Callback] | Callback = (),
    folder: str | os.PathLike[str] | None = None,
    checkpoint_every: int | str = "30s",
    devices: Any = None,
    executor: Any = None,
    part: tuple[int, int] | None = None,
) -> xr.Dataset:
    """Runs a simulation for every combination of values.

    Numbers (learning rates, λ, durations, seeds) are arguments of the compiled program, so it is compiled once. Options
    that fix shapes or control flow (a buffer size, a mode) compile once per value. Members that differ only in numbers
    of the server or the client share schedule, plan and mini-batches, and are batched under one `vmap`. Members with
    different schedules (seeds, clock numbers) advance in lockstep on an accelerator, if no two members share a
    schedule, the sweep has no exact limits, and the server has no rows or models per client. Otherwise members are
    batched only if they share a schedule, and a member whose schedule depends on training runs alone. On a CPU a batch
    has at most four members, or more of small models or if there would be over eight batches, and models of more than
    50,000 parameters are not batched. Its batches run concurrently, one per core (see `devices`). Each member has the
    results of a separate run, but for the rounding of batched products.

    Args:
        simulation: the simulation to vary. A list or mapping of simulations becomes the axis `simulation`.
        axes: path -> values. A path is `"seed"`, an option of a part, such as `"server.base_rate"`,
            `"client.learning_rate"`, `"clock.buffer"` or `"clock.durations.low"`, or a part: `"data"`, `"model"`,
            `"server"`, `"clock"`, `"client"`, `"attack"`. A tuple of paths with rows of values is one dimension:
            `together`, or `sample` for `jaxafl.sample`.
        server_steps: T; optional with an exact limit (time, updates, bytes or ε), unless a schedule depends on the
            training.
        until: limits of each member, as in `Simulation.run`.
        eval_every: server steps between evaluations, 20 by default.
        seed: seed of all members, unless `"seed"` is an axis.
        save: path of a NetCDF file to write, as in `Simulation.run`; checked before the first run.
        callbacks: as in `Simulation.run`; every member gets copies.
        folder: the folder for finished members and for checkpoints of the others. The same call resumes from it.
        together: most members of a batch per device; memory grows with it. `None` chooses as described above.
        lanes, chunk: as in `Simulation.run`; members in lockstep advance all lanes at once.
        observe, diagnostics, metrics: as in `Simulation.run`.
        progress: as in `Simulation.run`.
        deterministic: as in `Simulation.run`.
        checkpoint_every: as in `Simulation.run`.
        devices: devices of this process: `"all"`, a number or a list; `None` takes JAX's default device. They run
            batches concurrently. A CPU with `None` or `"all"` runs one batch per core
            while they fit a quarter of its memory; with `devices=1` one after another.
        executor: runs the batches in other processes: an object whose `submit(function, *args)` returns an object with
            `done()` and `result()`, or a function that makes one. Examples are `jaxafl.process_pool(4)`, Dask's
            `client.get_executor()` and submitit's `AutoExecutor`. Needs a `folder` on a shared file system. Members of
            a batch that ends with an error have missing values, and `member_error` holds the error; the same call
            resumes them.
        part: `(i, n)`: runs only the batches i, i + n, i + 2n ... (0 <= i < n), for n jobs that share a `folder`. Every
            job returns what is finished, as `jaxafl.gather(folder)` does.

    Returns:
        A dataset as from `Simulation.run`, with one leading dimension per axis, named by its path. Attributes of a run
        that differ between members (`failed_step`, `runs_never_consumed` ...) are variables; options of a swept part
        are `server_options`, `client_options` ..., as JSON. A member whose parameters stop being finite ends early; the
        others continue.

    Raises:
        ValueError, TypeError: an axis or a value cannot work; raised before the first run.
        OSError: `save` or `folder` cannot be written.
        MemoryError: a batch does not fit.
        RuntimeError: an executor is broken (`BrokenExecutor`), because a worker has died. The same call continues.

    An exception in this process, such as `jaxafl.callbacks.Interrupted`, carries the results so far as `dataset`.

    Examples:
        >>> import jaxafl as afl
        >>> problem = afl.theory.quadratic(clients=4)
        >>> client = afl.Client(learning_rate=0.1, steps=2, batch_size=None)
        >>> clock = afl.clock.free_running(concurrency=2, durations=afl.clock.constant(1.0))
        >>> sim = afl.Simulation(problem.data, problem.model, client, afl.server.fedasync(), clock)
        >>> grid = afl.sweep(sim, {"server.alpha": [0.3, 0.6], "seed": range(3)}, server_steps=10, eval_every=5)
        >>> dict(grid.loss.sizes)
        {'server.alpha': 2, 'seed': 3, 'evaluation': 3}
    """
    options: Any = dict(locals())
    path = results.check_path(save, results.BEGINS)
    dataset = completed(Work(**options), **options)
    if path is not None:
        results.save(dataset, path)
    return warned(dataset)


def completed(
    work: Work,
    folder: Any = None,
    *,
    checkpoint_every: int | str = "30s",
    progress: bool | str | Reporter = False,
    devices: Any = None,
    executor: Any = None,
    part: tuple[int, int] | None = None,
    name: str = "",
    **others: Any,
) -> xr.Dataset:
    """Runs the members of a sweep that the folder does not hold, and returns the result.

    Args:
        work: the sweep.
        folder: its folder, if it has one.
        checkpoint_every, progress, devices, executor, part: as in `sweep`.
        name: what `progress=True` shows before the name of the sweep.
        **others: options of `sweep` that `work` has taken.
    """
    begun = time.perf_counter()
    chosen = work.speed.devices
    steps = work.server_steps
    kept = None
    if executor is not None and folder is None:
        raise UserError("sweep(executor=...) needs a folder=..., which all workers see and leave their results in")
    if executor is not None and devices is not None:
        raise UserError(f"sweep(executor=...) leaves devices to the workers: leave devices={shown(devices)} out")
    first_batch, jobs = part or (0, 1)
    if part is not None and (folder is None or not 0 <= first_batch < jobs):
        raise UserError(f"sweep: part={shown(part)} needs a folder that all parts share, and (i, n) with 0 <= i < n")
    if folder is not None:
        kept = SweepFolder.begun(folder, work.identity, checkpoint_every, work.dims, steps)
    batches = work.batches(max(1, len(chosen)))[first_batch::jobs]
    left = [place for places in batches for place in places if not (kept and kept.are_finished(places))]
    if executor is None:  # an invalid schedule must raise before the first run, not lose the results of other members
        for place in left:
            work.schedule_of(place)
    if progress is True and name:
        progress = name
    reporter = reporter_of(progress, f"sweep of {len(work.members)}", steps * len(batches))
    with Watch(reporter).recorded() as watch:
        if executor is not None and kept is not None:
            from jaxafl.sweep.executors.tasks import run_in

            run_in(executor, work, batches, kept, watch)
        else:
            count = at_once(devices, chosen, work.bytes(left))
            ended = _run_batches(work, batches, kept, count, watch)
    if kept is not None and (executor is not None or part is not None):
        dataset = gather(kept.path)
    else:
        dataset = assembled(work.dims, ended)
    if kept and kept.changed:
        dataset.attrs["resumed"] = kept.changed
    dataset.attrs["wall_seconds"] = round(time.perf_counter() - begun, 3)
    return dataset


def _run_batches(
    work: Work, batches: Sequence[Sequence[int]], kept: SweepFolder | None, count: int, watch: Watch
) -> dict[int, xr.Dataset]:
    """Runs batches in this process, `count` at once, and returns index of a member -> its result.

    An exception carries the results so far as its attribute `dataset`.
    """
    ended: dict[int, xr.Dataset] = {}

    def run(number: int, places: Sequence[int]) -> None:
        watch.end(f"before batch {number} of {len(batches)}")
        try:
            ended.update(zip(places, work.completed(places, kept, watch), strict=True))
        except BaseException as error:
            ended.update(zip(places, getattr(error, "datasets", ()), strict=False))
            raise

    devices = work.speed.devices
    pool = threads(devices, count) if count > 1 else None
    try:
        if pool is not None:
            for future in as_completed([pool.submit(run, *batch) for batch in enumerate(batches)]):
                future.result()
        else:
            with jax.default_device(devices[0]) if devices else contextlib.nullcontext():
                for number, places in enumerate(batches):
                    run(number, places)
    except BaseException as error:
        watch.noticed = watch.noticed or signal.SIGINT  # ends the batches on other devices
        if pool is not None:
            pool.shutdown(cancel_futures=True)
        if ended:
            error.dataset = assembled(work.dims, ended)  # type: ignore[attr-defined]
        raise
    return ended


def at_once(asked: Any, devices: Sequence[Any], needed: Iterable[int]) -> int:
    """Returns the number of concurrent batches: one per device, on a CPU without a choice of devices one per core.

    The operations of a small program depend on each other and leave cores idle. Memory limits the number, too.

    Args:
        asked: the option `devices` of a sweep.
        devices: the devices of that option.
        needed: for each program, bytes that one of its members keeps.
    """
    if asked not in (None, "all") or jax.default_backend() != "cpu":
        return max(1, len(devices))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    fitting = host_bytes() // (4 * max([*needed, 1]))
    return max(1, len(devices), min(cores, fitting))


def threads(devices: Sequence[Any], count: int) -> ThreadPoolExecutor:
    """Returns an executor of `count` threads, each of which has one of the devices."""
    # JAX's contexts are per thread: a thread would not see those of the caller
    wide = jnp.result_type(float) == jnp.float64
    default = jax.config.jax_default_device  # type: ignore[attr-defined]
    precision = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    free: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for place in range(count):
        free.put(devices[place % len(devices)] if devices else default)

    def begin() -> None:
        contexts = jax.enable_x64(wide), jax.default_matmul_precision(precision), jax.default_device(free.get())
        for context in contexts:
            context.__enter__()

    return ThreadPoolExecutor(count, initializer=begin)
