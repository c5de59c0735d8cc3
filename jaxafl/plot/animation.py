"""Animation of a timeline: local runs grow, become stale, and reach the server."""

from __future__ import annotations

import pathlib

import numpy as np
from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

from jaxafl.options import UserError
from jaxafl.plot.canvas import figure_of
from jaxafl.plot.runs import Runs
from jaxafl.readers.replacing import replacing

_PER_SECOND = 12  # frames
_LINKED = 0.03  # a download or an upload is visible for this fraction of the simulated time


def corners_of(left: np.ndarray, right: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Returns the corners of bars in rows, [R, 4, 2]."""
    x, y = np.stack([left, right, right, left], axis=1), np.asarray(row)[:, None] + [-0.4, -0.4, 0.4, 0.4]
    return np.stack([x, y], axis=2)


def check_film(seconds: float, file: pathlib.Path | None, results: int, ax: Axes | None) -> None:
    """Raises `ValueError` if the animation cannot be written."""
    if not 0.5 <= seconds <= 120:
        raise UserError(f"animate is the seconds that the film takes, 0.5 to 120, got {seconds!r}")
    if file is None or file.suffix.lower() != ".gif":
        raise UserError(f"a film is written to path, which must end in .gif, got {file}")
    if results != 1 or ax is not None:
        raise UserError(f"a film is of one result or schedule, in a figure of its own; got {results} results")


def save_film(bars: PolyCollection, row: np.ndarray, runs: Runs, seconds: float, file: pathlib.Path) -> None:
    """Writes the animation.

    The colour of a bar is the staleness of its update if it arrived now: the final staleness minus the server steps to
    come. A row above shows the server, with a square for every version. Lines are downloads (dotted) and uploads.

    Args:
        bars: bars of the timeline; shows the last frame afterwards.
        row: row of each run.
        runs: runs shown.
        seconds: duration of the animation.
        file: a GIF.
    """
    ax = bars.axes
    assert isinstance(ax, Axes)
    figure = figure_of(ax)
    end = float(ax.get_xlim()[1])
    top = -1.6
    ax.set_ylim(ax.get_ylim()[0], top - 0.8)
    ax.text(0, top, "server  ", ha="right", va="center", fontsize=8)
    versions = ax.plot([], [], "s", color="#0072B2", markersize=5)[0]
    newest = ax.text(0, top - 0.05, "", va="center", fontsize=9, color="#0072B2")
    now_line = ax.axvline(0, color="0.2", linewidth=0.8)
    links = [ax.vlines([], 0, 0, color=colour, linestyle=style) for colour, style in (("0.5", ":"), ("0.1", "-"))]
    figure.canvas.draw()
    figure.set_layout_engine("none")  # otherwise the panel would move between frames

    def draw_frame(frame: int) -> list[Artist]:
        now = end * (frame + 1) / frames
        begun = runs.started <= now
        to_come = np.searchsorted(runs.steps, runs.arrived) - np.searchsorted(runs.steps, now, side="right")
        bars.set_verts(list(corners_of(runs.started, np.minimum(runs.arrived, now), row)[begun]))
        bars.set_array(np.maximum(runs.staleness - np.maximum(to_come, 0), 0)[begun])
        past = runs.steps[runs.steps <= now]
        versions.set_data(np.append(0.0, past), np.full(len(past) + 1, top))
        newest.set_text(f"  version {len(past)}")
        newest.set_x(past[-1] if len(past) else 0.0)
        now_line.set_xdata([now, now])
        for link, when in zip(links, (runs.started, runs.arrived), strict=True):
            seen = (when <= now) & (when > now - _LINKED * end)
            link.set_segments([[(x, top), (x, y)] for x, y in zip(when[seen], row[seen], strict=True)])
        return [bars, versions, newest, now_line, *links]

    frames = round(seconds * _PER_SECOND)
    film = FuncAnimation(figure, draw_frame, frames=frames, blit=False)
    with replacing(file) as unfinished:
        film.save(unfinished, writer=PillowWriter(_PER_SECOND), dpi=80)
