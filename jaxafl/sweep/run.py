"""Sweeps: one simulation under many seeds and options, in as few programs as possible."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, as_completed
from typing import TYPE_CHECKING, Any, TypedDict

import jax

from jaxafl import results
from jaxafl.callbacks.base import Callback, check_callbacks, check_watchers, renew
from jaxafl.callbacks.hooks import Reporting
from jaxafl.callbacks.interrupts import Interrupts
from jaxafl.callbacks.limits import limits_of
from jaxafl.callbacks.progress import Reporter, reporter_of
from jaxafl.device import devices_of
from jaxafl.engine.problem import Observe, Speed
from jaxafl.engine.validate import evaluation_interval
from jaxafl.options import check_whole, named
from jaxafl.results.failures import warned
from jaxafl.simulation import Simulation
from jaxafl.sweep import pods
from jaxafl.sweep.assemble import assembled
from jaxafl.sweep.axes import axes_of
from jaxafl.sweep.devices import Devices, at_once
from jaxafl.sweep.executors import Elsewhere, check_executor
from jaxafl.sweep.folder import SweepFolder, check_apart
from jaxafl.sweep.gather import gather
from jaxafl.sweep.work import Work

if TYPE_CHECKING:  # xarray takes a third of a second to import, so it is when a result is made
    import xarray as xr


class SweepOptions(TypedDict, total=False):
    """The options that `sweep` shares with what is made of sweeps, see there."""

    together: int | None
    lanes: int | None
    chunk: int | None
    observe: Observe | None
    diagnostics: str | Sequence[str]
    progress: bool | str | Reporter
    deterministic: bool
    checkpoint_every: int | str
    keep: int
    devices: Any
    executor: Any
    retries: int


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
    progress: bool | str | Reporter = False,
    save: str | None = None,
    deterministic: bool = False,
    callbacks: Sequence[Callback] | Callback = (),
    folder: str | os.PathLike[str] | None = None,
    checkpoint_every: int | str = "30s",
    keep: int = 2,
    devices: Any = None,
    executor: Any = None,
    retries: int = 2,
) -> xr.Dataset:
    """Runs a simulation for every combination of values.

    Numbers (learning rates, λ, durations, seeds) are arguments of the compiled program: it is compiled once. Options
    that fix shapes or control flow (a buffer size, a mode) compile once per value. Members that differ in server or
    client numbers only share a schedule, a plan and their mini-batches, and advance under one `vmap`; members with
    schedules of their own (seeds, clock numbers) advance in lockstep on an accelerator. On a CPU the former are at most
    four, and the latter, and models of more than 50,000 parameters, advance apart in the same program; there as many
    batches advance at once as there are cores (and memory for, see `devices`). The numbers are those of separate runs.

    Args:
        simulation: what is varied; or several, a list or name -> simulation, which are an axis `simulation`.
        axes: path -> values. A path is `"seed"`, or an option of a part of the simulation: `"server.lam"`,
            `"client.learning_rate"`, `"clock.buffer"`, `"clock.durations.low"`, or a whole part: `"data"`, `"model"`,
            `"server"`, `"clock"`, `"client"` (whose dimension is called `local_training`). Several paths as one key,
            with rows of values, vary together along a dimension `together`, or `sample` of `jaxafl.sample`.
        server_steps: T; can be left out where a limit of time, updates or bytes ends all members.
        until: as in `Simulation.run`, of every member by itself.
        eval_every: server steps between evaluations.
        seed: of all members, unless `"seed"` is an axis.
        together: the most members that advance together on a device (memory grows with it); `None`: as many as is
            fast, see above.
        lanes, chunk: as in `Simulation.run`; members in lockstep advance all lanes together.
        observe, diagnostics: as in `Simulation.run`.
        progress: as in `Simulation.run`.
        save: path of a NetCDF file to write; checked before the first run.
        deterministic: as in `Simulation.run`.
        callbacks: as in `Simulation.run`; every member has copies of its own.
        folder: where finished members are kept, which the same call with the same folder does not run again, and the
            checkpoints of those under way, which go on where they stopped.
        checkpoint_every, keep: as in `Simulation.run`.
        devices: those of this process that work at once, `"all"`, a number or a list: they share the members of a
            batch, or, where members advance apart, each takes one after another; `None`: the one that JAX would use. A
            CPU then, and with `"all"`, runs a batch in each of as many threads as it has cores, as long as what they
            keep is a quarter of its memory; with `devices=1` one batch after another. Several processes that make the
            same call under `jax.distributed` share the batches, each on devices of its own; the first one writes
            `save`.
        executor: who runs the batches in other processes: an object whose `submit(function, *args)` answers with
            something that has `done()` and `result()`, or a function that makes one (a process pool which a dead worker
            broke is then made anew): `jaxafl.process_pool(4)`, Dask's `client.get_executor()`, submitit's
            `AutoExecutor`. Needs a `folder` that all of them see. A batch whose worker died is run again, and goes on
            from its checkpoint.
        retries: how many times a batch that ends with an error is run again by an executor; after that its members are
            missing values in the result, whose variable `member_error` says why.

    Returns:
        A dataset as `Simulation.run`'s with one leading dimension per axis, named by its path. What differs between
        members in the attributes of a run (`failed_step`, `runs_never_consumed` ...) is a variable; the options of a
        part that is swept over are called `server_options`, `client_options` ..., as JSON. A member whose parameters
        stop being finite ends there; the others go on.

    Raises:
        ValueError, TypeError: an axis or a value cannot work; raised before the first run.

    Examples:
        >>> import jaxafl as afl
        >>> problem = afl.theory.quadratic(clients=4)
        >>> client = afl.Client(learning_rate=0.1, steps=2, batch_size=None)
        >>> clock = afl.clock.free_running(concurrency=2, durations=afl.clock.constant(1.0))
        >>> sim = afl.Simulation(problem.data, problem.model, client, afl.server.fedasync(), clock)
        >>> grid = afl.sweep(sim, {"server.alpha": [0.3, 0.6], "seed": range(3)}, server_steps=10, eval_every=5)
        >>> dict(grid.loss.sizes)
        {'server.alpha': 2, 'seed': 3, 'evaluation': 3}
        >>> grid.loss.mean("seed").dims
        ('server.alpha', 'evaluation')
    """
    path = results.check_result_path(save)
    check_apart(folder, path)
    begun = time.perf_counter()
    first, varied = axes_of(simulation, axes)
    recording = first.recording(observe, diagnostics)
    if together is not None:
        check_whole("sweep", "together", together)
    limits, there = limits_of("sweep", until), devices_of(devices)
    check_executor(executor, folder, devices, retries)
    speed, told = Speed(lanes, chunk, deterministic, tuple(there)), [*check_callbacks(callbacks), *limits.stops]
    given = server_steps if server_steps is None else check_whole("sweep", "server_steps", server_steps)
    asked = Work(
        first, varied, given or 0, 0, seed, together, speed, recording, told, limits.exact, given, dict(until or {})
    )
    work = asked.ending(lambda steps: evaluation_interval(eval_every, steps))
    server_steps = work.server_steps
    if told:
        models = {(id(one.simulation.model), id(one.simulation.data)): one for one in work.members}
        check_watchers(told, [one.simulation.as_run(one.seed, server_steps, one.labels) for one in models.values()])
    if jax.process_index() == 0:
        renew(told, folder)
    kept = None
    if folder is not None:
        how = folder, work.identity, checkpoint_every, keep, work.dims, server_steps
        kept = pods.one_by_one(lambda: SweepFolder.begun(*how))
    batches = work.schedules.batches(together, max(1, len(there)), jax.process_count())
    if executor is None:  # a recording that runs out for one member must not cost the results of the others
        for place in range(len(work.members)):
            work.schedules.of(place)
    about = f"sweep of {len(work.members)}", server_steps * len(batches)
    with Interrupts() as interrupts, reporter_of(progress, *about) as reporter:
        if executor is None:
            with pods.failing():
                count = at_once(devices, there, work.schedules.bytes())
                ended = _run_here(work, pods.dealt(batches), kept, Devices(there, count), reporter, interrupts)
            parts = pods.exchanged(ended)
            dataset = assembled(work.members, work.dims, {place: one for part in parts for place, one in part.items()})
        else:
            assert kept is not None  # checked
            Elsewhere(work, batches, kept, executor, retries).run(reporter, interrupts)
            dataset = gather(kept.path)
    if kept and kept.changed:
        dataset.attrs["resumed"] = kept.changed
    dataset.attrs["wall_seconds"] = round(time.perf_counter() - begun, 3)
    if path is not None and jax.process_index() == 0:
        results.keep(dataset, path)
    return warned(dataset)


def _run_here(
    work: Work,
    batches: Sequence[Sequence[int]],
    kept: SweepFolder | None,
    devices: Devices,
    reporter: Reporter,
    interrupts: Interrupts,
) -> dict[int, xr.Dataset]:
    """Runs batches in this process: place -> result. Whatever ends them before holds what was made as `dataset`."""
    ended: dict[int, xr.Dataset] = {}
    every = devices if len(work.speed.devices) < 2 else Devices([])  # for members that all devices share
    made: dict[int, tuple[int, float]] = {}
    futures: dict[Future[Any], Sequence[int]] = {}

    def run(number: int, places: Sequence[int]) -> None:
        interrupts.end(f"before batch {number} of {len(batches)}")
        found = kept.finished(places) if kept else None
        if found is None:
            checkpoint = kept.checkpoint(places) if kept else None
            try:
                found = work.run(places, checkpoint, Reporting(reporter, made, number), interrupts)
            except BaseException as error:
                ended.update(zip(places, getattr(error, "datasets", ()), strict=False))
                raise
            if kept:
                kept.keep(places, found)
        ended.update(zip(places, found, strict=True))

    try:
        for number, places in enumerate(batches):
            futures[(devices if len(places) == 1 else every).submit(run, number, places)] = places
        for future in as_completed(futures):
            future.result()
    except BaseException as error:
        interrupts.noticed = interrupts.noticed or signal.SIGINT  # ends the batches on other devices
        devices.close()
        if ended:
            error.dataset = assembled(work.members, work.dims, ended)  # type: ignore[attr-defined]
        raise
    devices.close()
    return ended
