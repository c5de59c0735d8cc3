"""Reporters of progress: a bar in a terminal or a notebook, plain lines in a log."""

from __future__ import annotations

import contextlib
import html
import sys
import threading
import time
from typing import Any, Protocol

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task
from rich.text import Text

from jaxafl.callbacks.base import in_notebook
from jaxafl.options import shown

EVERY = 30.0  # seconds between two lines of a log
_BAR = 12  # characters
_NAME = 8  # least characters of a name


class Reporter(Protocol):
    """Receives the progress of a run: a context manager whose `update` is called after every evaluation but the first.

    An optional method `piece(done, updates_per_second)` is called between evaluations.
    """

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *args: Any) -> None:
        return None

    def update(self, done: int, updates_per_second: float, metrics: dict[str, float]) -> None:
        return None


class Silent(Reporter):
    """A reporter that shows nothing."""


class State:
    """The progress as texts: `300/400`, `0:12 left`, `12,346 updates/s`, `accuracy 0.812`."""

    def __init__(self, name: str, server_steps: int | None) -> None:
        """
        Args:
            name: name of the run.
            server_steps: T; `None` if unknown.
        """
        self.name = name
        self.total = server_steps
        self.begun = time.monotonic()
        self.done = 0
        self.rate = ""
        self.metrics: dict[str, float] = {}
        self.first: tuple[int, float] | None = None  # server steps and time of the first report
        self.last = self.begun

    def update(self, done: int, updates_per_second: float, metrics: dict[str, float]) -> None:
        """Stores the arguments of `Reporter.update`."""
        self.done = done
        self.rate = f"{updates_per_second:,.0f} updates/s"
        self.last = time.monotonic()
        order = sorted(metrics, key=lambda name: name != "accuracy")
        self.metrics = {name: metrics[name] for name in order} or self.metrics
        self.first = self.first or (done, self.last)

    @property
    def steps(self) -> str:
        return f"{self.done}" if self.total is None else f"{self.done}/{self.total}"

    @property
    def left(self) -> str:
        """The time left, at the pace since the first report; compilation does not count."""
        if self.first is None or self.total is None or self.done <= self.first[0]:
            return "--:-- left" if self.done != self.total else "0:00 left"
        return f"{_clock((self.last - self.first[1]) / (self.done - self.first[0]) * (self.total - self.done))} left"

    @property
    def measured(self) -> list[str]:
        """The metrics, accuracy first."""
        return [f"{name} {value:.3g}" for name, value in self.metrics.items()]

    @property
    def pace(self) -> str:
        """The update rate, or the time of compilation so far."""
        return self.rate or f"compiling, {_clock(time.monotonic() - self.begun)}"

    def line(self) -> str:
        """Returns the progress as one line of any length."""
        return f"{self.name}: {self.steps} server steps, {', '.join([self.pace, *self.measured, self.left])}"


class _Shown(Reporter):
    """Base class of reporters that show a `State`."""

    def __init__(self, name: str, server_steps: int | None) -> None:
        self.state = State(name, server_steps)

    def update(self, done: int, updates_per_second: float, metrics: dict[str, float]) -> None:
        self.state.update(done, updates_per_second, metrics)

    def piece(self, done: int, updates_per_second: float) -> None:
        self.update(done, updates_per_second, {})


class Bar(_Shown):
    """A bar with server steps, time left, latest metrics and client updates per second.

    A short line drops metrics after the first, then the bar, the name and the rate. Steps and time left always stay.
    """

    def __init__(self, name: str, server_steps: int | None, console: Console | None = None) -> None:
        super().__init__(name, server_steps)
        console = console or Console(stderr=True)
        self._progress = Progress(_Line(self.state, console), console=console, expand=True)
        self._task = self._progress.add_task("", total=server_steps)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *args: Any) -> None:
        self._progress.stop()

    def update(self, done: int, updates_per_second: float, metrics: dict[str, float]) -> None:
        super().update(done, updates_per_second, metrics)
        self._progress.update(self._task, completed=done)


class Lines(_Shown):
    """Plain lines on standard error: at the start, every 30 s, and at the end."""

    def __init__(self, name: str, server_steps: int | None, every: float = EVERY) -> None:
        super().__init__(name, server_steps)
        self._every = every
        self._over = threading.Event()

    def __enter__(self) -> Lines:
        self._write(self.state.line())
        self._thread = threading.Thread(target=self._report, name="jaxafl progress", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *args: Any) -> None:
        self._over.set()
        self._thread.join()
        self._write(f"{self.state.line()}, after {_clock(time.monotonic() - self.state.begun)}")

    def _report(self) -> None:
        while not self._over.wait(self._every):
            self._write(self.state.line())

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # a closed log must not end the run
            print(f"jaxafl: {text}", file=sys.stderr, flush=True)


class Cell(_Shown):
    """A bar below the cell of a notebook, saved as text with it."""

    def __enter__(self) -> Cell:
        from IPython.display import display

        self.handle = display(self._drawn(), display_id=True)
        return self

    def update(self, done: int, updates_per_second: float, metrics: dict[str, float]) -> None:
        super().update(done, updates_per_second, metrics)
        self.handle.update(self._drawn())

    def _drawn(self) -> Any:
        from IPython.display import HTML

        state = self.state
        bar = "" if state.total is None else f'<progress value="{state.done}" max="{state.total}"></progress> '
        text = ", ".join([state.left, state.pace, *state.measured]) if state.rate else "compiling"
        return HTML(f"{html.escape(state.name)} {bar}{state.steps} {html.escape(text)}")


def reporter_of(progress: bool | str | Reporter, name: str, server_steps: int | None) -> Reporter:
    """Returns the reporter for an option `progress`.

    Args:
        progress: the option of `Simulation.run`; a text is shown before the name.
        name: name of the run.
        server_steps: total server steps; `None` if unknown.
    """
    if progress is False:
        return Silent()
    if progress is True or isinstance(progress, str):
        name = f"{progress}: {name}" if isinstance(progress, str) else name
        console = Console(stderr=True)
        terminal = sys.stderr is not None and sys.stderr.isatty() and not console.is_dumb_terminal
        return (Cell if in_notebook() else Bar if terminal else Lines)(name, server_steps)
    if isinstance(progress, type) or not hasattr(progress, "update") or not hasattr(progress, "__enter__"):
        raise TypeError(
            "progress must be True, False, a name to show, or a reporter: a context manager with a method "
            f"update(done, updates_per_second, metrics), see jaxafl.callbacks.progress.Reporter; got {shown(progress)}"
        )
    return progress


class _Line(ProgressColumn):
    """The progress in a line that fits the console."""

    def __init__(self, state: State, console: Console) -> None:
        super().__init__()
        self._state = state
        self._console = console

    def render(self, task: Task) -> Text:
        state = self._state
        plain = not self._console.encoding.startswith("utf")
        first, *others = [*state.measured, ""]
        room = self._console.width - len(f"{state.steps} {state.left}")
        kept = {}
        for part, text in (("first", first), ("pace", state.pace)):
            if text and len(text) < room:
                kept[part], room = text, room - len(text) - 1
        if room > min(_NAME, len(state.name)):
            cut = state.name if len(state.name) < room else state.name[: room - 2] + ("~" if plain else "…")
            kept["name"], room = cut, room - len(cut) - 1
        done = _BAR * state.done // max(state.total or 1, 1)
        filled = "#-" if plain else "━╌"
        bar = filled[0] * min(done, _BAR) + filled[1] * (_BAR - min(done, _BAR))
        if room > _BAR and state.total:
            kept["bar"], room = bar, room - _BAR - 1
        for text in filter(None, others):
            if len(text) < room:
                kept["first"], room = f"{kept.get('first', '')} {text}".strip(), room - len(text) - 1
        styles = {"bar": "bar.complete", "steps": "progress.download", "left": "progress.remaining"}
        kept |= {"steps": state.steps, "left": state.left}
        order = ("name", "bar", "steps", "left", "pace", "first")
        parts = [Text(kept[part], styles.get(part, "")) for part in order if part in kept]
        return Text(" ", no_wrap=True, overflow="crop").join(parts)


def _clock(seconds: float) -> str:
    """Returns seconds as `0:12` or `1:02:03`."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
