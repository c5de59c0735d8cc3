"""The definition of a sweep that all its processes and devices share."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxafl.callbacks.base import Callback
from jaxafl.callbacks.checkpoint import Checkpoint
from jaxafl.callbacks.hooks import CallbackHook, ProgressHook
from jaxafl.callbacks.identity import identity
from jaxafl.callbacks.interrupts import Interrupts
from jaxafl.callbacks.stopping import ends_of
from jaxafl.callbacks.watch import run_with_hooks
from jaxafl.engine.execution import Execution
from jaxafl.engine.lockstep import lockstep
from jaxafl.engine.loop import Trained
from jaxafl.engine.mesh import layout_of
from jaxafl.engine.online import online
from jaxafl.engine.planned import planned
from jaxafl.engine.problem import Recording, Speed
from jaxafl.options import UserError
from jaxafl.simulation import Simulation
from jaxafl.sweep.assemble import Dimension, dimensions
from jaxafl.sweep.axes import Axis
from jaxafl.sweep.members import Member, Scheduled, members_of

if TYPE_CHECKING:  # xarray takes a third of a second to import, so it is when a result is made
    import xarray as xr


@dataclasses.dataclass(frozen=True, eq=False)
class Work:
    """The definition of a sweep.

    Attributes:
        simulation: the simulation to vary.
        axes: the axes.
        server_steps: T of the longest member.
        every: server steps between evaluations.
        seed: seed of the members, unless it is an axis.
        most: most members of a batch per device; `None` chooses the fastest.
        speed: options that change the speed of a run only.
        recording: the recorded quantities of a run.
        callbacks: callbacks of every member.
        until: limits of time, updates or bytes.
        given: T, if the user gave it; `None` if the limits determine it.
        limits: all limits, including those that `callbacks` implement.
    """

    simulation: Simulation
    axes: Sequence[Axis]
    server_steps: int
    every: int
    seed: int
    most: int | None
    speed: Speed
    recording: Recording
    callbacks: Sequence[Callback]
    until: Mapping[str, float] = dataclasses.field(default_factory=dict)
    given: int | None = None
    limits: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def dims(self) -> list[Dimension]:
        """The dimensions of the result."""
        return dimensions(self.axes)

    @functools.cached_property
    def members(self) -> list[Member]:
        """The members, in the order of the grid (the last axis fastest)."""
        return members_of(self.simulation, self.axes, self.dims, self.seed)

    @functools.cached_property
    def schedules(self) -> Scheduled:
        """The schedules of the members."""
        return Scheduled(self.members, self.axes, self.given if self.until else self.server_steps, self.until)

    def ending(self, every: Callable[[int], int]) -> Work:
        """Returns the sweep with the server steps of its longest member, from its limits if T is not given.

        Args:
            every: T -> server steps between evaluations.

        Raises:
            ValueError: no limit determines T.
        """
        steps = self.given
        if steps is None:
            if not self.until:
                raise UserError("sweep needs server_steps, or a limit of simulated time such as until={'time': 3600}")
            for member in self.members:
                if why := member.simulation.clock_sees_training:
                    raise UserError(f"sweep: the schedule depends on the training, because {why}: give server_steps")
            steps = max(self.schedules.limited(place).server_steps for place in range(len(self.members)))
        found = dataclasses.replace(self, server_steps=steps, every=every(steps))
        found.schedules.known.update(self.schedules.known)
        return found

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """The fingerprint of the sweep."""
        limits: dict[str, Any] = {"until": dict(self.limits)} if self.limits else {}
        if stops := list(filter(None, map(ends_of, self.callbacks))):
            limits["stops"] = stops  # finished members would keep the ends of before
        how = limits | dict(seed=self.seed, server_steps=self.server_steps, eval_every=self.every, together=self.most)
        axes = {axis.name: {path: axis.column(path) for path in axis.paths} for axis in self.axes}
        speed = self.speed._replace(devices=())._asdict()
        return identity(self.simulation.summary(), axes=axes, **how, **self.recording.asked, **speed)

    def without_caches(self) -> Work:
        """Returns a copy without cached properties, for pickling."""
        return dataclasses.replace(self)

    def run(
        self, places: Sequence[int], checkpoint: Checkpoint | None, progress_hook: ProgressHook, interrupts: Interrupts
    ) -> list[xr.Dataset]:
        """Runs a batch and returns the results of its members.

        Args:
            places: indices of the members.
            checkpoint: the checkpoint of the batch, if it has one.
            progress_hook: the hook of the reporter.
            interrupts: the recorded signals.
        """
        batch = [self.members[place] for place in places]
        watched = batch if self.callbacks else []
        limited = self.schedules.limited(places[0])  # members of a batch have the same length
        steps = limited.server_steps
        runs = [one.simulation.as_run(one.seed, steps, self.recording, one.labels) for one in watched]
        callback_hook = CallbackHook(self.callbacks, runs, several=True)
        started = time.perf_counter()
        execution = self.execution(places, checkpoint)

        def finish(one: Member, trained: Trained) -> xr.Dataset:
            return one.simulation.result(limited.noted(trained), one.seed)

        finishes = [functools.partial(finish, one) for one in batch]
        hooks = progress_hook, callback_hook, checkpoint, interrupts
        return run_with_hooks(execution, limited.server_steps, self.every, started, *hooks, finishes)

    def execution(self, places: Sequence[int], checkpoint: Checkpoint | None = None) -> Execution:
        """Returns the execution of a batch before its first server step."""
        batch = [self.members[place] for place in places]
        computed = [self.schedules.of(place) for place in places]
        devices = self.speed.devices if len(batch) > 1 else ()
        layout = layout_of(batch[0].simulation.data, devices, members=True)
        problems = [member.simulation.problem(member.seed, self.recording, layout) for member in batch]
        schedules = [schedule for schedule in computed if schedule is not None]
        origin = checkpoint.start() if checkpoint else None
        if not schedules:
            execution = online(problems[0], self.every, self.speed)
            execution.limit = self.schedules.limited(places[0]).online_limit(problems[0])
            return execution
        if all(schedule is schedules[0] for schedule in schedules):
            return planned(problems, schedules[0], self.every, self.speed, origin)
        return lockstep(problems, schedules, self.every, self.speed)
