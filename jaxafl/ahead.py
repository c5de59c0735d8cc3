"""Drivers of runs whose clock has run ahead: one run, several that share a plan, several in lockstep."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl import execute, members
from jaxafl.compilation import compiled
from jaxafl.drive import (
    Recording,
    Speed,
    check_fit,
    check_lanes,
    chunk_of,
    evaluation,
    failures_of,
    initial_states,
    trimmed,
    until,
)
from jaxafl.history import slices_are_faster
from jaxafl.keys import seed_key
from jaxafl.plan import Plan, Segments, Steps, make_plan
from jaxafl.schedule import Schedule
from jaxafl.server.contract import Server
from jaxafl.state import Config, State, Version

if TYPE_CHECKING:
    from jaxafl.simulation import Simulation

_WASTE = 1.25  # executed / needed local steps that the choice of lanes accepts


@dataclasses.dataclass
class Ahead:
    """Runs whose clock has run ahead: one of `alone`, `shared` and `lockstep` makes them.

    Attributes:
        simulations, schedules, seeds: one per run.
        state: where the runs are.
        step: (state, start, stop) -> (state, records): takes server steps.
        metrics: evaluates a state.
        program: the compiled program.
        compile_seconds: how long compilation took.
    """

    simulations: Sequence[Simulation]
    schedules: Sequence[Schedule]
    seeds: Sequence[int]
    state: State
    step: Callable[[State, int, int], tuple[State, dict[str, jax.Array]]]
    metrics: Callable[[State], dict[str, np.ndarray]]
    program: Any
    compile_seconds: float

    def __post_init__(self) -> None:
        arrivals = sum(schedule.mask.sum(axis=1) for schedule in self.schedules)
        self.consumed = np.concatenate([[0], np.cumsum(arrivals)])
        self.batched = self.state.failure.step.ndim > 0

    def advance(self, start: int, stop: int) -> dict[str, np.ndarray]:
        self.state, records = self.step(self.state, start, stop)
        return trimmed(records, stop - start, not self.batched)

    def evaluate(self) -> dict[str, np.ndarray]:
        return self.metrics(self.state)

    def failures(self) -> list[tuple[int, int] | None]:
        return failures_of(self.state.failure)

    def updates(self, done: int) -> int:
        return int(self.consumed[done])

    def finish(self, records: Any) -> list[tuple[Schedule, dict[str, np.ndarray], Version]]:
        ended = []
        for index, failure in enumerate(self.failures()):
            schedule = until(self.schedules[index], failure)
            mine = {name: values[index][: schedule.server_steps] for name, values in records.items()}
            schedule = _charged(self.simulations[index], schedule, mine, self.seeds[index])
            model = members.member(self.state.model, index) if self.batched else self.state.model
            ended.append((schedule, mine, model))
        return ended


def shared(
    simulations: Sequence[Simulation], schedule: Schedule, every: int, seed: int, speed: Speed, recording: Recording
) -> Ahead:
    """One run, or several that share a plan: simulations that differ in client and server numbers only."""
    first, count = simulations[0], len(simulations)
    plan = planned(schedule, first.server, speed.lanes, "drift" in recording.diagnostics)
    program = first.program(
        lanes=plan.lanes,
        chunk=chunk_of(plan.lanes, speed.chunk),
        slots=min(_rounded(plan.slots), schedule.ring_slots),
        rows=_rounded(plan.rows),
        uniform=plan.uniform,
        full=bool(schedule.mask.all()),
        sliced=slices_are_faster(),
        stop=count == 1,
        **recording._asdict(),
    )
    keys = [seed_key(seed)] * count
    configs = [simulation.config(seed) for simulation in simulations]
    check_fit(first, program, configs[0], keys[0], count)
    config, varies = _stacked(configs)
    arguments = (config, first.dataset, *device_plan(plan))
    states = initial_states(program, configs, first.dataset, keys)
    state = states[0] if count == 1 else _stack_shared(states)
    function, static = (
        (execute.advance, (program, every)) if count == 1 else (members.advance_shared, (program, every, varies))
    )
    number = jnp.int32(0)
    advance, seconds = compiled(function, static, (*arguments, state, number, number), donate=(4,))
    metrics, more = evaluation(first, program, state, alone=count == 1)
    return Ahead(
        simulations,
        [schedule] * count,
        [seed] * count,
        state,
        lambda state, start, stop: advance(*arguments, state, jnp.int32(start), jnp.int32(stop)),
        metrics,
        advance,
        seconds + more,
    )


def lockstep(
    simulations: Sequence[Simulation],
    schedules: Sequence[Schedule],
    every: int,
    seeds: Sequence[int],
    speed: Speed,
    recording: Recording,
) -> Ahead:
    """Runs with plans of their own, advanced together row by row: they differ in client, server and clock numbers
    only."""
    first, count = simulations[0], len(simulations)
    lanes = speed.lanes or min(planned(schedule, first.server, None).lanes for schedule in schedules)
    plans = [planned(schedule, first.server, lanes, "drift" in recording.diagnostics) for schedule in schedules]
    program = first.program(
        lanes=lanes,
        chunk=lanes,
        slots=max(plan.slots for plan in plans) + 1,
        rows=max(plan.rows for plan in plans),
        uniform=False,
        full=all(bool(schedule.mask.all()) for schedule in schedules),
        sliced=False,
        stop=False,
        **recording._asdict(),
    )
    keys = [seed_key(seed) for seed in seeds]
    configs = [simulation.config(seed) for simulation, seed in zip(simulations, seeds, strict=True)]
    check_fit(first, program, configs[0], keys[0], count)
    config = jax.tree.map(lambda *leaves: jnp.stack(leaves), *configs)
    rows = jax.tree.map(jnp.asarray, members.make_rows(plans, every))
    arguments = (config, first.dataset, *members.stack_plans(plans), rows)
    state = jax.tree.map(lambda *leaves: jnp.stack(leaves), *initial_states(program, configs, first.dataset, keys))
    number = jnp.int32(0)
    advance, seconds = compiled(
        members.advance_lockstep, (program, every), (*arguments, state, number, number), donate=(5,)
    )
    metrics, more = evaluation(first, program, state, alone=False)
    return Ahead(
        simulations,
        schedules,
        seeds,
        state,
        lambda state, start, stop: advance(*arguments, state, jnp.int32(start // every), jnp.int32(start)),
        metrics,
        advance,
        seconds + more,
    )


def planned(schedule: Schedule, server: Server, lanes: int | None, keep_start: bool = False) -> Plan:
    """The plan of a schedule; `keep_start`: x_s is read whatever the server needs."""
    keep_start = keep_start or server.needs.start
    most = max(schedule.in_flight, 1)
    if lanes is not None:
        check_lanes(lanes)
        return make_plan(schedule, lanes=lanes, keep_start=keep_start)
    if jax.default_backend() == "cpu":
        return make_plan(schedule, lanes=1, keep_start=keep_start)
    width = 1 << (min(most, 512) - 1).bit_length()
    while True:  # the most lanes that the schedule keeps busy
        plan = make_plan(schedule, lanes=width, keep_start=keep_start)
        if width == 1 or plan.executed(width) <= _WASTE * max(plan.needed, 1):
            return plan
        width //= 2


def device_plan(plan: Plan) -> tuple[Segments, Steps]:
    """The plan on the device, its segments padded to a power of two so that other seeds have the same shapes."""
    count = len(plan.segments.active)
    padded = max(64, 1 << (count - 1).bit_length())
    segments = Segments(*(np.pad(leaf, [(0, padded - count)] + [(0, 0)] * (leaf.ndim - 1)) for leaf in plan.segments))
    return jax.tree.map(jnp.asarray, (segments, plan.steps))


def _stacked(configs: list[Config]) -> tuple[Config, tuple[bool, ...]]:
    """Configurations as one whose differing leaves have a leading member axis, and which leaves those are."""
    columns = list(zip(*(jax.tree.leaves(config) for config in configs), strict=True))
    varies = tuple(any(not np.array_equal(leaf, column[0]) for leaf in column) for column in columns)
    leaves = [jnp.stack(column) if own else column[0] for column, own in zip(columns, varies, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(configs[0]), leaves), varies


def _stack_shared(states: list[State]) -> State:
    """States of runs that share a plan, with a leading axis where they differ."""

    def stack(axis: int | None, *parts: Any) -> Any:
        return parts[0] if axis is None else jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts)

    return jax.tree.map(stack, members.shared_axes(states[0]), *states, is_leaf=lambda axis: axis is None)


def _charged(simulation: Simulation, schedule: Schedule, records: dict[str, np.ndarray], seed: int) -> Schedule:
    if simulation.client.charge == "planned":
        return schedule
    return simulation.charged(schedule, records["executed_local_steps"], seed)


def _rounded(count: int) -> int:
    """A multiple of 4, so that other seeds, which need a few slots more or less, run in the same program."""
    return -(-count // 4) * 4
