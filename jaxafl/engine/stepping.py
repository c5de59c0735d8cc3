"""A run that the user advances: `init`, `step` and `evaluate` as pure functions, and `iterate` on the host."""

from __future__ import annotations

import dataclasses
import functools
import operator
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.clock.schedule import Schedule
from jaxafl.device import buffers, on_device
from jaxafl.engine import evaluate as evaluation
from jaxafl.engine.members import at_axes, state_axes
from jaxafl.engine.plan import Tables
from jaxafl.engine.problem import Hyperparameters, Problem, Shapes, Speed
from jaxafl.engine.program import advance
from jaxafl.engine.sizes import plan_of, shapes_of_plan, tables_of
from jaxafl.engine.state import State, initial
from jaxafl.options import UserError, check_whole
from jaxafl.server.contract import Server, Tree

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RunState:
    """State of a run between two server steps, with the tables of its schedule: a pytree of arrays.

    Attributes:
        step: int32, server steps made.
        hyperparameters: client and server, whose numbers may be replaced or batched.
        run: buffers and server state.
        tables: the plan of all server steps.
        schedule: `time` [T], and `arrived`, `client_id`, `run_index`, `staleness`, `local_steps` [T, A].
        shapes: static shapes of the program.
    """

    step: Array
    hyperparameters: Hyperparameters
    run: State
    tables: Tables
    schedule: dict[str, Array]
    shapes: Shapes = dataclasses.field(metadata={"static": True})

    @property
    def params(self) -> Tree:
        """The parameters of the newest version."""
        return self.run.model.params


class Iterated(NamedTuple):
    """The newest version of a run that `iterate` advances.

    Attributes:
        step: server steps made.
        params, model_state: parameters and non-trainable state of the newest version.
    """

    step: int
    params: Tree
    model_state: Tree


class Stepwise:
    """Mixin of `Simulation`: a run that the user advances."""

    def init(
        self, seed: int | Sequence[int] = 0, server_steps: int = 1000, *, start: RunState | None = None
    ) -> RunState:
        """Returns the state before the first server step, with the schedule of the next `server_steps` steps.

        Args:
            seed: seed of the initial model, the schedule and the mini-batches, as of `run`. Several seeds give states
                of equal shapes with a leading axis, for `jax.vmap(sim.step)`.
            server_steps: T, the most server steps that `step` can make.
            start: state of another run, for example with another clock, from which this run takes the model, the
                state of the server and what clients keep; its schedule and its draws are new. `None` draws x_0.

        Raises:
            ValueError, TypeError: an option cannot work, the server replies (see `iterate`), or `start` is of another
                model, server or kind of client memory.
        """
        simulation: Any = self
        simulation.check()
        if why := simulation.clock_sees_training:
            raise UserError(f"init: the schedule depends on the training, because {why}; use iterate() or run()")
        steps = check_whole("init", "server_steps", server_steps)
        seeds: list[int] = np.atleast_1d(np.asarray(seed)).tolist()
        problems = [simulation.problem(one) for one in seeds]
        schedules = [simulation.compute_schedule(steps, one) for one in seeds]
        first = problems[0]
        lanes = plan_of(schedules[0], first).lanes
        plans = [plan_of(one, first, lanes) for one in schedules]
        chunk = 1 if jax.default_backend() == "cpu" else lanes
        each = (shapes_of_plan(plan, first, chunk, steps_per_call=steps) for plan in plans)
        shapes = functools.reduce(Shapes.joined, each)
        states = [
            RunState(
                step=on_device(np.int32(0)),
                hyperparameters=problem.hyperparameters,
                run=jax.jit(initial, static_argnums=0)(
                    problem.program(shapes), problem.hyperparameters, problem.device, on_device(problem.key)
                ),
                tables=on_device(tables_of(plan, shapes)),
                schedule=on_device(_shown(schedule, shapes.arrivals)),
                shapes=shapes,
            )
            for problem, plan, schedule in zip(problems, plans, schedules, strict=True)
        ]
        if start is not None:
            states = [_begun_from(start, state, simulation.server) for state in states]
        return states[0] if np.ndim(seed) == 0 else jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)

    def step(self, state: RunState, n: int = 1) -> tuple[RunState, dict[str, Array]]:
        """Makes n server steps. Works in `jax.jit`, `jax.vmap` and `jax.lax.scan`.

        A run whose parameters stop being finite makes no further steps. In code traced by the user, the samples are
        constants of the program.

        Args:
            state: of `init` or `step`.
            n: static number of server steps.

        Returns:
            The new state, and records [n, ...] with the names of a result: `time`, `arrived`, `client_id`, `run_index`,
            `staleness`, `local_steps`, `delta_norm`, `local_loss` and the server's diagnostics. In places without an
            arrival indices are -1, and `staleness` and `local_steps` 0. In traced code, a step past the schedule has
            `arrived` False, and leaves the model as it is.

        Raises:
            ValueError: the schedule of the state has fewer server steps; outside of traced code only.
        """
        count = check_whole("step", "n", n)
        problem = _problem_of(self)
        known = state.schedule["time"].shape[-1]
        if not isinstance(state.step, jax.core.Tracer) and state.step.ndim == 0 and int(state.step) + count > known:
            raise UserError(
                f"step: server step {int(state.step) + count - 1} is not in the schedule of {known} server steps; "
                f"expected at most {known - int(state.step)} more. Give init a larger server_steps"
            )
        return _step(problem.program(state.shapes), count, problem.device, state)

    def evaluate(self, state: RunState) -> dict[str, Array]:
        """Returns the test loss and metrics of the newest version, and those of the validation set if there is one."""
        problem = _problem_of(self)
        return _evaluate(problem.program(), "", 1, problem.device, None, state.run.model)

    def iterate(
        self, server_steps: int, *, every: int = 1, seed: int = 0, lanes: int | None = None, chunk: int | None = None
    ) -> Iterator[tuple[Iterated, dict[str, np.ndarray]]]:
        """Yields the newest version and the records of the last server steps, for a loop in Python.

        It works for every server and clock, those with replies included, and does not evaluate.

        Args:
            server_steps: T.
            every: server steps between two versions that are yielded.
            seed, lanes, chunk: as of `run`.

        Yields:
            The version, and records [every, ...] as in a callback's `Chunk`: `time`, `client_id` (-1 for no arrival),
            `staleness` and the diagnostics.
        """
        simulation: Any = self
        simulation.check()
        steps, every = check_whole("iterate", "server_steps", server_steps), check_whole("iterate", "every", every)
        execution = simulation.execution(steps, every, Speed(lanes, chunk), seed)
        done = []
        for start in range(0, steps, every):
            stop = min(start + every, steps)
            done.append(execution.advance(start, stop))
            params, model_state = execution.model(0)
            yield Iterated(stop, params, model_state), execution.arrivals(0, start, stop, done)


def _begun_from(start: RunState, state: RunState, server: Server) -> RunState:
    """Returns a first state with the model, the server's state and the memory of clients of another run."""
    if not isinstance(start, RunState):
        raise TypeError(
            f"init: `start` is {type(start).__name__}; expected a state of init or step. For trained parameters alone "
            "take afl.models.initialised(model, trained)"
        )
    kept = {name: getattr(start.run, name) for name in ("model", "server", "clients", "memory")}
    for name, found in kept.items():
        given, own = (jax.tree.map(jnp.shape, tree) for tree in (found, getattr(state.run, name)))
        if str(given) != str(own):  # tables with a row per client are equal to themselves only
            raise UserError(f"init: `start` has the {name} {given}; expected {own}, the same model, server and client")
    kept["server"] = server.begun(kept["server"])
    ring = buffers.write(state.run.ring, jnp.int32(0), start.run.model)
    return dataclasses.replace(state, run=state.run._replace(**kept, ring=ring))


_problems: weakref.WeakKeyDictionary[Any, dict[bool, Problem]] = weakref.WeakKeyDictionary()


def _problem_of(simulation: Any) -> Problem:
    x64 = jnp.result_type(float) == jnp.float64
    known = _problems.setdefault(simulation, {})
    if x64 not in known:
        known[x64] = simulation.problem()
    return known[x64]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _step(program: Any, n: int, device: Any, state: RunState) -> tuple[RunState, dict[str, Array]]:
    program = program._replace(shapes=state.shapes._replace(steps_per_call=n))
    known = state.schedule["time"].shape[0]
    one_member = functools.partial(jnp.expand_dims, axis=0)
    first, stop = state.step, jnp.minimum(state.step + n, known)
    axes = state_axes(state.run, shared=True)
    run, members = at_axes(axes, state.run, one_member), jax.tree.map(one_member, state.hyperparameters)
    run, records = advance(program, members, device, state.tables, run, first, stop, first)
    numbers = first + jnp.arange(n, dtype=jnp.int32)
    shown = {name: column[jnp.minimum(numbers, known - 1)] for name, column in state.schedule.items()}
    shown["arrived"] &= (numbers < known)[:, None]
    info = {name: values[0] for name, values in records.info.items()}
    return dataclasses.replace(state, step=state.step + n, run=at_axes(axes, run, operator.itemgetter(0))), shown | info


_evaluate = jax.jit(evaluation.evaluate, static_argnums=(0, 1, 2))


def _shown(schedule: Schedule, width: int) -> dict[str, np.ndarray]:
    """Returns the columns of a schedule that records show, with `width` places for arrivals."""
    more = [(0, 0), (0, width - schedule.mask.shape[1])]
    mask = np.pad(schedule.mask, more)
    indices = {"client_id": schedule.client, "run_index": schedule.run}
    numbers = {"staleness": schedule.staleness, "local_steps": schedule.local_steps}
    shown = {name: np.where(mask, np.pad(column, more), -1) for name, column in indices.items()}
    shown |= {name: np.where(mask, np.pad(column, more), 0) for name, column in numbers.items()}
    return {"time": schedule.time.astype(jnp.result_type(float)), "arrived": mask, **shown}
