"""What a sweep will take, from one of its batches."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from jaxafl.device import buffers, devices_of
from jaxafl.engine.problem import Speed
from jaxafl.simulation import evaluation_interval
from jaxafl.sweep.axes import axes_of
from jaxafl.sweep.devices import Devices, at_once
from jaxafl.sweep.work import Work

_LONG_ENOUGH = 0.5  # seconds of server steps that are timed


class Outlook(NamedTuple):
    """What a sweep will take.

    Attributes:
        members: of the sweep.
        programs: that are compiled.
        batches: of members that advance together.
        together: members of the largest batch.
        devices: that work at once, or threads of a CPU.
        bytes: of the arrays of one batch.
        compile_seconds: of one program.
        seconds: of all server steps, without evaluations, if every batch takes what the first ones do, which are timed
            side by side where threads of a CPU share its cores.
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
    """Compiles and times the first server steps of the first batch of a sweep, or of those that threads run at once.

    Args:
        simulation, axes, server_steps, eval_every, seed, together, lanes, chunk, devices: as in `sweep`.
        workers: of an executor, each as fast as this process.
    """
    first, varied = axes_of(simulation, axes)
    every, there = evaluation_interval(eval_every, server_steps), devices_of(devices)
    speed = Speed(lanes, chunk, devices=tuple(there))
    work = Work(first, varied, server_steps, every, seed, together, speed, first.recording(), ())
    batches = work.schedules.batches(together, max(1, len(there)))
    apart = max(map(len, batches)) == 1 or len(there) < 2  # else all devices share each batch
    count = workers if workers > 1 else at_once(devices, there, work.schedules.bytes()) if apart else 1
    count = min(len(batches), count)
    side_by_side = count if workers == 1 and len(there) < 2 else 1  # devices do not slow each other down
    executions = [work.execution(places) for places in batches[:side_by_side]]
    execution, threads = executions[0], Devices(there[:1], side_by_side)
    held = buffers.num_bytes((execution.state, execution.problems[0].device._replace(validation=None)))
    total = execution.row_of(server_steps)
    chunk_end = min(one.row_of(every) for one in executions)
    done, taken, pace = 0, 0.0, 0.0
    while done < chunk_end and taken < _LONG_ENOUGH:
        until, begun = min(2 * done + 1, chunk_end), time.perf_counter()
        for future in [threads.submit(one.advance, done, until) for one in executions]:
            future.result()
        taken = time.perf_counter() - begun
        done, pace = until, taken / (until - done)
    threads.close()
    programs = len({program for program, _ in work.schedules.shared})
    return Outlook(
        members=len(work.members),
        programs=programs,
        batches=len(batches),
        together=max(map(len, batches)),
        devices=count if apart else max(count, len(there)),
        bytes=held,
        compile_seconds=execution.compile_seconds,
        seconds=pace * total * len(batches) / count,
    )
