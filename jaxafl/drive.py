"""Drivers: what carries a run from chunk to chunk of server steps.

`Planned` runs the clock first and executes its plan; `Online` runs the clock beside the training, for servers whose
replies change the work of the next runs. Both compile one program and call it again and again.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl import execute, members, online
from jaxafl.checks import check_whole
from jaxafl.compilation import compiled
from jaxafl.history import slices_are_faster
from jaxafl.keys import Key, seed_key
from jaxafl.memory import check_memory
from jaxafl.plan import Plan, Segments, Steps, make_plan
from jaxafl.progress import Reporter
from jaxafl.pytrees import as_arrays
from jaxafl.schedule import Schedule, raise_fault, schedule_of
from jaxafl.server.contract import Server

if TYPE_CHECKING:
    from jaxafl.simulation import Simulation

_EVALUATION_BATCH = 500
FULL_BATCH_PIECE = 256  # samples per gradient evaluation of a full batch, unless the client says otherwise
Observe = Callable[[Any], dict[str, jax.Array]]
_WASTE = 1.25  # executed / needed local steps that the choice of lanes accepts


class Speed(NamedTuple):
    """Options that change how fast a run is and what memory it takes, never its results (up to float rounding).

    Attributes:
        lanes: runs trained at once; `None` chooses: 1 on a CPU, elsewhere as many as the schedule keeps busy.
        chunk: lanes that advance together under `vmap`; `None`: all on an accelerator, 1 on a CPU (where a loop is
            faster).
    """

    lanes: int | None = None
    chunk: int | None = None


class Recording(NamedTuple):
    """What a run records besides what every run returns.

    Attributes:
        observe: traced function of the parameters, returning a dict of arrays.
        diagnostics: names from `diagnostics.DIAGNOSTICS`.
    """

    observe: Observe | None = None
    diagnostics: tuple[str, ...] = ()


class Trained(NamedTuple):
    """A run that has ended.

    Attributes:
        schedule: who arrived when.
        records: diagnostics of the server steps, each [T, ...].
        evaluations: metrics of the evaluated models, each [E].
        eval_step: int [E], server steps made when they were evaluated.
        failure: the server step at which the parameters stopped being finite, and the client whose update did it.
        params: the last parameters.
        model_state: the last non-trainable model state.
        seconds: wall-clock seconds of preparing, compiling and running.
    """

    schedule: Schedule
    records: dict[str, np.ndarray]
    evaluations: dict[str, np.ndarray]
    eval_step: np.ndarray
    failure: tuple[int, int] | None
    params: Any
    model_state: Any
    seconds: dict[str, float]


class Driver(Protocol):
    """One compiled program that carries P runs; arrays that come back have a leading member axis."""

    compile_seconds: float

    def advance(self, start: int, stop: int) -> Any: ...
    def evaluate(self) -> dict[str, np.ndarray]: ...
    def failures(self) -> list[tuple[int, int] | None]: ...
    def updates(self, done: int) -> int: ...
    def finish(self, records: Any) -> list[tuple[Schedule, dict[str, np.ndarray], execute.Version]]: ...


def drive(driver: Driver, server_steps: int, every: int, reporter: Reporter, begun: float) -> list[Trained]:
    """Runs a driver to the end, evaluating every `every` server steps.

    Args:
        driver: what advances the runs.
        server_steps: T.
        every: server steps between evaluations.
        reporter: told of every chunk.
        begun: `time.perf_counter()` when the preparation began.
    """
    prepared = time.perf_counter()
    evaluations, eval_step, records, done = [driver.evaluate()], [0], [], 0
    with reporter:
        while done < server_steps and not all(driver.failures()):
            stop = min(done + every, server_steps)
            records.append(driver.advance(done, stop))
            done = stop
            eval_step.append(done)
            evaluations.append(driver.evaluate())
            latest = {name: float(np.mean(values)) for name, values in evaluations[-1].items()}
            reporter.update(done, driver.updates(done) / (time.perf_counter() - prepared), latest)
    seconds = {
        "prepare_seconds": prepared - begun - driver.compile_seconds,
        "compile_seconds": driver.compile_seconds,
        "run_seconds": time.perf_counter() - prepared,
    }
    joined = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *records)
    ended = []
    for member, (failure, (schedule, diagnostics, model)) in enumerate(
        zip(driver.failures(), driver.finish(joined), strict=True)
    ):
        made = failure[0] + 1 if failure else server_steps
        shown = [index for index, step in enumerate(eval_step) if step < made or (step == made and not failure)]
        ended.append(
            Trained(
                schedule=schedule,
                records={name: values[:made] for name, values in diagnostics.items()},
                evaluations={
                    name: np.asarray([evaluations[index][name][member] for index in shown]) for name in evaluations[0]
                },
                eval_step=np.asarray(eval_step)[shown],
                failure=failure,
                params=model.params,
                model_state=model.model_state,
                seconds=seconds,
            )
        )
    return ended


class Planned:
    """Runs that share a plan: the clock has run, the plan is executed."""

    def __init__(
        self,
        simulations: Sequence[Simulation],
        schedule: Schedule,
        server_steps: int,
        every: int,
        seed: int,
        speed: Speed,
        recording: Recording,
    ) -> None:
        """`simulations` differ in client and server numbers only."""
        first = simulations[0]
        plan = planned(schedule, first.server, speed.lanes, "drift" in recording.diagnostics)
        self.alone = len(simulations) == 1
        self.first, self.schedule, self.seed = first, schedule, seed
        program = first.program(
            lanes=plan.lanes,
            chunk=_chunk(plan.lanes, speed.chunk),
            slots=min(_rounded(plan.slots), schedule.ring_slots),
            rows=_rounded(plan.rows),
            uniform=plan.uniform,
            full=bool(schedule.mask.all()),
            sliced=slices_are_faster(),
            stop=self.alone,
            observe=recording.observe,
            diagnostics=recording.diagnostics,
        )
        key = seed_key(seed)
        configs = [simulation.config(seed) for simulation in simulations]
        check_fit(first, program, configs[0], key, len(configs))
        self.config, varies = _stacked(configs)
        self.state = _initial_states(program, configs, first.dataset, [key] * len(configs), shared=True)
        self.plan = device_plan(plan)
        self.consumed = np.concatenate([[0], np.cumsum(schedule.mask.sum(axis=1))]) * len(configs)
        function, static = (
            (execute.advance, (program, every)) if self.alone else (members.advance_shared, (program, every, varies))
        )
        step = jnp.int32(0)
        arguments = (self.config, first.dataset, *self.plan, self.state, step, step)
        self.compiled, seconds = compiled(function, static, arguments, donate=(4,))
        self._evaluate, more = _evaluation(first, program, self.state, self.alone)
        self.compile_seconds = seconds + more

    def advance(self, start: int, stop: int) -> dict[str, np.ndarray]:
        self.state, records = self.compiled(
            self.config, self.first.dataset, *self.plan, self.state, jnp.int32(start), jnp.int32(stop)
        )
        return _trimmed(records, stop - start, self.alone)

    def evaluate(self) -> dict[str, np.ndarray]:
        return self._evaluate(self.state)

    def failures(self) -> list[tuple[int, int] | None]:
        return _failures(self.state.failure)

    def updates(self, done: int) -> int:
        return int(self.consumed[done])

    def finish(self, records: Any) -> list[tuple[Schedule, dict[str, np.ndarray], execute.Version]]:
        ended = []
        for index, failure in enumerate(self.failures()):
            mine = _member(records, index)
            schedule = _charged(self.first, self.schedule, mine, self.seed)
            ended.append((_until(schedule, failure), mine, _model_of(self.state.model, index, self.alone)))
        return ended


class Lockstep:
    """Runs with plans of their own, advanced together row by row."""

    def __init__(
        self,
        simulations: Sequence[Simulation],
        schedules: Sequence[Schedule],
        server_steps: int,
        every: int,
        seeds: Sequence[int],
        speed: Speed,
        recording: Recording,
    ) -> None:
        """`simulations` differ in client, server and clock numbers only."""
        first = simulations[0]
        keep = "drift" in recording.diagnostics
        lanes = speed.lanes or min(planned(schedule, first.server, None).lanes for schedule in schedules)
        plans = [planned(schedule, first.server, lanes, keep) for schedule in schedules]
        self.first, self.schedules, self.every = first, schedules, every
        self.simulations, self.seeds = simulations, seeds
        program = first.program(
            lanes=lanes,
            chunk=lanes,
            slots=max(plan.slots for plan in plans) + 1,
            rows=max(plan.rows for plan in plans),
            uniform=False,
            full=all(bool(schedule.mask.all()) for schedule in schedules),
            sliced=False,
            stop=False,
            observe=recording.observe,
            diagnostics=recording.diagnostics,
        )
        keys = [seed_key(seed) for seed in seeds]
        configs = [simulation.config(seed) for simulation, seed in zip(simulations, seeds, strict=True)]
        check_fit(first, program, configs[0], keys[0], len(configs))
        self.config = jax.tree.map(lambda *leaves: jnp.stack(leaves), *configs)
        self.state = _initial_states(program, configs, first.dataset, keys, shared=False)
        self.plan = (*members.stack_plans(plans), jax.tree.map(jnp.asarray, members.make_rows(plans, every)))
        self.consumed = np.concatenate([[0], np.cumsum(sum(schedule.mask.sum(axis=1) for schedule in schedules))])
        number = jnp.int32(0)
        arguments = (self.config, first.dataset, *self.plan, self.state, number, number)
        self.compiled, seconds = compiled(members.advance_lockstep, (program, every), arguments, donate=(5,))
        self._evaluate, more = _evaluation(first, program, self.state, alone=False)
        self.compile_seconds = seconds + more

    def advance(self, start: int, stop: int) -> dict[str, np.ndarray]:
        chunk = jnp.int32(start // self.every)
        self.state, records = self.compiled(
            self.config, self.first.dataset, *self.plan, self.state, chunk, jnp.int32(start)
        )
        return _trimmed(records, stop - start, alone=False)

    def evaluate(self) -> dict[str, np.ndarray]:
        return self._evaluate(self.state)

    def failures(self) -> list[tuple[int, int] | None]:
        return _failures(self.state.failure)

    def updates(self, done: int) -> int:
        return int(self.consumed[done])

    def finish(self, records: Any) -> list[tuple[Schedule, dict[str, np.ndarray], execute.Version]]:
        ended = []
        for index, failure in enumerate(self.failures()):
            mine = _member(records, index)
            schedule = _charged(self.simulations[index], self.schedules[index], mine, self.seeds[index])
            ended.append((_until(schedule, failure), mine, _model_of(self.state.model, index, False)))
        return ended


class Online:
    """One run with the clock beside the training."""

    def __init__(
        self, simulation: Simulation, server_steps: int, every: int, seed: int, speed: Speed, recording: Recording
    ) -> None:
        self.simulation = simulation
        clock, clients = simulation.clock, simulation.data.num_clients
        capacity, in_flight = clock.capacity(clients), clock.in_flight(clients)
        lanes = _online_lanes(speed.lanes, capacity, in_flight)
        self.program = simulation.program(
            lanes=lanes,
            chunk=_chunk(lanes, speed.chunk),
            slots=clock.ring_slots(clients),
            rows=capacity if lanes == capacity else in_flight + capacity,
            uniform=False,
            full=True,
            sliced=slices_are_faster(),
            stop=True,
            observe=recording.observe,
            diagnostics=recording.diagnostics,
        )
        key = seed_key(seed)
        self.config = simulation.config(seed)
        check_fit(simulation, self.program, self.config, key, 1)
        state = _initial_states(self.program, [self.config], simulation.dataset, [key], shared=True)
        wide = jnp.result_type(float) == jnp.float64
        with jax.enable_x64(True):
            self.clock = as_arrays(clock, jnp.float64)
            steps = jnp.asarray(simulation.client.local_steps(simulation.data.counts), jnp.int32)
            first = (self.clock, state, key, steps)
            begin, _ = compiled(online.initial_online, (self.program, clients), first)
            self.state = begin(*first)
            number = jnp.int32(0)
            arguments = (self.clock, self.config, simulation.dataset, self.state, number, number)
            self.compiled, seconds = compiled(
                online.advance_online, (self.program, every, wide), arguments, donate=(3,)
            )
        self._evaluate, more = _evaluation(simulation, self.program, state, alone=True)
        self.compile_seconds = seconds + more

    def advance(self, start: int, stop: int) -> Any:
        with jax.enable_x64(True):
            self.state, records = self.compiled(
                self.clock, self.config, self.simulation.dataset, self.state, jnp.int32(start), jnp.int32(stop)
            )
            raise_fault(jax.device_get(self.clock.fault(self.state.clock)))
        return _trimmed(records, stop - start, alone=True)

    def evaluate(self) -> dict[str, np.ndarray]:
        return self._evaluate(self.state.run)

    def failures(self) -> list[tuple[int, int] | None]:
        return _failures(self.state.run.failure)

    def updates(self, done: int) -> int:
        return done * self.program.capacity

    def finish(self, records: Any) -> list[tuple[Schedule, dict[str, np.ndarray], execute.Version]]:
        steps, diagnostics = jax.tree.map(lambda values: values[0], records)
        dispatched = int(jax.device_get(self.state.clock.dispatches))
        schedule = schedule_of(self.simulation.clock, self.simulation.data.num_clients, steps, dispatched)
        return [(_until(schedule, self.failures()[0]), diagnostics, self.state.run.model)]


def _stacked(configs: list[execute.Config]) -> tuple[execute.Config, tuple[bool, ...]]:
    """Configurations as one whose differing leaves have a leading member axis, and which leaves those are."""
    columns = list(zip(*(jax.tree.leaves(config) for config in configs), strict=True))
    varies = tuple(any(not np.array_equal(leaf, column[0]) for leaf in column) for column in columns)
    leaves = [jnp.stack(column) if own else column[0] for column, own in zip(columns, varies, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(configs[0]), leaves), varies


def _initial_states(
    program: execute.Program,
    configs: list[execute.Config],
    dataset: execute.Dataset,
    keys: list[Key],
    shared: bool,
) -> execute.State:
    """The first state, with a leading member axis where members differ if there are several."""
    initial, _ = compiled(execute.initial, (program,), (configs[0], dataset, keys[0]))
    states = [initial(config, dataset, key) for config, key in zip(configs, keys, strict=True)]
    if len(states) == 1 and shared:
        return states[0]
    axes = members.SHARED_AXES if shared else 0

    def stack(axis: int | None, *parts: Any) -> Any:
        return parts[0] if axis is None else jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts)

    if not shared:
        return stack(0, *states)
    return jax.tree.map(stack, axes, *states, is_leaf=lambda axis: axis is None)


def _evaluation(
    simulation: Simulation, program: execute.Program, state: execute.State, alone: bool
) -> tuple[Callable[[execute.State], dict[str, np.ndarray]], float]:
    """Evaluates a state's model, and the average of all versions where there is one (as `average_...`)."""
    x, y = simulation.test
    function = execute.evaluate if alone else members.evaluate_members
    batch = min(_EVALUATION_BATCH, len(y))
    evaluate, seconds = compiled(function, (program, batch), (state.model, x, y))

    def of(model: execute.Version) -> dict[str, np.ndarray]:
        return {name: np.atleast_1d(value) for name, value in jax.device_get(evaluate(model, x, y)).items()}

    def metrics(state: execute.State) -> dict[str, np.ndarray]:
        found = of(state.model)
        if state.average is not None:
            average = of(state.model._replace(params=state.average))
            found |= {f"average_{name}": values for name, values in average.items()}
        return found

    return metrics, seconds


def _trimmed(records: Any, count: int, alone: bool) -> Any:
    """Diagnostics on the host, [P, count, ...]."""
    return jax.tree.map(
        lambda leaf: np.asarray(leaf)[None, :count] if alone else np.asarray(leaf)[:, :count], jax.device_get(records)
    )


def _failures(failure: execute.Failure) -> list[tuple[int, int] | None]:
    steps, clients = (np.atleast_1d(values) for values in jax.device_get(failure))
    return [(int(step), int(client)) if step >= 0 else None for step, client in zip(steps, clients, strict=True)]


def _member(records: dict[str, np.ndarray], index: int) -> dict[str, np.ndarray]:
    return {name: values[index] for name, values in records.items()}


def _model_of(model: execute.Version, index: int, alone: bool) -> execute.Version:
    return model if alone else jax.tree.map(lambda leaf: leaf[index], model)


def _charged(simulation: Simulation, schedule: Schedule, records: dict[str, np.ndarray], seed: int) -> Schedule:
    if simulation.client.charge == "planned":
        return schedule
    return simulation.charged(schedule, records["executed_local_steps"], seed)


def _until(schedule: Schedule, failure: tuple[int, int] | None) -> Schedule:
    return first_steps(schedule, failure[0] + 1) if failure else schedule


def _rounded(count: int) -> int:
    """A multiple of 4, so that other seeds, which need a few slots more or less, run in the same program."""
    return -(-count // 4) * 4


def device_plan(plan: Plan) -> tuple[Segments, Steps]:
    """The plan on the device, its segments padded to a power of two so that other seeds have the same shapes."""
    count = len(plan.segments.active)
    padded = max(64, 1 << (count - 1).bit_length())
    segments = Segments(*(np.pad(leaf, [(0, padded - count)] + [(0, 0)] * (leaf.ndim - 1)) for leaf in plan.segments))
    return jax.tree.map(jnp.asarray, (segments, plan.steps))


def first_steps(schedule: Schedule, count: int) -> Schedule:
    """The first `count` server steps of a schedule."""
    fields = (field.name for field in dataclasses.fields(schedule))
    arrays: dict[str, Any] = {
        name: getattr(schedule, name)[:count] for name in fields if isinstance(getattr(schedule, name), np.ndarray)
    }
    return dataclasses.replace(schedule, **arrays)


def planned(schedule: Schedule, server: Server, lanes: int | None, keep_start: bool = False) -> Plan:
    """The plan of a schedule; `keep_start`: x_s is read whatever the server needs."""
    keep_start = keep_start or server.needs.start
    most = max(schedule.in_flight, 1)
    if lanes is not None:
        _check_lanes(lanes)
        return make_plan(schedule, lanes=lanes, keep_start=keep_start)
    if jax.default_backend() == "cpu":
        return make_plan(schedule, lanes=1, keep_start=keep_start)
    width = 1 << (min(most, 512) - 1).bit_length()
    while True:  # the most lanes that the schedule keeps busy
        plan = make_plan(schedule, lanes=width, keep_start=keep_start)
        if width == 1 or plan.executed(width) <= _WASTE * max(plan.needed, 1):
            return plan
        width //= 2


def _online_lanes(lanes: int | None, capacity: int, in_flight: int) -> int:
    if lanes is None:
        return capacity if jax.default_backend() == "cpu" else max(capacity, min(in_flight, 32))
    _check_lanes(lanes)
    return max(lanes, capacity)


def _check_lanes(lanes: Any) -> None:
    check_whole("run", "lanes", lanes)


def _chunk(lanes: int, chunk: int | None) -> int:
    if chunk is None:
        return 1 if jax.default_backend() == "cpu" else lanes
    check_whole("run", "chunk", chunk)
    if lanes % chunk:
        raise ValueError(f"run: chunk must be a divisor of lanes={lanes}, got {chunk}")
    return int(chunk)


def check_fit(simulation: Simulation, program: execute.Program, config: execute.Config, key: Key, count: int) -> None:
    """Raises `MemoryError` when `count` runs do not fit."""
    state = jax.eval_shape(functools.partial(execute.initial, program), config, simulation.dataset, key)
    check_memory(
        {
            f"ring of {program.slots} versions": [state.ring] * count,
            f"store of {program.rows} updates": [state.store] * count,
            f"{program.lanes} lanes": [state.lanes] * count,
            "server state (with its rows per client)": [state.server] * count,
            "the clients' own models": [state.clients] * count,
            "the average of all versions": [state.average] * count,
            "training data": simulation.data.arrays,
        }
    )
