"""Sweeps: one simulation under many seeds and options, in as few programs as possible."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import xarray as xr

from jaxafl import results
from jaxafl.ahead import lockstep, shared
from jaxafl.beside import Online
from jaxafl.checks import check_whole
from jaxafl.data.federated import FederatedData
from jaxafl.drive import Driver, Observe, Recording, Speed, Trained, drive
from jaxafl.grid import PARTS, grid, labels
from jaxafl.history import slices_are_faster
from jaxafl.models.model import Model
from jaxafl.progress import Reporter
from jaxafl.pytrees import is_static, leaf
from jaxafl.schedule import Schedule
from jaxafl.simulation import Simulation, as_recording, as_reporter, evaluation_interval
from jaxafl.state import example_batch

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
    observe: Observe | None = None,
    diagnostics: str | Sequence[str] = (),
    progress: bool | Reporter = False,
    save: Any = None,
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
        lanes: as in `Simulation.run`.
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
    values = _axes(simulation, axes)
    members = _members(simulation, values, seed)
    every = evaluation_interval(eval_every, server_steps)
    recording = as_recording(observe, diagnostics, simulation)
    if together is not None:
        check_whole("sweep", "together", together)
    speed = Speed(lanes)
    groups = _programs(members, values)
    _add_schedules(groups, values, server_steps)
    batches = [batch for group in groups for batch in _batches(group, values, together)]
    total = server_steps * len(batches)
    ended: dict[int, xr.Dataset] = {}
    with as_reporter(progress, f"sweep of {len(members)}", total) as reporter:
        for index, batch in enumerate(batches):
            part = _Part(reporter, index * server_steps)
            for member, trained in zip(batch, _run(batch, server_steps, every, speed, recording, part), strict=True):
                ended[member.place] = member.simulation.result(trained, member.seed)
    dataset = grid([ended[place] for place in range(len(members))], values)
    dataset.attrs["sweep"] = json.dumps({name: labels(column) for name, column in values.items()}, default=str)
    dataset.attrs["wall_seconds"] = round(time.perf_counter() - begun, 3)
    if path is not None:
        results.save_finished(dataset, path)
    return dataset


def replace_at(node: Any, path: str, value: Any, whole: str | None = None) -> Any:
    """A copy of a simulation, or of a part of it, with one option replaced.

    Raises:
        ValueError: there is no such option.
    """
    whole = path if whole is None else whole
    name, _, rest = path.partition(".")
    fields = _options(node)
    if name not in fields:
        there = f"there are {', '.join(sorted(fields))}" if fields else "it has none"
        raise ValueError(f"no option {name!r} in the path {whole!r}; {there}")
    new = replace_at(fields[name], rest, value, whole) if rest else value
    for field in dataclasses.fields(node):
        if name in _table(node, field.name):
            return dataclasses.replace(
                node, **{field.name: getattr(node, field.name) | {name: leaf(new, "sweep", whole)}}
            )
    return dataclasses.replace(node, **{name: _hashable(new) if is_static(node, name) else leaf(new, "sweep", whole)})


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _options(node: Any) -> dict[str, Any]:
    """The options that a path can name: fields, and entries of fields that are tables of numbers. What data and models
    are made of is not an option: they are swept over as a whole."""
    if not dataclasses.is_dataclass(node) or isinstance(node, FederatedData | Model):
        return {}
    named: dict[str, Any] = {}
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        private = callable(value) and getattr(value, "__name__", "").startswith("_")
        if field.name != "name" and not private:
            named |= _table(node, field.name) or {field.name: value}
    return named


def _table(node: Any, name: str) -> dict[str, Any]:
    value = getattr(node, name)
    return value if isinstance(value, dict) else {}


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
            raise type(error)(f"{error} ({_where(values, place)})") from error
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
                raise ValueError(f"{error} ({_where(values, first.place)})") from error
            for member in members:
                member.schedule = schedule


def _own_schedule(values: dict[str, list[Any]]) -> list[int]:
    """The axes along which schedules differ within a program."""
    return [index for index, name in enumerate(values) if name == "seed" or name.startswith("clock")]


def _programs(members: list[_Member], values: dict[str, list[Any]]) -> list[list[_Member]]:
    """Members grouped by the program that runs them: the values of their static axes, and the form of their numbers (an
    option that is `None` for some members, or an array of another shape)."""
    static = [index for index, name in enumerate(values) if name != "seed" and _is_static(members[0].simulation, name)]
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
    simulations = [member.simulation for member in batch]
    seeds = [member.seed for member in batch]
    schedules = [member.schedule for member in batch if member.schedule is not None]
    driver: Driver
    if not schedules:
        driver = Online(simulations[0], every, seeds[0], speed, recording)
    elif all(schedule is schedules[0] for schedule in schedules):
        driver = shared(simulations, schedules[0], every, seeds[0], speed, recording)
    else:
        driver = lockstep(simulations, schedules, every, seeds, speed, recording)
    return drive(driver, server_steps, every, reporter, begun)


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


def _is_static(simulation: Simulation, path: str) -> bool:
    """Whether a change of this option compiles a new program."""
    node: Any = simulation
    *parents, name = path.split(".")
    for parent in parents:
        node = getattr(node, parent) if hasattr(node, parent) else _options(node)[parent]
    if node is simulation:
        return True
    return name in {field.name for field in dataclasses.fields(node)} and is_static(node, name)


def _axes(simulation: Any, axes: Any) -> dict[str, list[Any]]:
    """The axes with their values, checked for what needs no simulation."""
    if not isinstance(simulation, Simulation):
        raise TypeError(f"sweep(simulation, ...) got {simulation!r}, which is not a Simulation")
    if not isinstance(axes, Mapping) or not axes:
        raise ValueError(f'a sweep needs at least one axis, e.g. {{"seed": range(5)}}; got {axes!r}')
    values: dict[str, list[Any]] = {}
    for name, column in axes.items():
        part = str(name).partition(".")[0]
        if part not in (*PARTS, "seed") or not all(str(name).split(".")) or str(name).startswith("seed."):
            raise ValueError(f"a sweep axis is 'seed' or begins with {', '.join(PARTS)}; got {name!r}")
        if not isinstance(column, Iterable) or isinstance(column, str):
            raise TypeError(f"the sweep axis {name!r} needs a list of values, got {column!r}")
        values[name] = _numbers(list(column))
        if not values[name]:
            raise ValueError(f"the sweep axis {name!r} has no values")
        if part in ("data", "model") and name != part:
            raise ValueError(
                f"the sweep axis {name!r} names what is fixed when the {part} is made; sweep over whole ones: "
                f'{{"{part}": [...]}}'
            )
        for other in values:
            if name.startswith(f"{other}.") or other.startswith(f"{name}."):
                raise ValueError(f"the sweep axes {other!r} and {name!r} overlap: give one of them")
    return values


def _numbers(column: list[Any]) -> list[Any]:
    """Whole numbers beside fractions as floats, so that 0.5 and 1 run in one program."""
    kinds = {type(value) for value in column}
    if float in kinds and kinds <= {int, float}:
        return [float(value) for value in column]
    return column


def _seed(value: Any) -> int:
    return check_whole("sweep", "seed", value, least=0, most=2**64 - 1)
