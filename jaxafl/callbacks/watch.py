"""Execution of runs with all hooks: progress, callbacks, checkpoint and signals."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from jaxafl.callbacks.checkpoint import Checkpoint
from jaxafl.callbacks.hooks import CallbackHook, Hook, HookList, ProgressHook
from jaxafl.callbacks.interrupts import InterruptHook, Interrupts
from jaxafl.engine.execution import Execution
from jaxafl.engine.loop import Trained, run_to_end


def run_with_hooks(
    execution: Execution,
    server_steps: int,
    every: int,
    begun: float,
    progress_hook: ProgressHook,
    callback_hook: CallbackHook,
    checkpoint: Checkpoint | None,
    interrupts: Interrupts,
    finish: Sequence[Callable[[Trained], Any]],
) -> list[Any]:
    """Executes runs to their end and returns their results, which the callbacks receive at the end.

    An exception, such as an interruption, carries the results so far as `error.datasets`, and the first of them as
    `error.dataset`.

    Args:
        execution, server_steps, every, begun: as in `run_to_end`.
        progress_hook: the hook of the reporter.
        callback_hook: the hook of the callbacks.
        checkpoint: the checkpoint of the runs, if they have one.
        interrupts: the recorded signals.
        finish: for each run, a function from the finished run to its result.
    """
    hooks: list[Hook] = [
        progress_hook,
        callback_hook,
        *([checkpoint] if checkpoint else []),
        InterruptHook(interrupts, checkpoint),
    ]
    found: list[Any] = [None] * len(finish)
    try:
        with contextlib.ExitStack() as stack:
            for hook in hooks:
                stack.enter_context(hook)
            ended = run_to_end(execution, server_steps, every, HookList(*hooks), begun)
    except BaseException as error:
        if partial := getattr(error, "trained", None):
            found = [make(trained) for make, trained in zip(finish, partial, strict=True)]
            error.dataset = found[0]  # type: ignore[attr-defined]
            error.datasets = found  # type: ignore[attr-defined]
        with contextlib.suppress(Exception):  # an error of a callback must not hide the first one
            callback_hook.end(found)
        raise
    notes = checkpoint.notes if checkpoint is not None else {}
    found = [make(run._replace(notes={**run.notes, **notes})) for make, run in zip(finish, ended, strict=True)]
    try:
        callback_hook.end(found)
    except Exception as error:
        error.dataset = found[0]  # type: ignore[attr-defined]
        error.datasets = found  # type: ignore[attr-defined]
        raise
    return found
