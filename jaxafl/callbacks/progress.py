"""Progress of a run, reported by the host between chunks of server steps."""

from __future__ import annotations

import html
import time
from datetime import timedelta
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from jaxafl.callbacks.base import in_notebook


class Reporter(Protocol):
    """What a run tells about itself: a context manager whose `update` is called after every chunk."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *args: Any) -> None:
        return None

    def update(self, done: int, updates_per_second: float, metrics: dict[str, float]) -> None:
        return None


class Silent(Reporter):
    """No report."""


class Bar(Reporter):
    """A bar with the server steps made, the time left, client updates per second and the latest metrics.

    Where the line is short, the metrics give way first, then the rate and the name; the steps and the time never do.
    """

    def __init__(self, name: str, server_steps: int, console: Console | None = None) -> None:
        self._progress = Progress(
            _Yielding("name"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
            TextColumn("left"),
            _Yielding("rate"),
            _Yielding("metrics", Column(ratio=1)),
            console=console,
            expand=True,
        )
        self._task = self._progress.add_task("", total=server_steps, name=name, rate="compiling", metrics="")

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *args: Any) -> None:
        self._progress.stop()

    def update(self, done: int, updates_per_second: float, metrics: dict[str, float]) -> None:
        shown = " ".join(f"{name} {value:.3g}" for name, value in metrics.items())
        self._progress.update(self._task, completed=done, rate=f"{updates_per_second:,.0f} updates/s", metrics=shown)


class Cell(Reporter):
    """The same below the cell of a notebook, and left there in words when it is saved."""

    def __init__(self, name: str, server_steps: int) -> None:
        self.name, self.steps, self.begun = name, server_steps, time.monotonic()

    def __enter__(self) -> Cell:
        from IPython.display import display

        self.handle = display(self._drawn(0, "compiling"), display_id=True)
        return self

    def update(self, done: int, updates_per_second: float, metrics: dict[str, float]) -> None:
        left = timedelta(seconds=round((time.monotonic() - self.begun) * (self.steps - done) / done))
        shown = " ".join(f"{name} {value:.3g}" for name, value in metrics.items())
        self.handle.update(self._drawn(done, f"{left} left, {updates_per_second:,.0f} updates/s, {shown}"))

    def _drawn(self, done: int, said: str) -> Any:
        from IPython.display import HTML

        bar = f'<progress value="{done}" max="{self.steps}"></progress>'
        return HTML(f"{html.escape(self.name)} {bar} {done}/{self.steps} {html.escape(said)}")


def reporter_of(progress: bool | Reporter, name: str, server_steps: int) -> Reporter:
    """The reporter that `progress` asks for."""
    if isinstance(progress, bool):
        return (Cell if in_notebook() else Bar)(name, server_steps) if progress else Silent()
    if not hasattr(progress, "update") or not hasattr(progress, "__enter__"):
        raise TypeError(
            f"progress must be True, False or a Reporter (see jaxafl.callbacks.progress.Reporter), got {progress!r}"
        )
    return progress


class _Yielding(ProgressColumn):
    """A text that is cut where there is no room."""

    def __init__(self, name: str, column: Column | None = None) -> None:
        super().__init__(column)
        self._name = name

    def render(self, task: Task) -> Text:
        return Text(task.fields[self._name], no_wrap=True, overflow="ellipsis")
