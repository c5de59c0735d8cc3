"""What the host does: it carries runs from chunk to chunk of server steps, and evaluates and reports between them."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.clock import Schedule
from jaxafl.clock.schedules import first_steps, recharged, schedule_of
from jaxafl.device import compiled, on_device, on_exhaustion
from jaxafl.device.buffers import read
from jaxafl.engine.batched import evaluate_members, initial_members, observe_members
from jaxafl.engine.problem import Numbers, Problem, Program, stacked
from jaxafl.engine.state import Records, State, Version
from jaxafl.engine.validate import check_fit
from jaxafl.options import UserError
from jaxafl.progress import Reporter

Failed = tuple[int, int]  # server step, client
_EVALUATION_BATCH = 500


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
        eval_every: server steps between evaluations.
    """

    schedule: Schedule
    records: dict[str, np.ndarray]
    evaluations: dict[str, np.ndarray]
    eval_step: np.ndarray
    failure: Failed | None
    params: Any
    model_state: Any
    seconds: dict[str, float]
    eval_every: int

    def __repr__(self) -> str:
        return f"Trained({self.schedule!r}, evaluated {len(self.eval_step)} times, failure={self.failure})"


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
        compiled: the program that takes server steps; `constant`: its arguments before the state.
        around: what it is called in.
        check: raises when something went wrong.
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
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    check: Callable[[State], Any] = lambda state: None

    def compile(self, function: Callable[..., tuple[State, Records]], constant: tuple[Any, ...]) -> Execution:
        """Adds the program that takes server steps: `function(program, *constant, state, start, stop)`."""

        arguments = (*constant, self.state, jnp.int32(0), jnp.int32(0))
        self.compiled, seconds = compiled(function, (self.program,), arguments, donate=(len(constant),))
        self.constant, self.compile_seconds = constant, self.compile_seconds + seconds
        return self

    def advance(self, start: int, stop: int) -> Records:
        """Takes the server steps start .. stop - 1; their records on the host, each [P, stop - start, ...]."""
        sizes = {name: getattr(self.program, name) for name in ("lanes", "chunk", "micro_batch")}
        with on_exhaustion(**sizes), self.around():
            self.state, records = self.compiled(*self.constant, self.state, jnp.int32(start), jnp.int32(stop))
            self.check(self.state)
            return jax.tree.map(lambda leaf: np.asarray(leaf)[:, : stop - start], jax.device_get(records))

    def evaluate(self) -> dict[str, np.ndarray]:
        """Metrics of the models, each [P]; where it is kept, of the average of all versions too (`average_...`)."""
        found = dict(jax.device_get(self.evaluate_model(self.state.model)))
        if self.state.average is not None:
            average = jax.device_get(self.evaluate_model(self.state.model._replace(params=self.state.average)))
            found |= {f"average_{name}": values for name, values in average.items()}
        return found

    def failures(self) -> list[Failed | None]:
        """Where each run failed."""
        steps, clients = jax.device_get(self.state.failure)
        return [(int(step), int(client)) if step >= 0 else None for step, client in zip(steps, clients, strict=True)]

    def updates(self, done: int) -> int:
        """Client updates that the first server steps have taken."""
        if self.schedules is None:
            return done * self.program.capacity * len(self.problems)
        return sum(int(schedule.mask[:done].sum()) for schedule in self.schedules)

    def finish(self, records: Records) -> list[tuple[Schedule, dict[str, np.ndarray]]]:
        """The schedules and the diagnostics of the runs, up to their failures."""
        ended = []
        for index, (problem, failure) in enumerate(zip(self.problems, self.failures(), strict=True)):
            info, event, runs_begun = jax.tree.map(lambda values, index=index: values[index], records)
            made = (
                self.schedules[index]
                if self.schedules is not None
                else schedule_of(problem.clock, problem.data.num_clients, event, runs_begun)
            )
            if failure:
                made = first_steps(made, failure[0] + 1)
            info = {name: values[: made.server_steps] for name, values in info.items()}
            for name, values in self.first.items():
                info[name] = np.concatenate([values[index][None], info[name]])
            if self.schedules is not None and problem.client.charge == "executed":
                steps = problem.client.local_steps(problem.data.counts)
                made = recharged(made, problem.clock, steps, info["executed_local_steps"], problem.seed)
            ended.append((made, info))
        return ended


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
    device, (numbers, varies) = problems[0].device, stacked([problem.numbers for problem in problems])
    keys = on_device(tuple(np.stack([np.asarray(problem.key[word]) for problem in problems]) for word in (0, 1)))
    program = problems[0].program(members=len(problems), varies=varies, **shapes)
    check_fit(problems[0], program)
    arguments = (numbers, device, keys)
    make, _ = compiled(initial_members, (program, shared), arguments, once=True)
    state = make(*arguments)
    given = (device.frozen, device.test)
    batch = min(_EVALUATION_BATCH, len(device.test[1]))
    evaluate, seconds = compiled(evaluate_members, (program, batch), (*given, state.model))
    watch, _ = compiled(observe_members, (program,), (state.model.params,), once=True)
    first = jax.device_get(watch(state.model.params))
    score = lambda model: evaluate(*given, model)  # noqa: E731
    return Execution(problems, program, numbers, state, score, seconds, first, schedules)


def run_to_end(execution: Execution, server_steps: int, every: int, reporter: Reporter, begun: float) -> list[Trained]:
    """Runs to the end, evaluating every `every` server steps.

    Args:
        execution: the runs.
        server_steps: T.
        every: server steps between evaluations.
        reporter: told of every chunk.
        begun: `time.perf_counter()` when the preparation began.
    """
    ready = time.perf_counter()
    evaluations, eval_step, records, done = [_finite(execution.evaluate())], [0], [], 0
    with reporter:
        while done < server_steps and not all(execution.failures()):
            stop = min(done + every, server_steps)
            records.append(execution.advance(done, stop))
            done = stop
            eval_step.append(done)
            evaluations.append(execution.evaluate())
            latest = {name: float(np.mean(values)) for name, values in evaluations[-1].items()}
            reporter.update(done, execution.updates(done) / (time.perf_counter() - ready), latest)
    seconds = {
        "prepare_seconds": ready - begun - execution.compile_seconds,
        "compile_seconds": execution.compile_seconds,
        "run_seconds": time.perf_counter() - ready,
    }
    joined = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *records)
    ended = []
    for index, (failure, (made, info)) in enumerate(zip(execution.failures(), execution.finish(joined), strict=True)):
        # a model that came after a failure is no result
        shown = [place for place, step in enumerate(eval_step) if step <= (failure[0] if failure else server_steps)]
        metrics = {name: np.asarray([evaluations[p][name][index] for p in shown]) for name in evaluations[0]}
        model, steps = _member(execution.state.model, index), np.asarray(eval_step)[shown]
        ended.append(Trained(made, info, metrics, steps, failure, model.params, model.model_state, seconds, every))
    return ended


def _member(model: Version, index: int) -> Version:
    arguments = (model, jnp.int32(index))
    return compiled(read, (), arguments, once=True)[0](*arguments)


def _finite(evaluation: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The evaluation of initial models; raises `ValueError` where their loss is not finite."""
    if not np.all(np.isfinite(evaluation["loss"])):
        raise UserError(
            "the loss of the initial model on the test set is not finite: a label is outside the model's outputs, a "
            "token outside its vocabulary, a sample is not finite, or the initial parameters are too large"
        )
    return evaluation
