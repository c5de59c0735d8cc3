"""Progress of a run: a bar in a terminal or a notebook, plain lines in a log."""

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
_NAME = 8  # characters of a name, at the least


class Reporter(Protocol):
    """Receives the progress of a run: a context manager whose `update` is called after every evaluation.

    One that also has a method `piece(done, updates_per_second)` is told of the server steps between them.
    """

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *args: Any) -> None:
        return None

    def update(self, done: int, updates_per_second: float, metrics: dict[str, float]) -> None:
        return None


class Silent(Reporter):
    """No report."""


class State:
    """The progress as words: `300/400`, `0:12 left`, `12,346 updates/s`, `accuracy 0.812`."""

    def __init__(self, name: str, server_steps: int | None) -> None:
        """
        Args:
            name: of the run.
            server_steps: T; `None` if it is not known.
        """
        self.name, self.total, self.begun = name, server_steps, time.monotonic()
        self.done, self.rate, self.metrics = 0, "", dict[str, float]()
        self.first: tuple[int, float] | None = None  # server steps, and when they had been made
        self.last = self.begun

    def update(self, done: int, updates_per_second: float, metrics: dict[str, float]) -> None:
        """Notes what a reporter is told."""
        self.done, self.rate, self.last = done, f"{updates_per_second:,.0f} updates/s", time.monotonic()
        order = sorted(metrics, key=lambda name: name != "accuracy")
        self.metrics = {name: metrics[name] for name in order} or self.metrics
        self.first = self.first or (done, self.last)

    @property
    def steps(self) -> str:
        return f"{self.done}" if self.total is None else f"{self.done}/{self.total}"

    @property
    def left(self) -> str:
        """The time left, at the pace since the first report: compilation before it does not count."""
        if self.first is None or self.total is None or self.done <= self.first[0]:
            return "--:-- left" if self.done != self.total else "0:00 left"
        return f"{_clock((self.last - self.first[1]) / (self.done - self.first[0]) * (self.total - self.done))} left"

    @property
    def measured(self) -> list[str]:
        """The metrics, accuracy first."""
        return [f"{name} {value:.3g}" for name, value in self.metrics.items()]

    @property
    def pace(self) -> str:
        """The rate, or that compilation is under way."""
        return self.rate or f"compiling, {_clock(time.monotonic() - self.begun)}"

    def line(self) -> str:
        """All of it in a line of any length."""
        return f"{self.name}: {self.steps} server steps, {', '.join([self.pace, *self.measured, self.left])}"


class Bar(Reporter):
    """A bar with the server steps made, the time left, the latest metrics and client updates per second.

    Where the line is short, metrics after the first give way first, then the bar, the name, and the rate; the accuracy,
    the steps and the time never do.
    """

    def __init__(self, name: str, server_steps: int | None, console: Console | None = None) -> None:
        self.state = State(name, server_steps)
        console = console or Console(stderr=True)
        self._progress = Progress(_Line(self.state, console), console=console, expand=True)
        self._task = self._progress.add_task("", total=server_steps)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *args: Any) -> None:
        self._progress.stop()

    def update(self, done: int, updates_per_second: float, metrics: dict[str, float]) -> None:
        self.state.update(done, updates_per_second, metrics)
        self._progress.update(self._task, completed=done)

    def piece(self, done: int, updates_per_second: float) -> None:
        self.update(done, updates_per_second, {})


class Lines(Reporter):
    """Plain lines on standard error: at the begin, every half minute, and at the end."""

    def __init__(self, name: str, server_steps: int | None, every: float = EVERY) -> None:
        self.state, self._every, self._over = State(name, server_steps), every, threading.Event()

    def __enter__(self) -> Lines:
        self._say(self.state.line())
        self._thread = threading.Thread(target=self._tell, name="jaxafl progress", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *args: Any) -> None:
        self._over.set()
        self._thread.join()
        self._say(f"{self.state.line()}, after {_clock(time.monotonic() - self.state.begun)}")

    def update(self, done: int, updates_per_second: float, metrics: dict[str, float]) -> None:
        self.state.update(done, updates_per_second, metrics)

    def piece(self, done: int, updates_per_second: float) -> None:
        self.update(done, updates_per_second, {})

    def _tell(self) -> None:
        while not self._over.wait(self._every):
            self._say(self.state.line())

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # a log that is closed ends no run
            print(f"jaxafl: {text}", file=sys.stderr, flush=True)


class Cell(Reporter):
    """The same below the cell of a notebook, and left there in words when it is saved."""

    def __init__(self, name: str, server_steps: int | None) -> None:
        self.state = State(name, server_steps)

    def __enter__(self) -> Cell:
        from IPython.display import display

        self.handle = display(self._drawn(), display_id=True)
        return self

    def update(self, done: int, updates_per_second: float, metrics: dict[str, float]) -> None:
        self.state.update(done, updates_per_second, metrics)
        self.handle.update(self._drawn())

    def piece(self, done: int, updates_per_second: float) -> None:
        self.update(done, updates_per_second, {})

    def _drawn(self) -> Any:
        from IPython.display import HTML

        state = self.state
        bar = "" if state.total is None else f'<progress value="{state.done}" max="{state.total}"></progress> '
        said = ", ".join([state.left, state.pace, *state.measured]) if state.rate else "compiling"
        return HTML(f"{html.escape(state.name)} {bar}{state.steps} {html.escape(said)}")


def reporter_of(progress: bool | str | Reporter, name: str, server_steps: int | None) -> Reporter:
    """Returns the reporter that `progress` asks for.

    Args:
        progress: as of `Simulation.run`; a text is shown before the name.
        name: of what is run.
        server_steps: in all; `None` if it is not known.
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
    """The state, in a line that fits the console."""

    def __init__(self, state: State, console: Console) -> None:
        super().__init__()
        self._state, self._console = state, console

    def render(self, task: Task) -> Text:
        state, plain = self._state, not self._console.encoding.startswith("utf")
        first, *others = [*state.measured, ""]
        room = self._console.width - len(f"{state.steps} {state.left}")
        kept = {}
        for part, text in (("first", first), ("pace", state.pace)):
            if text and len(text) < room:
                kept[part], room = text, room - len(text) - 1
        if room > min(_NAME, len(state.name)):
            cut = state.name if len(state.name) < room else state.name[: room - 2] + ("~" if plain else "…")
            kept["name"], room = cut, room - len(cut) - 1
        done, filled = _BAR * state.done // max(state.total or 1, 1), "#-" if plain else "━╌"
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
    """`0:12`, `1:02:03`."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
