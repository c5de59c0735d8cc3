"""The host's loop: advances runs from chunk to chunk of server steps, evaluates between them, and calls hooks."""

from __future__ import annotations

import dataclasses
import functools
import operator
import time
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxafl.client import filled
from jaxafl.clock import Schedule
from jaxafl.device import on_device, on_host
from jaxafl.engine.execution import Execution, Failed
from jaxafl.engine.state import Records
from jaxafl.models.metrics import Metric
from jaxafl.options import UserError, check_whole

_GROWTH = 8  # of one piece to the next, until their length is known


class Trained(NamedTuple):
    """A run that has ended.

    Attributes:
        schedule: who arrived when.
        records: diagnostics of the server steps, each [T, ...]; of `observe`, of the versions, each [T + 1, ...].
        evaluations: metrics of the evaluated models, each [E], of clients or test sets [E, ...].
        eval_step: int [E], server steps of the evaluated models.
        failure: the server step at which the parameters stopped being finite, and the client whose update did it.
        notes: further attributes of the result: why it was `stopped`, with which other versions it was `resumed`.
        params: the last parameters.
        model_state: the last non-trainable model state.
        seconds: wall-clock seconds of preparing, compiling and running, by the names of attributes of a result.
        eval_every: server steps between evaluations.
        dataset: the result of `Simulation.run`, in what `Simulation.train` returns.
        metrics: metrics of whole sets by name.
        personal: personal parameters of all clients, each leaf [N, ...], with `Client(personal=...)`.
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
    notes: Mapping[str, Any] = types.MappingProxyType({})
    dataset: Any = None
    metrics: Mapping[str, Metric] = types.MappingProxyType({})
    personal: Any = None

    def client_params(self, client: int) -> Any:
        """Returns the parameters of a client's model: the last ones with its personal parameters.

        Raises:
            ValueError: there are no personal parameters, or no such client.
        """
        if self.personal is None:
            raise UserError("client_params: there are no personal parameters; use params, or Client(personal=...)")
        check_whole("client_params", "client", client, least=0, most=self.schedule.num_clients - 1)
        return filled(jax.tree.map(lambda leaf: leaf[client], self.personal), self.params)

    def __repr__(self) -> str:
        return f"Trained({self.schedule!r}, evaluated {len(self.eval_step)} times, failure={self.failure})"


@dataclasses.dataclass
class Progress:
    """Host-side progress of an execution. Together with the device `State` it is a complete checkpoint.

    Attributes:
        step: server steps made so far.
        eval_step: server steps of the evaluated models.
        evaluations: their metrics, each [P].
        records: of the server steps, one entry per chunk.
        pieces: of the current chunk, one entry per call.
        stops: server step and reason of each stopped run.
    """

    step: int = 0
    eval_step: list[int] = dataclasses.field(default_factory=list)
    evaluations: list[dict[str, np.ndarray]] = dataclasses.field(default_factory=list)
    records: list[Records] = dataclasses.field(default_factory=list)
    pieces: list[Records] = dataclasses.field(default_factory=list)
    stops: list[tuple[int, str] | None] = dataclasses.field(default_factory=list)


def run_to_end(execution: Execution, server_steps: int, every: int, hook: Any, begun: float) -> list[Trained]:
    """Runs to the end, evaluating every `every` server steps.

    A chunk, the server steps between two evaluations, is executed in pieces of some seconds, which change no result.

    Args:
        execution: the runs.
        server_steps: T.
        every: server steps between evaluations.
        hook: has `seconds`, the longest duration of a piece, and `steps`, at whose multiples a piece ends (`None` for
            any). Its methods take the execution and the progress: `begin` before the first evaluation, where both may
            be restored; `piece` after each piece; `chunk` after every evaluation, which returns for each run the reason
            to stop it, or `None`; then `evaluated`. An exception of one carries the results as `error.trained`.
        begun: `time.perf_counter()` at the beginning of the preparation.
    """
    since = time.perf_counter() - execution.compile_seconds  # `_ended` subtracts the compile seconds up to its own call
    progress = Progress(stops=[None] * len(execution.problems))
    size = block = execution.shapes.rows_per_check
    results = functools.partial(_ended, execution, progress, every, begun, since)

    def call(event: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return event(*(arguments or (execution, progress)))
        except BaseException as error:
            if progress.evaluations:
                error.trained = results()  # type: ignore[attr-defined]
            raise

    def evaluate(step: int) -> None:
        progress.evaluations.append(_checked(execution.evaluator.of_state(execution.state), step))
        progress.eval_step.append(step)
        for run, why in enumerate(call(hook.chunk)):
            progress.stops[run] = progress.stops[run] or ((step, why) if why else None)
        call(hook.evaluated)

    hook.begin(execution, progress)
    if progress.step:
        call(execution.resume, progress.step, [*progress.records, *progress.pieces])
    if not progress.eval_step:
        evaluate(0)
    while (start := progress.eval_step[-1]) < server_steps and not over(execution, progress):
        stop = min(start + every, server_steps)
        while progress.step < stop and not all(execution.failures()):
            until = min(progress.step + size, stop)
            if hook.steps:
                until = min(until, (progress.step // hook.steps + 1) * hook.steps)
            until = call(execution.enter, progress.step, until)
            before = time.perf_counter()
            progress.pieces.append(execution.advance(progress.step, until))
            if execution.ended is not None:  # a limit is known to be reached before the next server step
                within, why = execution.ended
                server_steps = stop = until = within
                progress.stops = [one or (within, why) for one in progress.stops]
            pace = (time.perf_counter() - before) / max(until - progress.step, 1)
            progress.step = until
            size = max(block, min(size * _GROWTH, int(hook.seconds / pace)) // block * block)
            call(hook.piece)
        progress.records.append(execution.joined(progress.pieces))
        progress.pieces = []
        if stop > start:  # else a limit lies within the next server step
            evaluate(stop)
    return results()


def over(execution: Execution, progress: Progress) -> bool:
    """Returns True if all runs have failed or were stopped."""
    return all(map(any, zip(execution.failures(), progress.stops, strict=True)))


def _ended(execution: Execution, progress: Progress, every: int, begun: float, since: float) -> list[Trained]:
    """Returns the runs up to their failure or stop.

    Args:
        execution, progress, every, begun: see `run_to_end`.
        since: the end of the preparation, minus the seconds of compilation until then.
    """
    seconds = {
        "prepare_seconds": since - begun,
        "compile_seconds": execution.compile_seconds,
        "run_seconds": time.perf_counter() - since - execution.compile_seconds,
    }
    records = execution.joined([*progress.records, *progress.pieces])
    done = jax.tree.leaves(records)[0].shape[1]
    models, ended = on_host(execution.state.model[:2]), []
    for index, (failure, stop) in enumerate(zip(execution.failures(), progress.stops, strict=True)):
        if failure and stop and failure[0] >= stop[0]:
            failure = None  # a run that diverges after its stop, while other members continue, has not failed
        length = min(failure[0] + 1 if failure else done, stop[0] if stop else done)
        schedule, info = execution.finish(index, records, length)
        # a model that came after a failure is no result
        shown = int(np.searchsorted(progress.eval_step, failure[0] if failure else length, side="right"))
        found, own = progress.evaluations[:shown], operator.itemgetter(index)
        problem, personal = execution.problems[index], None
        if problem.client.personal is not None:
            personal = jax.tree.map(own, execution.state.memory.tree.personal)
        params, model_state = on_device(jax.tree.map(own, models))
        one = Trained(
            schedule=schedule,
            records=info,
            evaluations={name: np.stack([*map(operator.itemgetter(name), found)])[:, index] for name in found[0]},
            eval_step=np.asarray(progress.eval_step[:shown]),
            failure=failure,
            params=params,
            model_state=model_state,
            seconds=seconds,
            eval_every=every,
            notes={"stopped": stop[1]} if stop and not failure else {},
            metrics=dict(problem.recording.metrics),
            personal=personal,
        )
        ended.append(one)
    return ended


def _checked(evaluation: dict[str, np.ndarray], step: int) -> dict[str, np.ndarray]:
    """Returns an evaluation; raises `ValueError` for an accuracy in percent, or a loss of x_0 that is not finite.

    A label outside the outputs of a loss of Optax gives a loss of NaN and a finite gradient in a wrong direction.
    """
    for name, values in evaluation.items():
        if name.endswith("accuracy") and np.any(values > 1.001):  # a mean in float32 may exceed 1 by rounding
            raise UserError(
                f"{name} is {np.nanmax(values):.4g}, and an accuracy is a share of samples, from 0 to 1, which figures "
                "and tables show in percent; divide it by 100, or give the metric another name"
            )
    if not step and not np.all(np.isfinite(evaluation["loss"])):
        raise UserError(
            f"the loss of the initial model on the test set is not finite ({np.sum(evaluation['loss'])}): a label is "
            "outside the model's outputs, a token outside its vocabulary, or a sample or a parameter is not finite"
        )
    return evaluation
