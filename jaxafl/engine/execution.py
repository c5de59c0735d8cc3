"""Runs as one compiled program: execution of its rows, evaluation, records on the host."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxafl.clock import Schedule
from jaxafl.clock.live import schedule as schedule_of
from jaxafl.clock.schedule import joined, steps_of
from jaxafl.device import compiled, on_device, on_host
from jaxafl.engine.check import check_fit
from jaxafl.engine.devices import on_first_device, placed
from jaxafl.engine.evaluate import Evaluator
from jaxafl.engine.members import initial_members
from jaxafl.engine.problem import Problem, Shapes, stacked
from jaxafl.engine.program import advance
from jaxafl.engine.state import Records, State
from jaxafl.engine.step import observe_members
from jaxafl.options import UserError

Failed = tuple[int, int]  # server step, client


class Execution:
    """P runs as one compiled program.

    Subclasses know the tables that the program reads: `Planned` for runs that share a plan, `Lockstep` for runs with
    plans of their own, `Replying` for servers whose replies decide what happens next.

    Attributes:
        problems: one per run.
        program: static arguments of the compiled program.
        hyperparameters: of all runs.
        state: of the runs, with a leading member axis.
        evaluator: of their models.
        first_observed: results of `observe` for x_0, each [P, ...].
        compile_seconds: seconds of compilation.
        deterministic: see `Speed`.
        ended: server steps up to a limit that is reached, and the limit; `None` before.
    """

    tables: Any
    rows_before: Any  # rows of the tables before each server step at which a call can begin or end
    constant: tuple[Any, ...]  # arguments of every call
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
        members, keys = zip(*map(operator.attrgetter("hyperparameters", "key"), problems), strict=True)
        self.hyperparameters = placed(first.mesh, stacked(members))
        words = on_device(tuple(np.array(on_host(keys)).T))
        arguments = self.hyperparameters, first.device, placed(first.mesh, words)
        few = self.program._replace(shapes=Shapes(shapes.lanes, shapes.ring, shapes.store))
        initialise, _ = compiled(initial_members, (few, shared), arguments, once=True)
        check_fit(first, self.program, initialise.out_info)
        self.state: State = placed(first.mesh, initialise(*arguments))
        self.evaluator = Evaluator(first, len(problems), first.device, self.state.model)
        self.compile_seconds = self.evaluator.seconds
        self.first_observed: dict[str, np.ndarray] = {}
        if first.recording.observe is not None:
            params = self.state.model.params if first.mesh is None else on_first_device(self.state.model.params)
            observe, _ = compiled(observe_members, (first.program(),), (params,), once=True)
            self.first_observed = on_host(observe(params))

    # ---- what subclasses know

    def enter(self, start: int, stop: int) -> int:
        """Prepares a call that begins at server step `start` and should end at `stop`; returns its end.

        A call ends earlier at the end of a window (`Planned`), or later at the next border (`Lockstep`).
        """
        return stop

    def resume(self, steps: int, records: Sequence[Records]) -> None:
        """Brings the clock to a server step, up to which the state has been restored and the records are known."""

    def build(self, shapes: Shapes) -> None:
        """Compiles the program for buffers of these shapes."""
        raise NotImplementedError

    def schedules_of(self, index: int) -> Sequence[Schedule]:
        """Returns the schedule of a run, as far as it is computed, in parts of consecutive server steps."""
        raise NotImplementedError

    # ---- execution

    @property
    def shapes(self) -> Shapes:
        """The static shapes of the program."""
        return self.program.shapes

    def compile(self, tables: Any, shapes: Shapes) -> None:
        """Compiles the program for tables on the device."""
        self.tables, self.program = placed(self.program.mesh, tables), self.program._replace(shapes=shapes)
        self.constant = self.hyperparameters, self.problems[0].device, self.tables
        arguments = (*self.constant, self.state, *[on_device(np.int32(0))] * 3)
        self.compiled, seconds = compiled(advance, (self.program,), arguments, (3,), deterministic=self.deterministic)
        self.compile_seconds += seconds

    def advance(self, start: int, stop: int) -> Records:
        """Makes the server steps start .. stop - 1, of one chunk, and returns their records [P, steps, ...] on the
        host."""
        if (end := self.enter(start, stop)) < stop:
            return self.joined([self.advance(start, end), self.advance(end, stop)])
        first, last = self.rows_before[start], self.rows_before[stop]
        if (last - first) % self.shapes.rows_per_check:  # where an integer `checkpoint_every` ends a call
            self.compile(self.tables, self.shapes._replace(rows_per_check=1))
        numbers = map(np.int32, (first, last, start))
        self.state, records = self.compiled(*self.constant, self.state, *numbers)
        return jax.tree.map(operator.itemgetter(np.s_[:, : stop - start]), on_host(records))

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
        return jax.tree.map(_concatenated, *(pieces or [self.advance(0, 0)]))

    # ---- results

    def model(self, index: int) -> tuple[Any, Any]:
        """Returns parameters and non-trainable state of a run, on the host."""
        return tuple(jax.tree.map(lambda leaf: np.array(leaf[index]), on_host(self.state.model[:2])))

    def arrivals(self, index: int, start: int, stop: int, records: Sequence[Records]) -> dict[str, np.ndarray]:
        """Returns records of server steps, name -> [steps, ...]: `time`, `client_id`, `staleness`, diagnostics.

        Args:
            index: of the run.
            start, stop: the server steps.
            records: of all chunks up to this one, of which it is the last.
        """
        if not stop:
            return {}
        infos = [{name: values[index] for name, values in part.info.items()} for part in records]
        made, info = self._records_of(index, start, infos)
        found = {"time": made.time, "client_id": np.where(made.mask, made.client, -1), "staleness": made.staleness}
        return found | info

    def failures(self) -> list[Failed | None]:
        """Returns the server step and the client of each run's failure."""
        pairs = np.stack(on_host(self.state.failure), axis=1).tolist()
        return [(step, client) if step >= 0 else None for step, client in pairs]

    def updates(self, done: int) -> int:
        """Returns the client updates that the first server steps have consumed."""
        every = itertools.chain.from_iterable(map(self.schedules_of, range(len(self.problems))))
        return sum(int(part.taken[: max(done - part.start, 0)].sum()) for part in every)

    def finish(self, index: int, records: Records, length: int) -> tuple[Schedule, dict[str, np.ndarray]]:
        """Returns the schedule and the diagnostics of the first server steps of a run.

        Args:
            index: of the run.
            records: of all server steps.
            length: number of the first ones.
        """
        infos = jax.tree.map(operator.itemgetter(np.s_[index, :length]), records.info)
        made, info = self._records_of(index, 0, [infos])
        for name, values in self.first_observed.items():
            info[name] = np.concatenate([values[index][None], info[name]])
        return made, info

    def _records_of(self, index: int, start: int, infos: Sequence[dict[str, Any]]) -> tuple[Schedule, dict[str, Any]]:
        """Returns the schedule and the diagnostics of the server steps of the last of `infos`, the first of which is
        `start`, without places for arrivals that none of them fills."""
        info, parts = infos[-1], self.schedules_of(index)
        if self.problems[index].client.charge == "executed" and "executed_local_steps" in info:  # else as planned
            parts = [self._charged(index, infos, joined(parts))]
        made = steps_of(parts, start, start + len(info["delta_norm"]))
        width, shown = made.mask.shape[1], {}
        for name, values in info.items():
            of_arrivals = values.ndim == 2 and not name.startswith("observe_")
            shown[name] = values[:, :width] if of_arrivals else values
        return made, shown

    def _charged(self, index: int, infos: Sequence[dict[str, np.ndarray]], made: Schedule) -> Schedule:
        """Returns the schedule of a run, charged for executed local steps.

        Args:
            index: of the run.
            infos: diagnostics of its server steps so far, each [t, ...].
            made: its schedule, charged for planned ones.
        """
        problem = self.problems[index]
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


def _concatenated(*parts: np.ndarray) -> np.ndarray:
    """Joins records [P, steps, ...]; those of a later piece may have more places for arrivals."""
    sizes = np.array([*map(np.shape, parts)])
    if (sizes[:, 2:] != sizes[0, 2:]).any():
        more = sizes[:, 2].max() - sizes[:, 2]
        parts = tuple(np.pad(part, [(0, 0), (0, 0), (0, n)]) for part, n in zip(parts, more, strict=True))
    return np.concatenate(parts, axis=1)
