"""Sweeps: one simulation under many seeds and options, in as few programs as possible."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
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
from jaxafl.drive import Driver, Observe, Recording, Speed, Trained, drive
from jaxafl.history import slices_are_faster
from jaxafl.progress import Reporter
from jaxafl.pytrees import is_static
from jaxafl.simulation import Simulation, as_recording, as_reporter, evaluation_interval
from jaxafl.state import example_batch

# Parameters up to which members that share a plan train faster together than one after another on a CPU: eight members
# together take 0.65 to 0.75 of the time at 8,000 to 26,000, 0.95 at 51,000, 1.1 at 102,000, 1.45 at 582,000.
_TOGETHER = 50_000
_PARTS = ("data", "model", "client", "server", "clock")


class _Member:
    """One combination of values: its place in the grid, its simulation and its seed."""

    def __init__(self, place: int, simulation: Simulation, seed: int) -> None:
        self.place, self.simulation, self.seed = place, simulation, seed


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
            `"server"`, `"clock"`, `"client"`.
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
        members in the attributes of a run (`failed_step`, `runs_never_consumed` ...) is a variable. A member whose
        parameters stop being finite ends there; the others go on.

    Raises:
        ValueError, TypeError: an axis or a value cannot work; raised before the first run.
    """
    path = results.check_path(save)
    begun = time.perf_counter()
    values = {name: list(column) for name, column in axes.items()}
    members = _members(simulation, values, seed)
    every = evaluation_interval(eval_every, server_steps)
    recording = as_recording(observe, diagnostics, simulation.server)
    if together is not None:
        check_whole("sweep", "together", together)
    speed = Speed(lanes)
    batches = [batch for group in _programs(members, values) for batch in _batches(group, values, together)]
    total = server_steps * len(batches)
    ended: dict[int, xr.Dataset] = {}
    with as_reporter(progress, f"sweep of {len(members)}", total) as reporter:
        for index, batch in enumerate(batches):
            part = _Part(reporter, index * server_steps)
            for member, trained in zip(batch, _run(batch, server_steps, every, speed, recording, part), strict=True):
                ended[member.place] = member.simulation.result(trained, member.seed)
    dataset = _grid([ended[place] for place in range(len(members))], values)
    labels = {name: [_label(value) for value in column] for name, column in values.items()}
    dataset.attrs["sweep"] = json.dumps(labels, default=str)
    dataset.attrs["wall_seconds"] = round(time.perf_counter() - begun, 3)
    if path is not None:
        results.save(dataset, path)
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
        raise ValueError(f"no option {name!r} in the path {whole!r}; there are {', '.join(sorted(fields))}")
    new = (
        replace_at(getattr(node, name) if hasattr(node, name) else fields[name], rest, value, whole) if rest else value
    )
    if hasattr(node, name):
        return dataclasses.replace(node, **{name: new})
    table = next(field.name for field in dataclasses.fields(node) if name in _table(node, field.name))
    return dataclasses.replace(node, **{table: getattr(node, table) | {name: new}})


def _options(node: Any) -> dict[str, Any]:
    """The options that a path can name: fields, and entries of fields that are tables of numbers."""
    if not dataclasses.is_dataclass(node):
        return {}
    named: dict[str, Any] = {}
    for field in dataclasses.fields(node):
        table = _table(node, field.name)
        named |= table or {field.name: getattr(node, field.name)}
    return named


def _table(node: Any, name: str) -> dict[str, Any]:
    value = getattr(node, name)
    return value if isinstance(value, dict) else {}


def _members(simulation: Simulation, values: dict[str, list[Any]], default_seed: int) -> list[_Member]:
    """All combinations, checked."""
    if not values:
        raise ValueError('a sweep needs at least one axis, e.g. {"seed": range(5)}')
    for name, column in values.items():
        if not column:
            raise ValueError(f"the sweep axis {name!r} has no values")
        if name.partition(".")[0] not in (*_PARTS, "seed") or name.startswith("seed."):
            raise ValueError(f"a sweep axis is 'seed' or begins with {', '.join(_PARTS)}; got {name!r}")
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
            chosen = ", ".join(f"{name}={_label(value)}" for name, value in zip(values, combination, strict=True))
            raise type(error)(f"{error} (in the sweep at {chosen})") from error
        members.append(_Member(place, variant, seed))
    return members


def _programs(members: list[_Member], values: dict[str, list[Any]]) -> list[list[_Member]]:
    """Members grouped by the program that runs them: the values of their static axes."""
    static = [index for index, name in enumerate(values) if name != "seed" and _is_static(members[0].simulation, name)]
    return _grouped(members, values, static)


def _batches(group: list[_Member], values: dict[str, list[Any]], together: int | None) -> list[list[_Member]]:
    """Members of one program that advance together."""
    first = group[0].simulation
    if first.clock_sees_training:
        return [[member] for member in group]
    if together is None and slices_are_faster() and _num_parameters(first) > _TOGETHER:
        together = 1
    own = [index for index, name in enumerate(values) if name == "seed" or name.startswith("clock")]
    sharing = _grouped(group, values, own)
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
    driver: Driver
    if simulations[0].clock_sees_training:
        driver = Online(simulations[0], every, seeds[0], speed, recording)
    elif len({(id(s.clock), seed) for s, seed in zip(simulations, seeds, strict=True)}) == 1 or len(batch) == 1:
        schedule = simulations[0].compute_schedule(server_steps, seeds[0])
        driver = shared(simulations, schedule, every, seeds[0], speed, recording)
    else:
        schedules = [s.compute_schedule(server_steps, seed) for s, seed in zip(simulations, seeds, strict=True)]
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


def _grid(members: list[xr.Dataset], values: dict[str, list[Any]]) -> xr.Dataset:
    """Results of all members as one dataset with a dimension per axis."""
    for name, column in _differing(members).items():
        for dataset, value in zip(members, column, strict=True):
            dataset[name] = value
    flat = xr.concat(
        members,
        dim="member",
        data_vars="all",
        coords="different",
        join="outer",
        combine_attrs="drop_conflicts",
        compat="equals",
    )
    shape = [len(column) for column in values.values()]

    def unfolded(variable: xr.DataArray) -> Any:
        if "member" not in variable.dims:
            return (variable.dims, variable.values, variable.attrs)
        variable = variable.transpose("member", ...)
        return ((*values, *variable.dims[1:]), variable.values.reshape(*shape, *variable.shape[1:]), variable.attrs)

    axes = {name: ([name], [_label(value) for value in column]) for name, column in values.items()}
    return xr.Dataset(
        {str(name): unfolded(variable) for name, variable in flat.data_vars.items()},
        {str(name): unfolded(variable) for name, variable in flat.coords.items()} | axes,
        flat.attrs,
    )


def _differing(members: list[xr.Dataset]) -> dict[str, list[Any]]:
    """Numeric attributes of the runs: they become variables."""
    table = {}
    for name in ("failed_step", "failed_client", *sorted(members[0].attrs)):
        column = [dataset.attrs.get(name) for dataset in members]
        if name in ("failed_step", "failed_client") or (
            all(isinstance(value, int | float) for value in column) and len(set(map(str, column))) > 1
        ):
            table[name] = [math.nan if value is None else value for value in column]
    table.pop("seed", None)
    return table


def _seed(value: Any) -> int:
    check_whole("sweep", "seed", value, least=0)
    return int(value)


def _label(value: Any) -> Any:
    """A coordinate that NetCDF can hold."""
    if isinstance(value, bool | np.bool_ | None.__class__):
        return str(value)
    if isinstance(value, int | float | str | np.generic):
        return value
    if isinstance(value, jax.Array) and value.ndim == 0:
        return value.item()
    name = getattr(value, "name", None)
    return name if isinstance(name, str) else repr(value)
