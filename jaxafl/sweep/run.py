"""Sweeps: one simulation under many seeds and options, in as few programs as possible."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxafl import results
from jaxafl.callbacks.base import Callback, check_callbacks
from jaxafl.callbacks.checkpoint import Checkpoint
from jaxafl.callbacks.hooks import Reporting, Telling
from jaxafl.callbacks.identity import identity
from jaxafl.callbacks.interrupts import Interrupts
from jaxafl.callbacks.progress import Reporter, reporter_of
from jaxafl.callbacks.watch import watched
from jaxafl.clock import Schedule
from jaxafl.device import slices_are_faster
from jaxafl.engine.execution import Execution
from jaxafl.engine.lockstep import lockstep
from jaxafl.engine.online import online
from jaxafl.engine.planned import planned
from jaxafl.engine.problem import Observe, Recording, Speed
from jaxafl.engine.state import example_batch
from jaxafl.options import check_whole, user_errors
from jaxafl.simulation import Simulation, evaluation_interval
from jaxafl.sweep.assemble import grid, labels
from jaxafl.sweep.axes import Axes, axis_values, is_static_path, replace_at
from jaxafl.sweep.folder import SweepFolder

if TYPE_CHECKING:  # xarray takes a third of a second to import, so it is when a result is made
    import xarray as xr

# Parameters up to which members that share a plan train faster together than one after another on a CPU: eight members
# together take 0.65 to 0.75 of the time at 8,000 to 26,000, 0.95 at 51,000, 1.1 at 102,000, 1.45 at 582,000.
_TOGETHER = 50_000


@dataclasses.dataclass(eq=False)
class _Member:
    """One combination of values: axis -> the index of its value, the same in words, its simulation and its seed."""

    position: dict[str, int]
    where: str
    simulation: Simulation
    seed: int
    schedule: Schedule | None = None  # one object for members that share it; none where training makes it

    def labels(self, named: dict[str, list[Any]]) -> dict[str, Any]:
        """axis -> the label of its value."""
        return {name: named[name][at] for name, at in self.position.items()}

    @property
    def timing(self) -> tuple[int, ...]:
        """The position along the axes on which schedules depend within a program."""
        return tuple(at for name, at in self.position.items() if name == "seed" or name.startswith("clock"))


def sweep(
    simulation: Simulation,
    axes: Mapping[str, Iterable[Any]],
    server_steps: int,
    *,
    eval_every: int | None = None,
    seed: int = 0,
    together: int | None = None,
    lanes: int | None = None,
    chunk: int | None = None,
    observe: Observe | None = None,
    diagnostics: str | Sequence[str] = (),
    progress: bool | Reporter = False,
    save: str | None = None,
    deterministic: bool = False,
    callbacks: Sequence[Callback] | Callback = (),
    folder: str | os.PathLike[str] | None = None,
    checkpoint_every: int | str = "30s",
    keep: int = 2,
) -> xr.Dataset:
    """Runs a simulation for every combination of values.

    Numbers (learning rates, λ, durations, seeds) are arguments of the compiled program: it is compiled once. Options
    that fix shapes or control flow (a buffer size, a mode) compile once per value. Members that differ in server or
    client numbers only share a schedule, a plan and their mini-batches, and advance under one `vmap`; members with
    schedules of their own (seeds, clock numbers) advance in lockstep on an accelerator. On a CPU the latter, and the
    former where the model has more than 50,000 parameters, advance one after another in the same program, which is
    faster there. The numbers are those of separate runs.

    Args:
        simulation: what is varied.
        axes: path -> values. A path is `"seed"`, or an option of a part of the simulation: `"server.lam"`,
            `"client.learning_rate"`, `"clock.buffer"`, `"clock.durations.low"`, or a whole part: `"data"`, `"model"`,
            `"server"`, `"clock"`, `"client"` (whose dimension is called `local_training`).
        server_steps: T.
        eval_every: server steps between evaluations.
        seed: of all members, unless `"seed"` is an axis.
        together: the most members that advance together (memory grows with it); `None`: as many as is fast, see above.
        lanes, chunk: as in `Simulation.run`; members in lockstep advance all lanes together.
        observe, diagnostics: as in `Simulation.run`.
        progress: as in `Simulation.run`.
        save: path of a NetCDF file to write; checked before the first run.
        deterministic: as in `Simulation.run`.
        callbacks: as in `Simulation.run`; every member has copies of its own.
        folder: where finished members are kept, which the same call with the same folder does not run again, and the
            checkpoints of those under way, which go on where they stopped.
        checkpoint_every, keep: as in `Simulation.run`.

    Returns:
        A dataset as `Simulation.run`'s with one leading dimension per axis, named by its path. What differs between
        members in the attributes of a run (`failed_step`, `runs_never_consumed` ...) is a variable; the options of a
        part that is swept over are called `server_options`, `client_options` ..., as JSON. A member whose parameters
        stop being finite ends there; the others go on.

    Raises:
        ValueError, TypeError: an axis or a value cannot work; raised before the first run.
    """
    path = results.check_path(save)
    begun = time.perf_counter()
    values = axis_values(simulation, axes)
    named = {name: labels(column) for name, column in values.items()}
    members = _members(simulation, values, named, seed)
    every = evaluation_interval(eval_every, server_steps)
    recording = simulation.recording(observe, diagnostics)
    if together is not None:
        check_whole("sweep", "together", together)
    speed, told = Speed(lanes, chunk, deterministic), check_callbacks(callbacks)
    kept = None
    if folder is not None:
        how = dict(seed=seed, server_steps=server_steps, eval_every=every, together=together)
        how |= dict(lanes=lanes, chunk=chunk, deterministic=deterministic)
        own = identity(simulation.summary(), axes=values, observe=observe, diagnostics=recording.diagnostics, **how)
        kept = SweepFolder(folder, checkpoint_every, keep, own)
    static = [name for name in values if name != "seed" and is_static_path(simulation, name)]
    programs = _grouped(members, lambda member: _program(member, static))
    sharing = [_grouped(group, lambda member: member.timing) for group in programs]
    # before anything is trained: a recording that runs out for one member must not cost the results of the others
    for group in itertools.chain.from_iterable(sharing):
        _add_schedule(group, server_steps)
    batches = [batch for groups in sharing for batch in _batches(groups, together)]
    ended: dict[_Member, xr.Dataset] = {}

    def assembled() -> xr.Dataset:
        """Members that have not run have no server steps."""
        import xarray as xr

        made = next(iter(ended.values()))
        blank = made.isel({name: slice(0) for name in ("step", "evaluation", "version") if name in made.dims})
        for name, values in blank.data_vars.items():
            blank[name] = xr.full_like(values, np.nan if values.dtype.kind == "f" else 0)
        blank.attrs = {name: made.attrs[name] for name in ("jaxafl_version", "precision", "backend", "eval_every")}
        found = []
        for member in members:
            own = results.options_of_parts(member.simulation.summary()).items()
            options = {name: results.flat(value) for name, value in own}
            found.append(ended[member].copy() if member in ended else blank.assign_attrs(options))
        dataset = grid(found, named)
        if kept and kept.changed:
            dataset.attrs["resumed"] = kept.changed
        dataset.attrs["sweep"] = json.dumps(named, default=str)
        dataset.attrs["wall_seconds"] = round(time.perf_counter() - begun, 3)
        return dataset

    try:
        about = f"sweep of {len(members)}", server_steps * len(batches)
        with Interrupts() as interrupts, reporter_of(progress, *about) as reporter:
            for index, batch in enumerate(batches):
                interrupts.end(f"before batch {index} of {len(batches)}")
                reporting = Reporting(reporter, index * server_steps)
                places = [members.index(member) for member in batch]
                found = kept.finished(places) if kept else None
                if found is None:
                    runs = [one.simulation.as_run(one.seed, server_steps, one.labels(named)) for one in batch if told]
                    telling = Telling(told, runs, several=True)
                    checkpoint = kept.checkpoint(places, server_steps) if kept else None
                    started = time.perf_counter()
                    execution = _execution(batch, every, speed, recording, checkpoint)
                    finish = [functools.partial(one.simulation.result, seed=one.seed) for one in batch]
                    watching = reporting, telling, checkpoint, interrupts
                    found = watched(execution, server_steps, every, started, *watching, finish)
                    if kept:
                        kept.keep(places, found)
                ended |= zip(batch, found, strict=True)
    except BaseException as error:
        if partial := getattr(error, "datasets", None):
            ended |= zip(batch, partial, strict=True)
        if ended:
            error.dataset = assembled()  # type: ignore[attr-defined]
        raise
    dataset = assembled()
    if path is not None:
        results.save(dataset, path)
    return dataset


def _members(simulation: Simulation, values: Axes, named: Axes, default_seed: int) -> list[_Member]:
    """All combinations, checked."""
    members = []
    for indices in np.ndindex(*map(len, values.values())):
        position = dict(zip(values, indices, strict=True))
        where = f"in the sweep at {', '.join(f'{name}={named[name][at]}' for name, at in position.items())}"
        chosen = {name: values[name][at] for name, at in position.items()}
        seed = check_whole("sweep", "seed", chosen.pop("seed", default_seed), least=0, most=2**64 - 1)
        variant = simulation
        for name, value in chosen.items():
            variant = replace_at(variant, name, value)
        with user_errors(where):
            variant.check()
        members.append(_Member(position, where, variant, seed))
    return members


def _grouped(members: list[_Member], key: Callable[[_Member], Any]) -> list[list[_Member]]:
    groups: dict[Any, list[_Member]] = {}
    for member in members:
        groups.setdefault(key(member), []).append(member)
    return list(groups.values())


def _program(member: _Member, static: list[str]) -> tuple[Any, ...]:
    """What the members of one program have in common: the values of their static axes, and the form of their numbers
    (an option that is `None` for some members, or an array of another shape)."""
    leaves, structure = jax.tree.flatten((member.simulation.client, member.simulation.server))
    form = tuple((np.shape(leaf), np.asarray(leaf).dtype.kind) for leaf in leaves)
    return (*(member.position[name] for name in static), structure, form)


def _add_schedule(sharing: list[_Member], server_steps: int) -> None:
    """The schedule that members share, where training does not make it."""
    first = sharing[0]
    if not first.simulation.clock_sees_training:
        with user_errors(first.where):
            schedule = first.simulation.compute_schedule(server_steps, first.seed)
        for member in sharing:
            member.schedule = schedule


def _batches(sharing: list[list[_Member]], together: int | None) -> list[list[_Member]]:
    """Members of one program, in groups that share a schedule, as members that advance together."""
    first = sharing[0][0].simulation
    if first.clock_sees_training or (together is None and slices_are_faster() and _num_parameters(first) > _TOGETHER):
        together = 1
    in_lockstep = not (slices_are_faster() or first.server.needs.client_rows or first.server.needs.client_models)
    if in_lockstep and all(len(members) == 1 for members in sharing):
        sharing = [[member for members in sharing for member in members]]
    size = together or max(map(len, sharing))
    return [members[at : at + size] for members in sharing for at in range(0, len(members), size)]


def _num_parameters(simulation: Simulation) -> int:
    params, _ = jax.eval_shape(simulation.model.init, jax.random.key(0), example_batch(simulation.data))
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def _execution(
    batch: list[_Member], every: int, speed: Speed, recording: Recording, checkpoint: Checkpoint | None
) -> Execution:
    """The program of members that advance together, before its first server step."""
    problems = [member.simulation.problem(member.seed, recording) for member in batch]
    schedules = [member.schedule for member in batch if member.schedule is not None]
    origin = checkpoint.start() if checkpoint else None
    if not schedules:
        return online(problems[0], every, speed)
    if all(schedule is schedules[0] for schedule in schedules):
        return planned(problems, schedules[0], every, speed, origin)
    return lockstep(problems, schedules, every, speed)
