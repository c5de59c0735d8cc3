"""Reporters of progress: a bar in a terminal or a notebook, plain lines in a log."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Any, Protocol

from rich.console import Console
from rich.table import Column

from jaxafl.callbacks.base import in_notebook

EVERY = 30.0  # seconds between two lines of a log
_BAR = 12  # characters
_WIDE = 60  # characters of a terminal that has room for the bar


class Reporter(contextlib.AbstractContextManager[Any], Protocol):
    """Receives the progress of a run: a context manager whose `update` is called after every evaluation but the first.

    An optional method `piece(done, updates_per_second)` is called between evaluations.
    """

    def __exit__(self, *args: Any) -> None:
        """Ends the report."""

    def update(self, done: int, updates_per_second: float, metrics: dict[str, float]) -> None:
        """Receives the server steps that are done."""


class _Shown(Reporter):
    """Base class of reporters, with the progress as texts: `300/400`, `0:12 left`, `12,346 updates/s`.

    Args:
        name: name of the run.
        server_steps: T.
    """

    def __init__(self, name: str, server_steps: int) -> None:
        self.name = name
        self.total = server_steps
        self.done = 0
        self.begun = self.last = time.monotonic()
        self.first: tuple[int, float] | None = None  # server steps and time of the first report
        self.rate = "compiling"
        self.metrics: dict[str, float] = {}

    def update(self, done: int, updates_per_second: float, metrics: dict[str, float]) -> None:
        self.done = done
        self.rate = f"{updates_per_second:,.0f} updates/s"
        self.last = time.monotonic()
        order = sorted(metrics, key=lambda name: name != "accuracy")
        self.metrics = {name: metrics[name] for name in order} or self.metrics
        self.first = self.first or (done, self.last)
        self.report()

    def report(self) -> None:
        """Shows the progress."""
        raise NotImplementedError

    def piece(self, done: int, updates_per_second: float) -> None:
        self.update(done, updates_per_second, {})

    @property
    def steps(self) -> str:
        return f"{self.done}/{self.total}"

    @property
    def left(self) -> str:
        """The time left, at the pace since the first report; compilation does not count."""
        if self.first is None or self.done <= self.first[0]:
            return "--:-- left" if self.done != self.total else "0:00 left"
        return f"{_clock((self.last - self.first[1]) / (self.done - self.first[0]) * (self.total - self.done))} left"

    @property
    def measured(self) -> list[str]:
        """The metrics, accuracy first."""
        return [f"{name} {value:.3g}" for name, value in self.metrics.items()]

    def line(self) -> str:
        """Returns the progress as one line of any length."""
        return f"{self.name}: {self.steps} server steps, {', '.join([self.rate, *self.measured, self.left])}"


class Bar(_Shown):
    """A line with a bar, server steps, time left, updates per second and metrics. In notebooks, it needs ipywidgets."""

    def __init__(self, name: str, server_steps: int, console: Console | None = None) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        super().__init__(name, server_steps)
        console = console or Console(stderr=True)
        text = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="crop"))
        columns = [text] if console.width < _WIDE else [BarColumn(_BAR), text]
        self._progress = Progress(*columns, console=console)
        self._task = self._progress.add_task(self._text(), total=server_steps)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *args: Any) -> None:
        self._progress.stop()

    def report(self) -> None:
        self._progress.update(self._task, completed=self.done, description=self._text())

    def _text(self) -> str:
        """Returns the progress, what matters most first, because a narrow terminal cuts the end."""
        first, others = self.measured[:1], self.measured[1:]
        return "  ".join([self.steps, self.left, *first, self.rate, self.name, *others])


class Lines(_Shown):
    """Plain lines on standard error: at the start, at reports that are 30 s apart, and at the end."""

    def __init__(self, name: str, server_steps: int, every: float = EVERY) -> None:
        super().__init__(name, server_steps)
        self._every = every
        self._written = self.begun

    def __enter__(self) -> Lines:
        self._write(self.line())
        return self

    def __exit__(self, *args: Any) -> None:
        self._write(f"{self.line()}, after {_clock(time.monotonic() - self.begun)}")

    def report(self) -> None:
        if self.last - self._written >= self._every:
            self._write(self.line())

    def _write(self, text: str) -> None:
        self._written = time.monotonic()
        with contextlib.suppress(OSError, ValueError):  # a closed log must not end the run
            print(f"jaxafl: {text}", file=sys.stderr, flush=True)


def reporter_of(progress: bool | str | Reporter, name: str, server_steps: int) -> Reporter | None:
    """Returns the reporter for an option `progress`; `None` if nothing is shown.

    Args:
        progress: the option of `Simulation.run`; a text is shown before the name.
        name: name of the run.
        server_steps: total server steps.
    """
    if progress is False:
        return None
    if progress is not True and not isinstance(progress, str):
        return progress
    name = f"{progress}: {name}" if isinstance(progress, str) else name
    terminal = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
    return (Bar if terminal or in_notebook() else Lines)(name, server_steps)


def _clock(seconds: float) -> str:
    """Returns seconds as `0:12` or `1:02:03`."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
