"""Runs carried to their end under the eyes of all who watch them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from jaxafl.callbacks.checkpoint import Checkpoint
from jaxafl.callbacks.hooks import Hook, Reporting, Several, Telling
from jaxafl.callbacks.interrupts import Interrupting, Interrupts
from jaxafl.engine.execution import Execution
from jaxafl.engine.loop import Trained, run_to_end


def watched(
    execution: Execution,
    server_steps: int,
    every: int,
    begun: float,
    reporting: Reporting,
    telling: Telling,
    checkpoint: Checkpoint | None,
    interrupts: Interrupts,
    finish: Sequence[Callable[[Trained], Any]],
) -> list[Any]:
    """Runs to the end; what `finish` makes of each is what callbacks are told at the end, and what comes back.

    An interruption, and whatever a callback raises, holds what the runs have made as its attribute `datasets`, the
    first of them as `dataset`.

    Args:
        execution, server_steps, every, begun: as in `run_to_end`.
        reporting: the progress.
        telling: the callbacks.
        checkpoint: what saves the runs.
        interrupts: what notices signals.
        finish: of each run, makes its result.
    """
    hooks: list[Hook] = [
        reporting,
        telling,
        *([checkpoint] if checkpoint else []),
        Interrupting(interrupts, checkpoint),
    ]
    found: list[Any] = [None] * len(finish)
    try:
        with Several(*hooks).entered() as watcher:
            ended = run_to_end(execution, server_steps, every, watcher, begun)
    except BaseException as error:
        if made := getattr(error, "trained", None):
            found = [make(trained) for make, trained in zip(finish, made, strict=True)]
            error.dataset, error.datasets = found[0], found  # type: ignore[attr-defined]
        with contextlib.suppress(Exception):  # so that trackers are closed, whose own errors are not those to show
            telling.end(found)
        raise
    notes = checkpoint.notes if checkpoint is not None else {}
    found = [make(run._replace(notes={**run.notes, **notes})) for make, run in zip(finish, ended, strict=True)]
    try:
        telling.end(found)
    except Exception as error:
        error.dataset, error.datasets = found[0], found  # type: ignore[attr-defined]
        raise
    return found
