"""Runs under way as one compiled program: advanced, evaluated, and what they leave behind."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.clock import Schedule
from jaxafl.clock.schedules import recharged, schedule_of
from jaxafl.clock.tables import first_steps
from jaxafl.device import compiled, on_device, on_exhaustion, on_host
from jaxafl.engine.batched import evaluate_members, initial_members, observe_members
from jaxafl.engine.evaluate import Alone
from jaxafl.engine.mesh import ALL, DATA, NUMBERS, OF_MEMBERS, SHARED_STATE, STATE, alone, compiled_over, spread
from jaxafl.engine.plan import Plan
from jaxafl.engine.problem import Numbers, Problem, Program, stacked
from jaxafl.engine.state import Records, State
from jaxafl.engine.validate import check_fit
from jaxafl.engine.windows import Window, Windows

Failed = tuple[int, int]  # server step, client


@dataclasses.dataclass
class Execution:
    """P runs under way as one compiled program.

    Attributes:
        problems: one per run.
        program: what the compiled program depends on.
        numbers: of all runs, see `problem.stacked`.
        state: where the runs are, with a leading member axis.
        evaluate_model: model -> metrics, each [P].
        first: what `observe` says of x_0, each [P, ...].
        compile_seconds: how long compilation took.
        schedules: one per run; `None` where the runs make them.
        compiled: the program that takes server steps; `constant`: its arguments before the state; `function` and
            `kinds`: what it was made of, see `compile`.
        around: what it is called in.
        wait: (call, state, server steps) calls it in another way.
        check: (state, records on the host, the first of them) raises when something went wrong.
        windows: of the runs, where they share plans; `window`: the one under way; `enter`: takes up another.
        rows_before: of members in lockstep, who advance by rows: rows before each chunk of server steps, and all.
        taken: client updates taken so far, where the clock runs beside the training.
    """

    problems: Sequence[Problem]
    program: Program
    numbers: Numbers
    state: State
    evaluate_model: Callable[[Any], dict[str, jax.Array]]
    compile_seconds: float
    first: dict[str, np.ndarray]
    schedules: Sequence[Schedule] | None = None
    compiled: Any = None
    constant: tuple[Any, ...] = ()
    function: Any = None
    kinds: tuple[int, ...] = ()
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    wait: Callable[[Callable[[], Any], State, range], Any] | None = None
    check: Callable[[State, Records, int], Any] = lambda state, records, start: None
    windows: Windows | None = None
    window: Window | None = None
    enter: Callable[[Execution, Window], None] | None = None
    rows_before: np.ndarray | None = None
    taken: int = 0
    limit: Callable[[Records], tuple[int, str]] | None = None

    @property
    def plan(self) -> Plan | None:
        """The plan that is executed, where the runs share one."""
        return self.window.plan if self.window is not None else None

    def compile(
        self, function: Callable[..., tuple[State, Records]], kinds: tuple[int, ...], constant: tuple[Any, ...]
    ) -> Execution:
        """Adds the program that takes server steps: `function(program, *constant, state, start, stop)`.

        Args:
            function: of module level.
            kinds: of the constants and of the state, see `mesh`.
            constant: its arguments before the state.
        """
        # kept by name, not in a closure: a circle would keep the state, the ring too, until the next collection
        self.function, self.kinds, self.constant = function, kinds, spread(self.program, kinds[:-1], constant)
        none, how, place = on_device(np.int32(0)), self.program.deterministic, len(constant)
        arguments, kinds, state = (*self.constant, self.state, none, none), (*kinds, ALL, ALL), kinds[-1]
        self.compiled, seconds = compiled_over(
            function, (self.program,), kinds, arguments, state, True, donate=(place,), deterministic=how
        )
        self.compile_seconds += seconds
        return self

    def advance(self, start: int, stop: int) -> Records:
        """Takes the server steps (in lockstep: rows) start .. stop - 1. Their records on the host, each
        [P, steps, ...]; in lockstep those of the whole chunk, complete after its last row."""
        if (end := self.reach(start, stop)) < stop:
            return self.joined([self.advance(start, end), self.advance(end, stop)])
        sizes = {name: getattr(self.program, name) for name in ("lanes", "chunk", "micro_batch")}
        if (stop - start) % self.program.block:  # a piece that was asked for ends within a block
            self.program = dataclasses.replace(self.program, block=1)
            self.compile(self.function, self.kinds, self.constant)
        with on_exhaustion(**sizes), self.around():
            call = functools.partial(self._called, start, stop)
            self.state, records = self.wait(call, self.state, range(start, stop)) if self.wait else call()
            made = stop - start if self.rows_before is None else None
            records = jax.tree.map(lambda leaf: leaf[:, :made], on_host(records))
            self.check(self.state, records, start)
        if records.event is not None:
            self.taken += int(records.event.mask.sum())
        return records

    def _called(self, start: int, stop: int) -> tuple[State, Records]:
        with self.around():
            return self.compiled(*self.constant, self.state, np.int32(start), np.int32(stop))

    def reach(self, start: int, stop: int) -> int:
        """Enters the window of the server step `start`; the last of start + 1 .. stop that lies no further than it."""
        if self.windows is None or self.window is None or self.enter is None or start >= stop:
            return stop
        if start >= self.window.stop:
            self.enter(self, self.windows.after(self.window))
        return min(stop, self.window.stop)

    def copy(self) -> State:
        """A copy of the state, which later steps leave alone."""
        with self.around():
            return compiled(_copied, (), (self.state,), once=True)[0](self.state)

    def joined(self, pieces: Sequence[Records]) -> Records:
        """The records of several calls of `advance`, or of none, as one."""
        if not pieces:  # a call that takes no step knows their form
            return jax.tree.map(lambda leaf: leaf[:, :0], self.advance(0, 0))
        return jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *pieces)

    def evaluate(self) -> dict[str, np.ndarray]:
        """Metrics of the models, each [P]; where it is kept, of the average of all versions too (`average_...`)."""
        found = dict(on_host(self.evaluate_model(self.state.model)))
        if self.state.average is not None:
            average = on_host(self.evaluate_model(self.state.model._replace(params=self.state.average)))
            found |= {f"average_{name}": values for name, values in average.items()}
        return found

    def model(self, index: int) -> tuple[Any, Any]:
        """Parameters and non-trainable state of a run, on the host."""
        return tuple(jax.tree.map(lambda leaf: np.array(leaf[index]), on_host(self.state.model)))

    def arrivals(self, index: int, start: int, stop: int, records: Sequence[Records]) -> dict[str, np.ndarray]:
        """What server steps of a run leave behind, name -> [steps, ...]: `time`, `client`, `staleness`, diagnostics.

        Args:
            index: which run.
            start, stop: the server steps.
            records: of all chunks up to this one, of which it is the last.
        """
        if not stop:
            return {}
        info, event, _ = jax.tree.map(lambda values: values[index], records[-1])
        steps = np.arange(start, start + len(info["delta_norm"]))
        if self.schedules is not None:
            made = self.schedules[index]
            if self.problems[index].client.charge == "executed":
                known = np.concatenate([part.info["executed_local_steps"][index] for part in records])
                made = self._recharged(index, np.concatenate([known, made.local_steps[len(known) :]]))
            found = {"time": made.time[steps], "client": np.where(made.mask, made.client, -1)[steps]}
            return found | {"staleness": made.staleness[steps], **info}
        pause = self.problems[index].clock.pause
        staleness = np.where(event.mask, steps[:, None] - event.runs.reference, -1)
        client = np.where(event.mask, event.runs.client, -1)
        return {"time": event.time + pause * (steps + 1), "client": client, "staleness": staleness, **info}

    def failures(self) -> list[Failed | None]:
        """Where each run failed."""
        pairs = np.stack(on_host(self.state.failure), axis=1)[: len(self.problems)].tolist()
        return [(step, client) if step >= 0 else None for step, client in pairs]

    def updates(self, done: int) -> int:
        """Client updates that the first server steps have taken."""
        if self.schedules is None:
            return self.taken  # by this process
        return sum(int(schedule.mask[:done].sum()) for schedule in self.schedules)

    def finish(self, records: Records, lengths: Sequence[int]) -> list[tuple[Schedule, dict[str, np.ndarray]]]:
        """The schedules and the diagnostics of the first server steps of the runs.

        Args:
            records: of all server steps.
            lengths: how many of them each run has taken.
        """
        ended = []
        for index, (problem, length) in enumerate(zip(self.problems, lengths, strict=True)):
            info, event, runs_begun = jax.tree.map(lambda values, index=index: values[index], records)
            made = (
                self.schedules[index]
                if self.schedules is not None
                else schedule_of(problem.clock, problem.data.num_clients, event, runs_begun)
            )
            made = first_steps(made, length)
            info = {name: values[:length] for name, values in info.items()}
            for name, values in self.first.items():
                info[name] = np.concatenate([values[index][None], info[name]])
            if self.schedules is not None and problem.client.charge == "executed" and length:
                whole = self.schedules[index]
                executed = np.concatenate([info["executed_local_steps"], whole.local_steps[length:]])
                made = first_steps(self._recharged(index, executed), length)
            ended.append((made, info))
        return ended

    def _recharged(self, index: int, executed: np.ndarray) -> Schedule:
        """The whole schedule of a run with the time of the local steps made, [T, A]."""
        problem, made = self.problems[index], cast("Sequence[Schedule]", self.schedules)[index]
        steps = problem.client.local_steps(problem.data.counts)
        return recharged(made, problem.clock, steps, executed, problem.seed)


def prepared(
    problems: Sequence[Problem], schedules: Sequence[Schedule] | None, *, shared: bool, **shapes: Any
) -> Execution:
    """Runs before their first server step, with the program that evaluates them.

    Args:
        problems: one per run.
        schedules: one per run; `None` where the runs make them.
        shared: whether they share a plan.
        shapes: of the program, see `problem.Program`.
    """
    layout, whole = problems[0].layout, len(problems)
    parts = layout.mesh.size if layout.mesh is not None and layout.shares == 1 else 1
    size = -(-whole // parts)  # members of each device that shares them; the last is there again to fill them up
    padded = [*problems, *[problems[-1]] * (size * parts - whole)]
    device, (numbers, varies) = problems[0].device, stacked([problem.numbers for problem in padded])
    keys = on_device(tuple(np.stack([np.asarray(problem.key[word]) for problem in padded]) for word in (0, 1)))
    program = problems[0].program(members=size, varies=varies, **shapes)
    check_fit(problems[0], program)
    kinds, kind = (NUMBERS, DATA, OF_MEMBERS), SHARED_STATE if shared else STATE
    numbers, device, keys = arguments = spread(program, kinds, (numbers, device, keys))
    make, _ = compiled_over(initial_members, (program, shared), kinds, arguments, kind, once=True)
    state = make(*arguments)
    of_test, each = True, None
    if "per_client" in program.recording.diagnostics:
        owners = problems[0].data.owners
        of_test, each = owners.of_test, Alone(*on_device((owners.owner, owners.samples)))
    given = (device if device.validation is not None else device._replace(arrays=None), each)
    one, model = dataclasses.replace(program, mesh=None), alone(program, state.model)
    if program.shares == 1:
        one, given = program, spread(program, (ALL, ALL), given)
    else:
        given = alone(program, given)
    kinds = (ALL, ALL, OF_MEMBERS)
    evaluate, seconds = compiled_over(evaluate_members, (one, of_test), kinds, (*given, model), OF_MEMBERS)
    watch, _ = compiled_over(observe_members, (one,), (OF_MEMBERS,), (model.params,), OF_MEMBERS, once=True)
    first = on_host(watch(model.params))
    score = lambda model: evaluate(*given, alone(program, model))  # noqa: E731
    return Execution(problems, program, numbers, state, score, seconds, first, schedules)


def _copied(state: State) -> State:
    return jax.tree.map(jnp.copy, state)
