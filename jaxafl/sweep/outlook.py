"""Estimates of the cost of a sweep, from its first batches."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from jaxafl.device import buffers, devices_of
from jaxafl.engine.problem import Speed
from jaxafl.sweep.axes import axes_of
from jaxafl.sweep.devices import DeviceExecutor, at_once
from jaxafl.sweep.members import Work

_LONG_ENOUGH = 0.5  # seconds of server steps that are timed


class Outlook(NamedTuple):
    """The estimated cost of a sweep.

    Attributes:
        members: number of members.
        programs: number of programs to compile.
        batches: number of batches.
        together: members of the largest batch.
        devices: devices or threads of a CPU that run concurrently.
        bytes: bytes of the arrays of one batch.
        compile_seconds: compile time of one program.
        seconds: time of all server steps without evaluations, extrapolated from the first concurrent batches.
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
    """Estimates the cost of a sweep: compiles its first concurrent batches and times their first server steps.

    Args:
        simulation, axes, server_steps, eval_every, seed, together, lanes, chunk, devices: as in `sweep`.
        workers: number of workers of an executor, each as fast as this process.
    """
    first, varied = axes_of(simulation, axes)
    chosen = devices_of(devices)
    speed = Speed(lanes, chunk, devices=tuple(chosen))
    work = Work(first, varied, server_steps, eval_every, seed, together, speed, first.recording())
    batches = work.batches(max(1, len(chosen)))
    alone = workers == 1
    count = min(len(batches), at_once(devices, chosen, work.bytes(range(len(work.members)))) if alone else workers)
    concurrent = count if alone and len(chosen) < 2 else 1  # threads of a CPU slow each other down
    executions = [work.execution(places) for places in batches[:concurrent]]
    execution = executions[0]
    threads = DeviceExecutor(chosen[:1], concurrent)
    held = buffers.num_bytes((execution.state, execution.problems[0].device._replace(validation=None)))
    end, done, taken, pace = work.every, 0, 0.0, 0.0
    while done < end and taken < _LONG_ENOUGH:
        until = min(2 * done + 1, end)
        begun = time.perf_counter()
        for future in [threads.submit(one.advance, done, until) for one in executions]:
            future.result()
        taken = time.perf_counter() - begun
        pace, done = taken / (until - done), until
    threads.close()
    return Outlook(
        members=len(work.members),
        programs=len({program for program, _ in work.shared}),
        batches=len(batches),
        together=max(map(len, batches)),
        devices=count,
        bytes=held,
        compile_seconds=execution.compile_seconds,
        seconds=pace * server_steps * len(batches) / count,
    )
