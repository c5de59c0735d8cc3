"""Runs as one compiled program: execution of its rows, evaluation, records on the host."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, cast

import jax
import numpy as np

from jaxafl.clock import Schedule
from jaxafl.clock.live import schedule as schedule_of
from jaxafl.clock.schedule import cut
from jaxafl.device import compiled, on_device, on_host
from jaxafl.device.buffers import expand
from jaxafl.engine.check import check_fit
from jaxafl.engine.devices import on_first_device, placed
from jaxafl.engine.evaluator import Evaluator
from jaxafl.engine.members import initial_members, observe_members
from jaxafl.engine.problem import MemberHyperparameters, Problem, Shapes
from jaxafl.engine.program import advance
from jaxafl.engine.state import Records, State
from jaxafl.options import UserError

Failed = tuple[int, int]  # server step, client


class Execution:
    """P runs as one compiled program.

    Subclasses know the tables that the program reads: `Planned` for runs that share a plan, `Lockstep` for runs with
    plans of their own, `Replying` for servers whose replies decide what happens next.

    Attributes:
        problems: one per run.
        program: static arguments of the compiled program.
        members: hyperparameters of all runs.
        state: of the runs, with a leading member axis.
        evaluator: of their models.
        first: results of `observe` for x_0, each [P, ...].
        compile_seconds: seconds of compilation.
        deterministic: see `Speed`.
        ended: server steps up to a limit that is reached, and the limit; `None` before.
    """

    tables: Any
    ended: tuple[int, str] | None = None

    def __init__(self, problems: Sequence[Problem], shapes: Shapes, deterministic: bool, *, shared: bool) -> None:
        """Initialises the runs and compiles their evaluation.

        Args:
            problems: one per run.
            shapes: of the program.
            deterministic: see `Speed`.
            shared: True if the runs share a plan, and with it a seed.
        """
        first = problems[0]
        self.problems, self.program, self.deterministic = problems, first.program(shapes), deterministic
        check_fit(first, self.program, len(problems))
        self.members = placed(first.mesh, MemberHyperparameters.stacked([one.hyperparameters for one in problems]))
        keys = on_device(tuple(np.stack([np.asarray(one.key[word]) for one in problems]) for word in (0, 1)))
        arguments = self.members, first.device, placed(first.mesh, keys)
        static = self.program.of(Shapes(shapes.lanes, shapes.ring, shapes.store)), shared
        initialise, _ = compiled(initial_members, static, arguments, once=True)
        self.state: State = placed(first.mesh, initialise(*arguments))
        self.evaluator = Evaluator(first, len(problems), first.device, self.state.model)
        self.compile_seconds = self.evaluator.seconds
        params = on_first_device(first.mesh, self.state.model.params)
        observe, _ = compiled(observe_members, (first.program(),), (params,), once=True)
        self.first: dict[str, np.ndarray] = on_host(observe(params))

    # ---- what subclasses know

    def row_of(self, step: int) -> int:
        """Returns the rows before a server step; in lockstep before the end of its chunk."""
        return step

    def step_of(self, row: int) -> int:
        """Returns the server steps that all runs have taken before a row; in lockstep those of whole chunks."""
        return row

    def reach(self, start: int, stop: int) -> int:
        """Makes the tables of row `start` available. Returns the last of start + 1 .. stop that they cover."""
        return stop

    def resume(self, row: int, records: Sequence[Records]) -> None:
        """Continues after `row` rows, of which the state has been restored, and whose records are known."""

    def build(self, shapes: Shapes) -> None:
        """Compiles the program for buffers of these shapes."""
        raise NotImplementedError

    def schedule(self, index: int) -> Schedule:
        """Returns the schedule of a run as far as it is known."""
        raise NotImplementedError

    # ---- execution

    @property
    def shapes(self) -> Shapes:
        """The static shapes of the program."""
        return cast(Shapes, self.program.shapes)

    @property
    def lanes(self) -> int:
        """Number of lanes of a run."""
        return self.shapes.lanes

    def compile(self, tables: Any, shapes: Shapes) -> None:
        """Compiles the program for tables on the device."""
        self.tables, self.program = placed(self.program.mesh, tables), self.program.of(shapes)
        arguments = (*self._constant, self.state, *[on_device(np.int32(0))] * 3)
        how: dict[str, Any] = dict(donate=(3,), deterministic=self.deterministic)
        self.compiled, seconds = compiled(advance, (self.program,), arguments, **how)
        self.compile_seconds += seconds

    @property
    def _constant(self) -> tuple[Any, ...]:
        return self.members, self.problems[0].device, self.tables

    def advance(self, start: int, stop: int) -> Records:
        """Executes rows start .. stop - 1, of one chunk of server steps.

        Returns:
            The records on the host, each [P, steps, ...]; in lockstep those of the whole chunk, with a mask of the
            steps that this call has taken.
        """
        if (end := self.reach(start, stop)) < stop:
            return self.joined([self.advance(start, end), self.advance(end, stop)])
        if (stop - start) % self.shapes.rows_per_check:  # this call ends within a block
            self.compile(self.tables, self.shapes._replace(rows_per_check=1))
        numbers = map(np.int32, (start, stop, self.step_of(start)))
        self.state, records = self.compiled(*self._constant, self.state, *numbers)
        records = on_host(records)
        made = stop - start if records.taken is None else None
        return jax.tree.map(lambda leaf: leaf[:, :made], records)

    def make_room(self, saved: State) -> None:
        """Gives the buffers the rows of a saved state, which has more if an earlier server step needed them."""
        ring, store = (jax.tree.leaves(tree)[0].shape[1] for tree in (saved.ring, saved.store))
        if (shapes := self.shapes._replace(ring=ring, store=store)) != self.shapes:
            self.build(shapes)

    def enlarge(self, shapes: Shapes) -> None:
        """Gives ring and store the sizes of these shapes, with zeros in new rows."""
        parts = {}
        for name in ("ring", "store"):
            tree = getattr(self.state, name)
            if (more := getattr(shapes, name) - jax.tree.leaves(tree)[0].shape[1]) > 0:
                parts[name] = placed(self.program.mesh, on_device(_longer(on_host(tree), more)))
        self.state = self.state._replace(**parts)

    def joined(self, pieces: Sequence[Records]) -> Records:
        """Returns the records of several calls of `advance`, or of none, as one."""
        if not pieces:  # a call that takes no step has records of this form
            return self.empty_piece()._replace(taken=None)
        if pieces[0].taken is None:
            return jax.tree.map(_concatenated, *pieces)
        return functools.reduce(_overlaid, pieces)

    def empty_piece(self) -> Records:
        """Returns the records of no server step."""
        return jax.tree.map(lambda leaf: leaf[:, :0], self.advance(0, 0))

    def of_chunk(self, pieces: Sequence[Records], steps: int) -> Records:
        """Returns the records of a whole chunk of so many server steps."""
        return jax.tree.map(lambda leaf: leaf[:, :steps], self.joined(pieces)._replace(taken=None))

    # ---- results

    def evaluate(self) -> dict[str, np.ndarray]:
        """Returns metrics of the models, each [P]."""
        return self.evaluator.of_state(self.state)

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
        infos = [jax.tree.map(lambda values: values[index], part.info) for part in records]
        made = cut(self._charged(index, infos), start, start + len(infos[-1]["delta_norm"]))
        found = {"time": made.time, "client_id": np.where(made.mask, made.client, -1), "staleness": made.staleness}
        return found | _narrow(infos[-1], made)

    def failures(self) -> list[Failed | None]:
        """Returns the server step and the client of each run's failure."""
        pairs = np.stack(on_host(self.state.failure), axis=1).tolist()
        return [(step, client) if step >= 0 else None for step, client in pairs]

    def updates(self, done: int) -> int:
        """Returns the client updates that the first server steps have consumed."""
        return sum(int(self.schedule(index).taken[:done].sum()) for index in range(len(self.problems)))

    def finish(self, records: Records, lengths: Sequence[int]) -> list[tuple[Schedule, dict[str, np.ndarray]]]:
        """Returns the schedules and the diagnostics of the first server steps of the runs.

        Args:
            records: of all server steps.
            lengths: number of them for each run.
        """
        ended = []
        for index, length in enumerate(lengths):
            info: Any = {name: values[index, :length] for name, values in records.info.items()}
            made = cut(self._charged(index, [info]), 0, length)
            info = _narrow(info, made)
            for name, values in self.first.items():
                info[name] = np.concatenate([values[index][None], info[name]])
            ended.append((made, info))
        return ended

    def _charged(self, index: int, infos: Sequence[dict[str, np.ndarray]]) -> Schedule:
        """Returns the schedule of a run, charged for executed local steps if the client is.

        Args:
            index: of the run.
            infos: diagnostics of its server steps so far, each [t, ...].
        """
        problem, made = self.problems[index], self.schedule(index)
        if problem.client.charge != "executed":
            return made
        known = np.concatenate([info["executed_local_steps"] for info in infos])[:, : made.mask.shape[1]]
        executed = np.concatenate([known, made.local_steps[len(known) :]])[made.mask]
        client, run = made.of_arrivals("client"), made.of_arrivals("run")
        planned = np.reshape(problem.client.local_steps(problem.data.counts), (-1, 1))
        steps = np.array(np.broadcast_to(planned, (made.num_clients, int(run.max(initial=0)) + 1)))
        steps[client, run] = executed  # durations change the times of an `order_free` clock, and not its arrivals
        found = schedule_of(problem.clock, made.num_clients, steps, made.server_steps, problem.seed)
        if not np.array_equal(found.of_arrivals("client"), client):
            raise UserError(
                f"the clock {problem.clock.name} says that durations do not change who arrives (`order_free`), but "
                "other clients arrive after fewer local steps; expected order_free = False in its class"
            )
        return found


def _longer(tree: Any, more: int) -> Any:
    """Returns buffers [P, n, ...] with more rows of zeros."""
    return jax.tree.map(lambda leaf: np.pad(leaf, [(0, 0), (0, more)] + [(0, 0)] * (leaf.ndim - 2)), tree)


def _narrow(info: dict[str, np.ndarray], schedule: Schedule) -> dict[str, np.ndarray]:
    """Returns diagnostics without places that no server step of a schedule fills."""
    width = schedule.mask.shape[1]
    arrivals = {name for name, values in info.items() if values.ndim == 2 and not name.startswith("observe_")}
    return {name: values[:, :width] if name in arrivals else values for name, values in info.items()}


def _concatenated(*parts: np.ndarray) -> np.ndarray:
    """Joins records [P, steps, ...]; those of a later piece may have more places for arrivals."""
    if parts[0].ndim > 2 and len({part.shape[2] for part in parts}) > 1:
        most = max(part.shape[2] for part in parts)
        parts = tuple(np.pad(part, [(0, 0), (0, 0), (0, most - part.shape[2])]) for part in parts)
    return np.concatenate(parts, axis=1)


def _overlaid(before: Records, after: Records) -> Records:
    """Returns the records of one chunk in lockstep after two calls."""
    return jax.tree.map(lambda old, new: np.where(expand(after.taken, new), new, old), before, after)
