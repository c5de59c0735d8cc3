"""What a sweep will take, from one of its batches."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from jaxafl.device import buffers, devices_of
from jaxafl.engine.problem import Speed
from jaxafl.simulation import evaluation_interval
from jaxafl.sweep.axes import axes_of
from jaxafl.sweep.work import Work

_LONG_ENOUGH = 0.5  # seconds of server steps that are timed


class Outlook(NamedTuple):
    """What a sweep will take.

    Attributes:
        members: of the sweep.
        programs: that are compiled.
        batches: of members that advance together.
        together: members of the largest batch.
        devices: that work at once.
        bytes: of the arrays of one device.
        compile_seconds: of one program.
        seconds: of all server steps, without evaluations, if every batch takes what the first one does.
    """

    members: int
    programs: int
    batches: int
    together: int
    devices: int
    bytes: int
    compile_seconds: float
    seconds: float


def outlook(
    simulation: Any,
    axes: Mapping[Any, Iterable[Any]],
    server_steps: int,
    *,
    eval_every: int | None = None,
    seed: int = 0,
    together: int | None = None,
    lanes: int | None = None,
    chunk: int | None = None,
    devices: Any = None,
    workers: int = 1,
) -> Outlook:
    """Compiles and times the first server steps of the first batch of a sweep.

    Args:
        simulation, axes, server_steps, eval_every, seed, together, lanes, chunk, devices: as in `sweep`.
        workers: of an executor, each as fast as this process.
    """
    first, varied = axes_of(simulation, axes)
    every, there = evaluation_interval(eval_every, server_steps), devices_of(devices)
    speed = Speed(lanes, chunk, devices=tuple(there))
    work = Work(first, varied, server_steps, every, seed, together, speed, first.recording(), ())
    batches = work.schedules.batches(together, max(1, len(there)))
    execution = work.execution(batches[0])
    held = buffers.num_bytes((execution.state, execution.problems[0].device._replace(validation=None)))
    total = server_steps if execution.rows_before is None else int(execution.rows_before[-1])
    chunk_end = every if execution.rows_before is None else int(execution.rows_before[1])
    done, taken, pace = 0, 0.0, 0.0
    while done < chunk_end and taken < _LONG_ENOUGH:
        until, begun = min(2 * done + 1, chunk_end), time.perf_counter()
        execution.advance(done, until)
        taken = time.perf_counter() - begun
        done, pace = until, taken / (until - done)
    apart = max(map(len, batches)) == 1  # else all devices share each batch
    at_once = min(len(batches), max(1, len(there) if apart else 1, workers))
    programs = len({program for program, _ in work.schedules.shared})
    return Outlook(
        members=len(work.members),
        programs=programs,
        batches=len(batches),
        together=max(map(len, batches)),
        devices=at_once if apart else max(at_once, len(there)),
        bytes=held,
        compile_seconds=execution.compile_seconds,
        seconds=pace * total * len(batches) / at_once,
    )
