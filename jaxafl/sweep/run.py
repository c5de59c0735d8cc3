"""Sweeps: one simulation under many seeds and options, in as few programs as possible."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxafl import results
from jaxafl.clock import Schedule
from jaxafl.device import slices_are_faster
from jaxafl.engine.lockstep import lockstep
from jaxafl.engine.loop import Trained, run_to_end
from jaxafl.engine.online import online
from jaxafl.engine.planned import planned
from jaxafl.engine.problem import Observe, Recording, Speed
from jaxafl.engine.state import example_batch
from jaxafl.options import UserError, check_whole
from jaxafl.progress import Reporter, reporter_of
from jaxafl.simulation import Simulation, evaluation_interval
from jaxafl.sweep.assemble import grid, labels
from jaxafl.sweep.axes import axis_values, is_static_path, replace_at

if TYPE_CHECKING:  # xarray takes a third of a second to import, so it is when a result is made
    import xarray as xr

# Parameters up to which members that share a plan train faster together than one after another on a CPU: eight members
# together take 0.65 to 0.75 of the time at 8,000 to 26,000, 0.95 at 51,000, 1.1 at 102,000, 1.45 at 582,000.
_TOGETHER = 50_000


class _Member:
    """One combination of values: its place in the grid, its simulation and its seed."""

    def __init__(self, place: int, simulation: Simulation, seed: int) -> None:
        self.place, self.simulation, self.seed = place, simulation, seed
        self.schedule: Schedule | None = None  # one object for members that share it; none where training makes it


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
    members = _members(simulation, values, seed)
    every = evaluation_interval(eval_every, server_steps)
    recording = simulation.recording(observe, diagnostics)
    if together is not None:
        check_whole("sweep", "together", together)
    speed = Speed(lanes, chunk)
    groups = _programs(members, values)
    _add_schedules(groups, values, server_steps)
    batches = [batch for group in groups for batch in _batches(group, values, together)]
    total = server_steps * len(batches)
    ended: dict[int, xr.Dataset] = {}
    with reporter_of(progress, f"sweep of {len(members)}", total) as reporter:
        for index, batch in enumerate(batches):
            part = _Part(reporter, index * server_steps)
            for member, trained in zip(batch, _run(batch, server_steps, every, speed, recording, part), strict=True):
                ended[member.place] = member.simulation.result(trained, member.seed)
    dataset = grid([ended[place] for place in range(len(members))], values)
    dataset.attrs["sweep"] = json.dumps({name: labels(column) for name, column in values.items()}, default=str)
    dataset.attrs["wall_seconds"] = round(time.perf_counter() - begun, 3)
    if path is not None:
        results.save(dataset, path)
    return dataset


def _members(simulation: Simulation, values: dict[str, list[Any]], default_seed: int) -> list[_Member]:
    """All combinations, checked."""
    members = []
    for place, combination in enumerate(itertools.product(*values.values())):
        variant, seed = simulation, _seed(default_seed)
        for name, value in zip(values, combination, strict=True):
            if name == "seed":
                seed = _seed(value)
            else:
                variant = replace_at(variant, name, value)
        try:
            variant.check()
        except (ValueError, TypeError) as error:
            raise UserError(f"{error} ({_where(values, place)})") from error
        members.append(_Member(place, variant, seed))
    return members


def _where(values: dict[str, list[Any]], place: int) -> str:
    position = np.unravel_index(place, [len(column) for column in values.values()])
    chosen = (f"{name}={labels(column)[at]}" for (name, column), at in zip(values.items(), position, strict=True))
    return f"in the sweep at {', '.join(chosen)}"


def _add_schedules(groups: list[list[_Member]], values: dict[str, list[Any]], server_steps: int) -> None:
    """All schedules, before anything is trained: a recording that runs out for one member must not cost the results of
    the others."""
    for group in groups:
        if group[0].simulation.clock_sees_training:
            continue
        for members in _grouped(group, values, _own_schedule(values)):
            first = members[0]
            try:
                schedule = first.simulation.compute_schedule(server_steps, first.seed)
            except ValueError as error:
                raise UserError(f"{error} ({_where(values, first.place)})") from error
            for member in members:
                member.schedule = schedule


def _own_schedule(values: dict[str, list[Any]]) -> list[int]:
    """The axes along which schedules differ within a program."""
    return [index for index, name in enumerate(values) if name == "seed" or name.startswith("clock")]


def _programs(members: list[_Member], values: dict[str, list[Any]]) -> list[list[_Member]]:
    """Members grouped by the program that runs them: the values of their static axes, and the form of their numbers (an
    option that is `None` for some members, or an array of another shape)."""
    static = [
        index for index, name in enumerate(values) if name != "seed" and is_static_path(members[0].simulation, name)
    ]
    groups: dict[Any, list[_Member]] = {}
    for group in _grouped(members, values, static):
        for member in group:
            leaves, structure = jax.tree.flatten((member.simulation.client, member.simulation.server))
            form = tuple((np.shape(leaf), np.asarray(leaf).dtype.kind) for leaf in leaves)
            groups.setdefault((group[0].place, structure, form), []).append(member)
    return list(groups.values())


def _batches(group: list[_Member], values: dict[str, list[Any]], together: int | None) -> list[list[_Member]]:
    """Members of one program that advance together."""
    first = group[0].simulation
    if first.clock_sees_training:
        return [[member] for member in group]
    if together is None and slices_are_faster() and _num_parameters(first) > _TOGETHER:
        together = 1
    sharing = _grouped(group, values, _own_schedule(values))
    if slices_are_faster() or first.server.needs.client_rows or first.server.needs.client_models:
        return [part for members in sharing for part in _parts(members, together)]
    if all(len(members) == 1 for members in sharing):
        return _parts(group, together)
    return [part for members in sharing for part in _parts(members, together)]


def _num_parameters(simulation: Simulation) -> int:
    params, _ = jax.eval_shape(simulation.model.init, jax.random.key(0), example_batch(simulation.data))
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def _run(
    batch: list[_Member], server_steps: int, every: int, speed: Speed, recording: Recording, reporter: Reporter
) -> list[Trained]:
    begun = time.perf_counter()
    problems = [member.simulation.problem(member.seed, recording) for member in batch]
    schedules = [member.schedule for member in batch if member.schedule is not None]
    if not schedules:
        execution = online(problems[0], every, speed)
    elif all(schedule is schedules[0] for schedule in schedules):
        execution = planned(problems, schedules[0], every, speed)
    else:
        execution = lockstep(problems, schedules, every, speed)
    return run_to_end(execution, server_steps, every, reporter, begun)


class _Part:
    """The reporter of one batch of a sweep."""

    def __init__(self, whole: Reporter, offset: int) -> None:
        self.whole, self.offset = whole, offset

    def __enter__(self) -> _Part:
        return self

    def __exit__(self, *args: Any) -> None:
        return None

    def update(self, done: int, updates_per_second: float, metrics: dict[str, float]) -> None:
        self.whole.update(self.offset + done, updates_per_second, metrics)


def _grouped(members: list[_Member], values: dict[str, list[Any]], axes: list[int]) -> list[list[_Member]]:
    """Members with equal positions along some axes."""
    shape = [len(column) for column in values.values()]
    groups: dict[tuple[int, ...], list[_Member]] = {}
    for member in members:
        position = np.unravel_index(member.place, shape)
        groups.setdefault(tuple(int(position[axis]) for axis in axes), []).append(member)
    return list(groups.values())


def _parts(members: list[_Member], together: int | None) -> list[list[_Member]]:
    size = len(members) if together is None else together
    return [members[index : index + size] for index in range(0, len(members), size)]


def _seed(value: Any) -> int:
    return check_whole("sweep", "seed", value, least=0, most=2**64 - 1)
