"""Estimates of the cost of a sweep, from its first batch."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from jaxafl.sweep.members import Work
from jaxafl.sweep.run import at_once

_LONG_ENOUGH = 0.5  # seconds of server steps that are timed


class Outlook(NamedTuple):
    """The estimated cost of a sweep.

    Attributes:
        members: number of members.
        programs: number of programs to compile.
        batches: number of batches.
        together: members of the largest batch.
        devices: devices or threads of a CPU that run concurrently.
        compile_seconds: compile time of one program.
        seconds: time of all server steps without evaluations, extrapolated from the first batch alone.
    """

    members: int
    programs: int
    batches: int
    together: int
    devices: int
    compile_seconds: float
    seconds: float


def outlook(
    simulation: Any,
    axes: Mapping[Any, Iterable[Any]],
    server_steps: int,
    *,
    eval_every: int | None = None,
    seed: int = 0,
    lanes: int | None = None,
    chunk: int | None = None,
    devices: Any = None,
    workers: int = 1,
) -> Outlook:
    """Estimates the cost of a sweep: compiles its first batch and times its first server steps.

    Args:
        simulation, axes, server_steps, eval_every, seed, lanes, chunk, devices: as in `sweep`.
        workers: number of workers of an executor, each as fast as this process.
    """
    options: Any = dict(locals())
    work = Work(**options)
    chosen = work.speed.devices
    batches = work.batches(max(1, len(chosen)))
    here = at_once(devices, chosen, work.bytes(range(len(work.members))))
    count = min(len(batches), here if workers == 1 else workers)
    execution = work.execution(batches[0])
    end, done, taken, pace = work.every, 0, 0.0, 0.0
    while done < end and taken < _LONG_ENOUGH:
        until = execution.enter(done, min(2 * done + 1, end))
        begun = time.perf_counter()
        execution.advance(done, until)
        taken = time.perf_counter() - begun
        pace, done = taken / (until - done), until
    return Outlook(
        members=len(work.members),
        programs=len({program for program, _ in work.shared}),
        batches=len(batches),
        together=max(map(len, batches)),
        devices=count,
        compile_seconds=execution.compile_seconds,
        seconds=pace * server_steps * len(batches) / count,
    )
