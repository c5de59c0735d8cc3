"""The members of a sweep, their schedules, and their division into batches that share a program."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxafl.callbacks.base import Run, check_callbacks, check_watchers
from jaxafl.callbacks.checkpoint import Checkpoint
from jaxafl.callbacks.hooks import Hook, Watch, run_with_hooks
from jaxafl.callbacks.identity import identity
from jaxafl.callbacks.limits import Limited, ends_of, limits_of
from jaxafl.clock import Schedule
from jaxafl.device import devices_of
from jaxafl.device.hardware import built_for_cpu
from jaxafl.engine.check import Parts, evaluation_interval
from jaxafl.engine.execution import Execution
from jaxafl.engine.lockstep import Lockstep
from jaxafl.engine.planned import Planned
from jaxafl.engine.problem import Speed
from jaxafl.engine.replying import Replying
from jaxafl.engine.state import shapes_of_model
from jaxafl.options import UserError, check_whole, user_errors
from jaxafl.simulation import Simulation
from jaxafl.sweep.assemble import Dimensions, dimensions
from jaxafl.sweep.axes import Axis, axes_of, is_static_path, replace_at
from jaxafl.sweep.folder import SweepFolder

if TYPE_CHECKING:  # xarray takes a third of a second to import, so it is when a result is made
    import xarray as xr

# Most parameters of a model whose members are batched on a CPU. Larger models train faster one after another.
_MOST_BATCHED = 50_000
# Members of a batch on a CPU, more if there would be over eight batches, and up to half of all as long as they have few
# parameters together. It must not depend on the number of cores: batched products round differently by their number.
_BATCH = 4
_BATCHES = 8
_FEW = 10_000


@dataclasses.dataclass(eq=False)
class Member:
    """A combination of values: position in the grid, path -> value, axis or path -> label, simulation and seed."""

    position: tuple[int, ...]
    values: dict[str, Any]
    labels: dict[str, Any]
    simulation: Simulation
    seed: int

    @property
    def where(self) -> str:
        """The labels as a text, for messages."""
        return f"in the sweep at {', '.join(f'{name}={label}' for name, label in self.labels.items())}"


def members_of(simulation: Simulation, axes: Sequence[Axis], seed: int) -> list[Member]:
    """Returns all combinations of values, checked."""
    members = []
    dims = dimensions(axes)
    for position in np.ndindex(*(len(axis.rows) for axis in axes)):
        labels: dict[str, Any] = {}
        values: dict[str, Any] = {}
        for axis, at in zip(axes, position, strict=True):
            labels |= {path: dims[axis.name][path][at] for path in axis.paths}
            values |= zip(axis.paths, axis.rows[at], strict=True)
        own = check_whole("sweep", "seed", values.get("seed", seed), least=0, most=2**64 - 1)
        member = Member(position, values, labels, values.get("simulation", simulation), own)
        with user_errors(member.where):
            for path in [path for path in values if path not in ("simulation", "seed")]:
                member.simulation = replace_at(member.simulation, path, values[path])
            member.simulation.check()
        members.append(member)
    return members


class Work:
    """The checked definition of a sweep, which all its processes and devices share.

    Attributes:
        simulation: the simulation to vary.
        axes: the axes.
        given: T, if the user gave it; `None` if the limits determine it.
        labels: of all members, for the callbacks, such as the method of a comparison.
        seed: seed of the members, unless it is an axis.
        most: most members of a batch per device; `None` chooses the fastest.
        speed: options that change the speed of a run only.
        recording: the recorded quantities of a run.
        limits: the limits of each member.
        callbacks: callbacks of every member, those of `limits` included.
        lengths, schedules: of members, by the keys of `shared`.
        every: server steps between evaluations.
    """

    def __init__(
        self,
        simulation: Any,
        axes: Any,
        server_steps: int | None,
        *,
        owner: str = "sweep",
        labels: Mapping[str, Any] | None = None,
        until: Any = None,
        eval_every: int | None = None,
        seed: int = 0,
        together: int | None = None,
        lanes: int | None = None,
        chunk: int | None = None,
        deterministic: bool = False,
        devices: Any = None,
        observe: Any = None,
        diagnostics: str | Sequence[str] = (),
        metrics: Any = None,
        callbacks: Any = (),
        **others: Any,
    ) -> None:
        """
        Args:
            simulation, axes, server_steps, until, eval_every, seed, together, lanes, chunk, deterministic, devices,
                observe, diagnostics, metrics, callbacks: as in `sweep`.
            owner: the function of the user, for messages.
            labels: see above.
            **others: options of `sweep` that do not define it.

        Raises:
            ValueError, TypeError: an axis or a value cannot work.
        """
        self.simulation, self.axes = axes_of(simulation, axes)
        self.given = server_steps
        self.labels = labels or {}
        self.seed = seed
        self.most = together
        for name, number in {"together": together, "server_steps": server_steps}.items():
            if number is not None:
                check_whole(owner, name, number)
        self.recording = self.members[0].simulation.recording(observe, diagnostics, metrics)
        self.limits = limits_of(owner, until)
        self.speed = Speed(lanes, chunk, deterministic, tuple(devices_of(devices)))
        self.callbacks = [*check_callbacks(callbacks), *self.limits.stops]
        self.lengths: dict[Any, Limited] = {}
        self.schedules: dict[Any, Schedule] = {}
        check_watchers(self.callbacks, self.described(self.members, server_steps or 0))
        self.every = evaluation_interval(eval_every, self.server_steps)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the attributes for other processes, without members and schedules, which these make themselves."""
        kept = {name: value for name, value in vars(self).items() if name not in ("members", "shared")}
        return kept | {"lengths": {}, "schedules": {}}

    @functools.cached_property
    def dims(self) -> Dimensions:
        """The dimensions of the result."""
        return dimensions(self.axes)

    @functools.cached_property
    def members(self) -> list[Member]:
        """The members, in the order of the grid (the last axis fastest)."""
        return members_of(self.simulation, self.axes, self.seed)

    @functools.cached_property
    def server_steps(self) -> int:
        """T of the longest member. Raises `ValueError` if neither the user nor a limit gives it."""
        if self.given is not None:
            return self.given
        if not self.limits.exact:
            other = 'a limit of simulated time such as until={"time": 3600}'
            raise UserError(f"{self.limits.owner} needs server_steps, or {other}")
        for member in self.members:
            if why := member.simulation.clock_sees_training:
                raise UserError(
                    f"{self.limits.owner}: the schedule depends on the training, because {why}: give server_steps"
                )
        return max(self.limited(place).server_steps for place in range(len(self.members)))

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """The fingerprint of the sweep."""
        limits: dict[str, Any] = {"until": dict(self.limits.given)} if self.limits.given else {}
        if stops := list(filter(None, map(ends_of, self.callbacks))):
            limits["stops"] = stops  # finished members would keep the ends of before
        how = limits | dict(seed=self.seed, server_steps=self.server_steps, eval_every=self.every, together=self.most)
        axes = {axis.name: {path: axis.column(path) for path in axis.paths} for axis in self.axes}
        how["along"] = list(axes)  # in order, since the files of members have numbers
        speed = self.speed._replace(devices=())._asdict()
        return identity(self.simulation.summary(), axes=axes, **how, **self.recording.asked, **speed)

    # ---- members that share a program, and members that share a schedule too

    @functools.cached_property
    def shared(self) -> list[tuple[Any, Any]]:
        """For each member, keys that are equal for members with the same program, and with the same schedule."""
        paths = [path for axis in self.axes for path in axis.paths if path != "seed"]
        accounted = "epsilon" in self.limits.exact
        static = {path for path in paths if is_static_path(self.members[0].simulation, path)}
        found = []
        for member in self.members:
            one = member.simulation
            leaves, structure = jax.tree.flatten((one.client, one.server))
            form = [jax.tree.structure(one.attack), *((np.shape(leaf), np.asarray(leaf).dtype.kind) for leaf in leaves)]
            program = *(_key(value) for path, value in member.values.items() if path in static), structure, *form
            along = zip(self.axes, member.position, strict=True)
            places = (at for axis, at in along if any(path.startswith(("seed", "clock")) for path in axis.paths))
            noise = Parts(**member.simulation.summary()).noise if accounted else ""
            found.append((program, (str(noise), one.traffic(), *places)))
        return found

    def limited(self, place: int) -> Limited:
        """Returns the length and the limits of a member."""
        member, key = self.members[place], self.shared[place]
        if key not in self.lengths:
            with user_errors(member.where):
                self.lengths[key] = self.limits.of_run(member.simulation, self.given, member.seed)
        return self.lengths[key]

    def schedule_of(self, place: int) -> Schedule | None:
        """Returns the schedule of a member; `None` if it depends on the training."""
        member, key = self.members[place], self.shared[place]
        if member.simulation.clock_sees_training:
            return None
        if key not in self.schedules:
            steps = self.limited(place).server_steps
            with user_errors(member.where):
                self.schedules[key] = member.simulation.compute_schedule(steps, member.seed)
        return self.schedules[key]

    def bytes(self, places: Iterable[int]) -> Iterator[int]:
        """Yields, for one member of each program, the bytes of its kept versions and of its rows per client."""
        for place in {self.shared[place][0]: place for place in places}.values():
            one = self.members[place].simulation
            schedule = self.schedule_of(place)
            rows = one.data.num_clients if one.server.needs.client_rows or one.server.needs.client_models else 0
            rows += schedule.ring_slots if schedule else one.clock.in_flight(one.data.num_clients)
            yield 4 * rows * _num_parameters(one)

    def batches(self, devices: int) -> list[list[int]]:
        """Returns the indices of the members of each batch. Members of a batch share a program.

        Args:
            devices: number of devices that share the batches.
        """
        programs: dict[Any, dict[Any, list[int]]] = {}
        for place, (program, schedule) in enumerate(self.shared):
            programs.setdefault(program, {}).setdefault(schedule, []).append(place)
        return [batch for sharing in programs.values() for batch in self._batches([*sharing.values()], devices)]

    def _batches(self, sharing: list[list[int]], devices: int) -> list[list[int]]:
        """Returns the batches of the members of one program; `sharing`: those with one schedule each."""
        first, most = self.members[sharing[0][0]].simulation, self.most
        replies = bool(first.clock_sees_training)
        in_lockstep = not (self.limits.exact or first.server.needs.client_rows or first.server.needs.client_models)
        # on a CPU, a server that replies gains nothing from members that wait for each other
        alone = built_for_cpu() and (replies or _num_parameters(first) > _MOST_BATCHED)
        if (most is None and alone) or (replies and not in_lockstep):
            most = 1
        if in_lockstep and (replies or not built_for_cpu()) and all(len(members) == 1 for members in sharing):
            sharing = [[place for members in sharing for place in members]]
        size = most or max(map(len, sharing))
        if most is None and built_for_cpu():
            count, few = sum(map(len, sharing)), _FEW // max(1, _num_parameters(first))
            batch = max(_BATCH, -(-count // _BATCHES), min(-(-count // 2), few))
            size = -(-size // -(-size // batch))
        size = min(size, -(-sum(map(len, sharing)) // devices))
        return [members[at : at + size] for members in sharing for at in range(0, len(members), size)]

    # ---- running a batch

    def described(self, members: Sequence[Member], server_steps: int) -> Iterator[Run]:
        """Yields the runs of members for callbacks; none without callbacks."""
        for one in members if self.callbacks else ():
            yield one.simulation.as_run(one.seed, server_steps, self.recording, {**self.labels, **one.labels})

    def completed(self, places: Sequence[int], kept: SweepFolder | None, watch: Watch) -> list[xr.Dataset]:
        """Returns the results of the members of a batch, which runs unless the folder of the sweep has them.

        Args:
            places: indices of the members.
            kept: the folder, which then has their results, if there is one.
            watch: the signals and the reporter of the sweep.
        """
        if kept is None:
            return self._run(places, None, watch)
        found = kept.finished(places)
        if found is None:
            found = self._run(places, kept.checkpoint(places), watch)
            kept.keep(places, found)
        return found

    def _run(self, places: Sequence[int], checkpoint: Checkpoint | None, watch: Watch) -> list[xr.Dataset]:
        batch = [self.members[place] for place in places]
        limited = self.limited(places[0])  # members of a batch have the same length
        runs = list(self.described(batch, limited.server_steps))
        hook = Hook(watch, self.callbacks, runs, checkpoint)
        started = time.perf_counter()
        execution = self.execution(places, checkpoint)
        finish = [lambda run, one=one: one.simulation.result(run, one.seed) for one in batch]
        return run_with_hooks(execution, limited.server_steps, self.every, started, hook, finish, limited)

    def execution(self, places: Sequence[int], checkpoint: Checkpoint | None = None) -> Execution:
        """Returns the execution of a batch before its first server step."""
        batch = [self.members[place] for place in places]
        problems = [member.simulation.problem(member.seed, self.recording) for member in batch]
        schedules = [one for place in places if (one := self.schedule_of(place)) is not None]
        origin = checkpoint.start() if checkpoint else None
        if not schedules:
            limits = self.limited(places[0]).of_steps(problems[0].clock) if len(batch) == 1 else None
            return Replying(problems, self.speed, limits)
        if all(schedule is schedules[0] for schedule in schedules):
            steps = schedules[0].server_steps
            return Planned(problems, schedules[0], steps, self.every, self.speed, origin)
        return Lockstep(problems, schedules, self.every, self.speed)


def _key(value: Any) -> Any:
    """Returns a key that is equal for values with the same program."""
    return (type(value), value) if isinstance(value, str | int | float | None) else id(value)


def _num_parameters(simulation: Simulation) -> int:
    params, _ = shapes_of_model(simulation.model, simulation.data.form)
    return sum(leaf.size for leaf in jax.tree.leaves(params))
