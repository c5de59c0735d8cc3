"""Ctrl-C, SIGTERM and SIGUSR1, noticed between pieces of server steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from jaxafl.callbacks.checkpoint import Checkpoint
from jaxafl.callbacks.hooks import Hook
from jaxafl.engine.execution import Execution
from jaxafl.engine.loop import Progress


class Interrupted(KeyboardInterrupt):
    """A run was ended by a signal; what it has made is `dataset`.

    Attributes:
        signal: its number.
        dataset: the result up to there.
    """

    signal: int = signal.SIGINT
    dataset: Any = None


class Interrupts:
    """A context in which signals are noticed: on the main thread SIGINT, SIGTERM and SIGUSR1 no longer do what they do
    by default; a second Ctrl-C interrupts at once. Handlers of one's own stay, and signals that are ignored are ignored
    (SIGINT in a process that a script has started behind `&`).
    """

    def __init__(self) -> None:
        self.noticed = 0
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGINT", "SIGTERM", "SIGUSR1"):
                number = getattr(signal, name, None)  # there is no SIGUSR1 on Windows
                if number and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                    self.before[number] = signal.signal(number, self._notice)
        return self

    def __exit__(self, kind: Any, *args: Any) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.before = {}
        if self.noticed and kind is None:  # too late for the run, not for whoever runs it
            signal.raise_signal(self.noticed)

    def end(self, where: str, save: Callable[[], bool] | None = None, folder: Any = None) -> None:
        """Raises `Interrupted` where a signal was noticed.

        Args:
            where: the place, in words.
            save: saves the runs, and says whether that worked; `None` where they are not saved.
            folder: where to.
        """
        if not self.noticed:
            return
        said = f"interrupted by {signal.Signals(self.noticed).name} {where}"
        if save is not None:
            said += f"; saved in {folder}: the same call goes on from there" if save() else "; it could not be saved"
        error = Interrupted(said)
        error.signal = self.noticed
        raise error

    def _notice(self, number: int, frame: FrameType | None) -> None:
        if self.noticed and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.noticed = number


class Interrupting(Hook):
    """Ends runs after a signal, once they are saved where they are saved at all."""

    def __init__(self, interrupts: Interrupts, checkpoint: Checkpoint | None) -> None:
        """
        Args:
            interrupts: what notices signals.
            checkpoint: what saves the runs.
        """
        self.interrupts, self.checkpoint = interrupts, checkpoint

    def piece(self, execution: Execution, made: Progress) -> None:
        place = f"after {execution.step_of(made.row)} server steps"
        if self.checkpoint is None:
            self.interrupts.end(place)
        else:
            checkpoint = self.checkpoint

            def save() -> bool:
                checkpoint.save(execution, made)
                return checkpoint.finish()

            self.interrupts.end(place, save, checkpoint.folder)

    def settled(self, execution: Execution, made: Progress) -> None:
        self.piece(execution, made)
