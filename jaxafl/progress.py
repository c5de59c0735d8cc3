"""Progress of a run, reported by the host between chunks of server steps."""

from __future__ import annotations

import types
from typing import Any, Protocol

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Reporter(Protocol):
    """What a run tells about itself: a context manager whose `update` is called after every chunk."""

    def __enter__(self) -> Any: ...
    def __exit__(self, *args: Any) -> None: ...
    def update(self, done: int, updates_per_second: float, metrics: dict[str, float]) -> None: ...


class Silent:
    """No report."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *args: Any) -> None:
        return None

    def update(self, done: int, updates_per_second: float, metrics: dict[str, float]) -> None:
        return None


class Bar:
    """A bar with the server steps made, client updates per second, the latest metrics and the time left."""

    def __init__(self, name: str, server_steps: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[metrics]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
        )
        self._task = self._progress.add_task(name, total=server_steps, rate="compiling", metrics="")

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: types.TracebackType | None) -> None:
        self._progress.stop()

    def update(self, done: int, updates_per_second: float, metrics: dict[str, float]) -> None:
        shown = " ".join(f"{name} {value:.3g}" for name, value in metrics.items())
        self._progress.update(self._task, completed=done, rate=f"{updates_per_second:,.0f} updates/s", metrics=shown)
