"""The host's loop: advances runs from chunk to chunk of server steps, evaluates between them, and calls hooks."""

from __future__ import annotations

import dataclasses
import time
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from jaxafl.client import filled
from jaxafl.clock import Schedule
from jaxafl.device import compiled, on_device
from jaxafl.device.buffers import read
from jaxafl.engine.execution import Execution, Failed
from jaxafl.engine.state import Records, Version
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
        row: rows executed so far.
        eval_step: server steps of the evaluated models.
        evaluations: their metrics, each [P].
        records: of the server steps, one entry per chunk.
        pieces: of the current chunk, one entry per call.
        stops: server step and reason of each stopped run.
    """

    row: int = 0
    eval_step: list[int] = dataclasses.field(default_factory=list)
    evaluations: list[dict[str, np.ndarray]] = dataclasses.field(default_factory=list)
    records: list[Records] = dataclasses.field(default_factory=list)
    pieces: list[Records] = dataclasses.field(default_factory=list)
    stops: list[tuple[int, str] | None] = dataclasses.field(default_factory=list)


class RunHook(Protocol):
    """Receives progress events. An exception of a hook stops the runs and carries their results as `error.trained`.

    Attributes:
        seconds: the longest duration of a piece.
        steps: server steps at whose multiples a piece ends; `None` for any.
    """

    seconds: float
    steps: int | None

    def begin(self, execution: Execution, progress: Progress) -> None:
        """Called before the first evaluation; may restore both from a checkpoint."""

    def piece(self, execution: Execution, progress: Progress) -> None:
        """Called after some seconds of server steps."""

    def chunk(self, execution: Execution, progress: Progress) -> Sequence[str | None]:
        """Called after every evaluation, that of x_0 included. Returns the reason to stop each run, or None."""

    def settled(self, execution: Execution, progress: Progress) -> None:
        """Called after `chunk`, when the stopped runs are known."""


def run_to_end(execution: Execution, server_steps: int, every: int, hook: RunHook, begun: float) -> list[Trained]:
    """Runs to the end, evaluating every `every` server steps.

    A chunk, the server steps between two evaluations, is executed in pieces of some seconds, which change no result.

    Args:
        execution: the runs.
        server_steps: T.
        every: server steps between evaluations.
        hook: called after every piece and chunk.
        begun: `time.perf_counter()` at the beginning of the preparation.
    """
    ready = time.perf_counter()
    progress = Progress(stops=[None] * len(execution.problems))
    size = block = execution.shapes.rows_per_check
    compiled_before = execution.compile_seconds

    def call(event: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return event(*(arguments or (execution, progress)))
        except BaseException as error:
            if progress.evaluations:
                error.trained = results()  # type: ignore[attr-defined]
            raise

    def results() -> list[Trained]:
        seconds = {
            "prepare_seconds": ready - begun - compiled_before,
            "compile_seconds": execution.compile_seconds,
            "run_seconds": time.perf_counter() - ready - (execution.compile_seconds - compiled_before),
        }
        return _ended(execution, progress, seconds, every)

    def evaluate(step: int) -> None:
        found = execution.evaluate()
        progress.evaluations.append(_shares(found) if step else _finite(_shares(found)))
        progress.eval_step.append(step)
        for run, why in enumerate(call(hook.chunk)):
            progress.stops[run] = progress.stops[run] or ((step, why) if why else None)
        call(hook.settled)

    call(hook.begin)
    if progress.row:
        call(execution.resume, progress.row, [*progress.records, *progress.pieces])
    if not progress.eval_step:
        evaluate(0)
    while (start := progress.eval_step[-1]) < server_steps and not over(execution, progress):
        stop = min(start + every, server_steps)
        end = execution.row_of(stop)
        while progress.row < end and not all(execution.failures()):
            until = min(progress.row + size, end)
            if hook.steps:
                until = min(until, execution.row_of((execution.step_of(progress.row) // hook.steps + 1) * hook.steps))
            until = call(execution.reach, progress.row, until)
            before = time.perf_counter()
            progress.pieces.append(execution.advance(progress.row, until))
            if execution.ended is not None:  # a limit is known to be reached before the next server step
                within, why = execution.ended
                server_steps = stop = until = end = within
                progress.stops = [one or (within, why) for one in progress.stops]
            pace = (time.perf_counter() - before) / max(until - progress.row, 1)
            progress.row = until
            size = max(block, min(size * _GROWTH, int(hook.seconds / pace)) // block * block)
            call(hook.piece)
        progress.records.append(execution.of_chunk(progress.pieces, stop - start))
        progress.pieces = []
        if stop > start:  # else a limit lies within the next server step
            evaluate(stop)
    return results()


def over(execution: Execution, progress: Progress) -> bool:
    """Returns True if all runs have failed or were stopped."""
    return all(failure or stop for failure, stop in zip(execution.failures(), progress.stops, strict=True))


def _ended(execution: Execution, progress: Progress, seconds: dict[str, float], every: int) -> list[Trained]:
    """Returns the runs up to their failure or stop; in lockstep, without a chunk that is not complete."""
    records = execution.joined([*progress.records, *(piece for piece in progress.pieces if piece.taken is None)])
    done = jax.tree.leaves(records)[0].shape[1]
    pairs = list(zip(execution.failures(), progress.stops, strict=True))
    # a run that diverges after its stop, while other members continue, does not count as failed
    failures = [None if failure and stop and failure[0] >= stop[0] else failure for failure, stop in pairs]
    lengths = [
        min(failure[0] + 1 if failure else done, stop[0] if stop else done)
        for failure, stop in zip(failures, progress.stops, strict=True)
    ]
    found = execution.finish(records, lengths)
    ended = []
    for index, (schedule, info) in enumerate(found):
        failure, stop = failures[index], progress.stops[index]
        # a model that came after a failure is no result
        last = failure[0] if failure else lengths[index]
        shown = [place for place, step in enumerate(progress.eval_step) if step <= last]
        found_by = [progress.evaluations[place] for place in shown]
        metrics = {name: np.asarray([one[name][index] for one in found_by]) for name in progress.evaluations[0]}
        model, steps = _member(execution.state.model, index)[:2], np.asarray(progress.eval_step)[shown]
        notes: Mapping[str, Any] = {"stopped": stop[1]} if stop and not failure else {}
        of_sets = dict(execution.problems[index].recording.metrics)
        ended.append(Trained(schedule, info, metrics, steps, failure, *model, seconds, every, notes, metrics=of_sets))
        if execution.problems[index].client.personal is not None:
            personal = jax.tree.map(lambda leaf, index=index: leaf[index], execution.state.memory.tree.personal)
            ended[-1] = ended[-1]._replace(personal=personal)
    return ended


def _member(model: Version, index: int) -> Version:
    arguments = (model, on_device(np.int32(index)))
    return compiled(read, (), arguments, once=True)[0](*arguments)


def _shares(evaluation: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns an evaluation; raises `ValueError` if an accuracy is more than 1, as figures show shares in percent."""
    for name, values in evaluation.items():
        if name.endswith("accuracy") and np.any(values > 1.001):  # a mean in float32 may exceed 1 by rounding
            raise UserError(
                f"{name} is {np.nanmax(values):.4g}, and an accuracy is a share of samples, from 0 to 1, which figures "
                "and tables show in percent; divide it by 100, or give the metric another name"
            )
    return evaluation


def _finite(evaluation: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the evaluation of initial models; raises `ValueError` if their loss is not finite.

    A label outside the outputs of a loss of Optax gives a loss of NaN and a finite gradient in a wrong direction.
    """
    if not np.all(np.isfinite(evaluation["loss"])):
        raise UserError(
            f"the loss of the initial model on the test set is not finite ({np.sum(evaluation['loss'])}): a label is "
            "outside the model's outputs, a token outside its vocabulary, or a sample or a parameter is not finite"
        )
    return evaluation
