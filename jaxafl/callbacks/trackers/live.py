"""A live plot of accuracy, or of the loss."""

from __future__ import annotations

import itertools
import os
import threading
from typing import Any

from jaxafl.callbacks.base import Chunk, Run, Tracker, in_notebook, name_of
from jaxafl.results.curves import scale_of
from jaxafl.results.files import check_path

_drawing = threading.Lock()  # members on several devices draw from several threads


class Live(Tracker):
    """Redraws test accuracy against simulated time after every evaluation, or the loss if there is no accuracy.

    The figure appears below the cell of a notebook, in a window, or in an image file. Members of a sweep share it.

    Args:
        path: the image file to write instead of showing the figure.

    Raises:
        FileNotFoundError, PermissionError, IsADirectoryError: the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = check_path(path)
        self.lines: dict[str, tuple[list[float], list[float]]] = {}
        self.shown: list[Any] = []  # a window, or a figure of a notebook and its cell; copies share it

    def begin(self, run: Run) -> None:
        name = self.name = name_of(run) or run.name
        with _drawing:
            places = itertools.count(2)
            while self.name in self.lines:  # else the points would join the line of an earlier run
                self.name = f"{name} ({next(places)})"
            self.lines[self.name] = ([], [])

    def chunk(self, chunk: Chunk) -> None:
        with _drawing:
            times, values = self.lines[self.name]
            times.append(chunk.time)
            self.metric = "accuracy" if "accuracy" in chunk.evaluation else "loss"
            values.append(scale_of(self.metric) * chunk.evaluation[self.metric])
            self._draw()

    def _draw(self) -> None:
        from jaxafl.plot.canvas import finish, label_of, legend_beside, panels_of, styled, tidy

        window = None if self.path or in_notebook() else _window(self.shown)
        figure, [ax] = panels_of(window, 7.5, 4.2)
        ax.clear()
        for (name, line), style in styled(self.lines.items()):
            ax.plot(*line, label=name, linewidth=1.8, **style)
        ax.set(xlabel="simulated time (s)", ylabel=label_of(self.metric), xlim=(0, None), ylim=(0, None))
        tidy(ax)
        legend_beside(ax)
        if self.path is not None:
            finish(figure, self.path)
        elif window is None:
            from IPython import get_ipython
            from IPython.display import display

            cell = get_ipython().execution_count
            if self.shown and self.shown[1] == cell:
                self.shown[0].update(figure)
            else:
                self.shown[:] = display(figure, display_id=True), cell
        else:
            figure.canvas.draw_idle()
            figure.canvas.flush_events()


def _window(shown: list[Any]) -> Any:
    """Returns the axes of a window that stays open; the first call opens it."""
    if not shown:
        from matplotlib import pyplot

        pyplot.ion()
        shown.append(pyplot.subplots()[1])
        shown[0].figure.show()
    return shown[0]
