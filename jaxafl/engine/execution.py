"""Runs as one compiled program: execution of its rows, evaluation, records on the host."""

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
from jaxafl.device.buffers import expand
from jaxafl.engine.mesh import compiled_over, shard
from jaxafl.engine.plan import Plan
from jaxafl.engine.problem import MemberHyperparameters, Problem, Program
from jaxafl.engine.state import Records, State
from jaxafl.engine.windows import Window, Windows

Failed = tuple[int, int]  # server step, client


@dataclasses.dataclass
class Execution:
    """P runs as one compiled program.

    Attributes:
        problems: one per run.
        program: static arguments of the compiled program.
        hyperparameters: of all runs.
        state: of the runs, with a leading member axis.
        deterministic: see `Speed`.
        evaluate_model: model -> metrics, each [P].
        first: results of `observe` for x_0, each [P, ...].
        compile_seconds: seconds of compilation.
        schedules: one per run; `None` if they depend on the training.
        compiled: the compiled program; `constant`: its arguments before the state; `function`: see `compile`.
        context: context manager entered around every call of the compiled program (for example `jax.enable_x64`).
        wait: (call, state, server steps) -> result of the call, which it may interrupt.
        check: (state, records on the host, first server step) raises if something went wrong.
        windows: of the plan, if the runs share one; `window`: the current one; `form`: the columns that the program
            reads of it; `enter`: continues with another one.
        rows_before: rows before each chunk of server steps, and all, if members have plans of their own; `None`: row t
            is server step t.
        taken: client updates consumed so far, if the schedule depends on the training.
        evaluate_personal: state -> metrics of the clients' models, each [P] or [P, C], if parameters are personal.
        limit: (records) -> server steps within the limits, and the limit that is reached.
    """

    problems: Sequence[Problem]
    program: Program
    hyperparameters: MemberHyperparameters
    state: State
    deterministic: bool
    evaluate_model: Callable[[Any], dict[str, Any]]
    compile_seconds: float
    first: dict[str, np.ndarray]
    schedules: Sequence[Schedule] | None = None
    compiled: Any = None
    constant: tuple[Any, ...] = ()
    function: Any = None
    context: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    wait: Callable[[Callable[[], Any], State, range], Any] | None = None
    check: Callable[[State, Records, int], Any] = lambda state, records, start: None
    windows: Windows | None = None
    window: Window | None = None
    form: Any = None
    enter: Callable[[Execution, Window], None] | None = None
    rows_before: np.ndarray | None = None
    taken: int = 0
    limit: Callable[[Records], tuple[int, str]] | None = None
    evaluate_personal: Callable[[State], dict[str, Any]] | None = None

    @property
    def plan(self) -> Plan | None:
        """The current plan, if the runs share one."""
        return self.window.plan if self.window is not None else None

    @property
    def lanes(self) -> int:
        """Number of lanes of a run, over all devices."""
        return int(self.state.lanes.step.shape[-1])

    def row_of(self, step: int) -> int:
        """Returns the rows before a server step; in lockstep before the end of its chunk."""
        if self.rows_before is None:
            return step
        return int(self.rows_before[min(-(-step // self.program.loops.steps_per_call), len(self.rows_before) - 1)])

    def step_of(self, row: int) -> int:
        """Returns the server steps that all runs have taken before a row; in lockstep those of whole chunks."""
        if self.rows_before is None:
            return row
        chunk = int(np.searchsorted(self.rows_before, row, side="right")) - 1
        return min(chunk * self.program.loops.steps_per_call, self.schedules[0].server_steps)  # type: ignore[index]

    def compile(self, function: Callable[..., tuple[State, Records]], constant: tuple[Any, ...]) -> Execution:
        """Adds the program `function(program, *constant, state, start, stop, first_step)`.

        Args:
            function: of module level.
            constant: its arguments before the state.
        """
        # Attributes: a closure would be a reference cycle and keep the ring until the next garbage collection.
        self.function, self.constant = function, shard(self.program.layout, constant)
        arguments = (*self.constant, self.state, *[on_device(np.int32(0))] * 3)
        how: dict[str, Any] = dict(donate=(len(constant),), deterministic=self.deterministic)
        self.compiled, seconds = compiled_over(function, (self.program,), arguments, state=True, records=True, **how)
        self.compile_seconds += seconds
        return self

    def advance(self, start: int, stop: int) -> Records:
        """Executes rows start .. stop - 1, of one chunk of server steps.

        Returns:
            The records on the host, each [P, steps, ...]; in lockstep those of the whole chunk, with a mask of the
            steps that this call has taken.
        """
        if (end := self.reach(start, stop)) < stop:
            return self.joined([self.advance(start, end), self.advance(end, stop)])
        loops = self.program.loops
        if (stop - start) % loops.rows_per_check:  # this call ends within a block
            self.program = self.program.looping(rows_per_check=1)
            self.compile(self.function, self.constant)
        micro_batch = self.hyperparameters.values.client.micro_batch
        sizes: dict[str, Any] = dict(lanes=self.lanes, chunk=loops.lanes_per_vmap, micro_batch=micro_batch)
        with on_exhaustion(**sizes), self.context():
            call = functools.partial(self._called, start, stop)
            self.state, records = self.wait(call, self.state, range(start, stop)) if self.wait else call()
            made = stop - start if self.rows_before is None else None
            records = jax.tree.map(lambda leaf: leaf[:, :made], on_host(records))
            self.check(self.state, records, start)
        if records.event is not None:
            self.taken += int(records.event.mask.sum())
        return records

    def _called(self, start: int, stop: int) -> tuple[State, Records]:
        with self.context():
            return self.compiled(*self.constant, self.state, *map(np.int32, (start, stop, self.step_of(start))))

    def reach(self, start: int, stop: int) -> int:
        """Enters the window of row `start`. Returns the last of start + 1 .. stop that lies within the window."""
        if self.windows is None or self.window is None or self.enter is None or start >= stop:
            return stop
        if start >= self.window.stop:
            self.enter(self, self.windows.after(self.window))
        return min(stop, self.window.stop)

    def copy(self) -> State:
        """Returns a copy of the state, which later steps do not donate."""
        with self.context():
            return compiled(_copied, (), (self.state,), once=True)[0](self.state)

    def joined(self, pieces: Sequence[Records]) -> Records:
        """Returns the records of several calls of `advance`, or of none, as one."""
        if not pieces:  # a call that takes no step has records of this form
            return self.empty_piece()._replace(taken=None)
        if pieces[0].taken is None:
            return jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *pieces)
        return functools.reduce(_overlaid, pieces)

    def empty_piece(self) -> Records:
        """Returns the records of no server step."""
        return jax.tree.map(lambda leaf: leaf[:, :0], self.advance(0, 0))

    def of_chunk(self, pieces: Sequence[Records], steps: int) -> Records:
        """Returns the records of a whole chunk of so many server steps."""
        return jax.tree.map(lambda leaf: leaf[:, :steps], self.joined(pieces)._replace(taken=None))

    def evaluate(self) -> dict[str, np.ndarray]:
        """Returns metrics of the models, each [P]; with `average_...` of the mean of all versions, if it is kept."""
        found = dict(on_host(self.evaluate_model(self.state.model)))
        if self.evaluate_personal is not None:
            found |= on_host(self.evaluate_personal(self.state))
        if self.state.average is not None:
            average = on_host(self.evaluate_model(self.state.model._replace(params=self.state.average)))
            found |= {f"average_{name}": values for name, values in average.items()}
        return found

    def model(self, index: int) -> tuple[Any, Any]:
        """Returns parameters and non-trainable state of a run, on the host."""
        return tuple(jax.tree.map(lambda leaf: np.array(leaf[index]), on_host(self.state.model[:2])))

    def arrivals(self, index: int, start: int, stop: int, records: Sequence[Records]) -> dict[str, np.ndarray]:
        """Returns records of server steps, name -> [steps, ...]: `time`, `client`, `staleness`, diagnostics.

        Args:
            index: of the run.
            start, stop: the server steps.
            records: of all chunks up to this one, of which it is the last.
        """
        if not stop:
            return {}
        info, _, event, _ = jax.tree.map(lambda values: values[index], records[-1])
        steps = np.arange(start, start + len(info["delta_norm"]))
        if self.schedules is not None:
            made = self._charged(index, [jax.tree.map(lambda values: values[index], part.info) for part in records])
            found = {"time": made.time[steps], "client_id": np.where(made.mask, made.client, -1)[steps]}
            return found | {"staleness": made.staleness[steps], **info}
        pause = self.problems[index].clock.pause
        staleness = np.where(event.mask, steps[:, None] - event.runs.reference, -1)
        client = np.where(event.mask, event.runs.client, -1)
        return {"time": event.time + pause * (steps + 1), "client_id": client, "staleness": staleness, **info}

    def failures(self) -> list[Failed | None]:
        """Returns the server step and the client of each run's failure."""
        pairs = np.stack(on_host(self.state.failure), axis=1)[: len(self.problems)].tolist()
        return [(step, client) if step >= 0 else None for step, client in pairs]

    def updates(self, done: int) -> int:
        """Returns the client updates that the first server steps have consumed."""
        if self.schedules is None:
            return self.taken  # by this process
        return sum(int(schedule.mask[:done].sum()) for schedule in self.schedules)

    def finish(self, records: Records, lengths: Sequence[int]) -> list[tuple[Schedule, dict[str, np.ndarray]]]:
        """Returns the schedules and the diagnostics of the first server steps of the runs.

        Args:
            records: of all server steps.
            lengths: number of them for each run.
        """
        ended = []
        for index, (problem, length) in enumerate(zip(self.problems, lengths, strict=True)):
            info, _, event, counts = jax.tree.map(lambda values, index=index: values[index], records)
            info = {name: values[:length] for name, values in info.items()}
            if self.schedules is not None:
                made = self._charged(index, [info])
            else:
                made = schedule_of(problem.clock, problem.data.num_clients, event, counts)
            for name, values in self.first.items():
                info[name] = np.concatenate([values[index][None], info[name]])
            ended.append((first_steps(made, length), info))
        return ended

    def _charged(self, index: int, infos: Sequence[dict[str, np.ndarray]]) -> Schedule:
        """Returns the complete schedule of a run, charged for executed local steps if the client is.

        Args:
            index: of the run.
            infos: diagnostics of its server steps so far, each [t, ...].
        """
        problem, made = self.problems[index], cast("Sequence[Schedule]", self.schedules)[index]
        if problem.client.charge != "executed":
            return made
        known = np.concatenate([info["executed_local_steps"] for info in infos])
        executed = np.concatenate([known, made.local_steps[len(known) :]])
        steps = problem.client.local_steps(problem.data.counts)
        return recharged(made, problem.clock, steps, executed, problem.seed)


def _overlaid(before: Records, after: Records) -> Records:
    """Returns the records of one chunk in lockstep after two calls."""
    return jax.tree.map(lambda old, new: np.where(expand(after.taken, new), new, old), before, after)


def _copied(state: State) -> State:
    return jax.tree.map(jnp.copy, state)
