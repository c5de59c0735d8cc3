"""Ctrl-C, SIGTERM and SIGUSR1, handled between pieces of server steps."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """The exception of a run that a signal ended.

    Attributes:
        signal: number of the signal.
        dataset: the result so far.
    """

    signal: int = signal.SIGINT
    dataset: Any = None


class Interrupts:
    """A context that records SIGINT, SIGTERM and SIGUSR1 on the main thread, instead of their default action.

    A second Ctrl-C interrupts at once. User-defined handlers stay, and ignored signals stay ignored, such as SIGINT in
    a background process of a script.
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
        if self.noticed and kind is None:  # else a signal after the last piece is lost to the caller
            signal.raise_signal(self.noticed)

    def end(self, where: str) -> None:
        """Raises `Interrupted` if a signal was recorded; `where`: the place, for the message."""
        if self.noticed:
            error = Interrupted(f"interrupted by {signal.Signals(self.noticed).name} {where}")
            error.signal = self.noticed
            raise error

    def _notice(self, number: int, frame: FrameType | None) -> None:
        if self.noticed and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.noticed = number
