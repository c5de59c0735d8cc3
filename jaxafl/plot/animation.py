"""A timeline as a film: local runs grow, fall behind, and reach the server."""

from __future__ import annotations

import pathlib
from typing import NamedTuple

import numpy as np
from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

from jaxafl.options import UserError
from jaxafl.plot.canvas import figure_of
from jaxafl.readers.replacing import replacing

_PER_SECOND = 12  # pictures
_LINKED = 0.03  # share of the simulated time for which a download or an upload is seen


class Runs(NamedTuple):
    """The local runs that were consumed, by the instant of their start; and when the server stepped."""

    client: np.ndarray
    started: np.ndarray
    arrived: np.ndarray
    staleness: np.ndarray
    steps: np.ndarray


def corners_of(left: np.ndarray, right: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Of bars in rows, [R, 4, 2]."""
    x, y = np.stack([left, right, right, left], axis=1), np.asarray(row)[:, None] + [-0.4, -0.4, 0.4, 0.4]
    return np.stack([x, y], axis=2)


def check_film(seconds: float, file: pathlib.Path | None, results: int, ax: Axes | None) -> None:
    """Before anything is drawn."""
    if not 0.5 <= seconds <= 120:
        raise UserError(f"animate is the seconds that the film takes, 0.5 to 120, got {seconds!r}")
    if file is None or file.suffix.lower() != ".gif":
        raise UserError(f"a film is written to path, which must end in .gif, got {file}")
    if results != 1 or ax is not None:
        raise UserError(f"a film is of one result or schedule, in a figure of its own; got {results} results")


def save_film(bars: PolyCollection, row: np.ndarray, runs: Runs, seconds: float, file: pathlib.Path) -> None:
    """Writes the film.

    A bar has the staleness that its update would have if it arrived now: its last one, less the server steps to come.
    Above, the server: a square for every version. Lines are downloads (dotted) and uploads.

    Args:
        bars: of the whole timeline; shows the last picture afterwards.
        row: of each run.
        runs: those shown.
        seconds: that it takes.
        file: a GIF.
    """
    ax = bars.axes
    assert isinstance(ax, Axes)
    figure, end, top = figure_of(ax), float(ax.get_xlim()[1]), -1.6
    ax.set_ylim(ax.get_ylim()[0], top - 0.8)
    ax.text(0, top, "server  ", ha="right", va="center", fontsize=8)
    versions = ax.plot([], [], "s", color="#0072B2", markersize=5)[0]
    newest = ax.text(0, top - 0.05, "", va="center", fontsize=9, color="#0072B2")
    now_line = ax.axvline(0, color="0.2", linewidth=0.8)
    links = [ax.vlines([], 0, 0, color=colour, linestyle=style) for colour, style in (("0.5", ":"), ("0.1", "-"))]
    figure.canvas.draw()
    figure.set_layout_engine("none")  # the panel stays where it is

    def picture(frame: int) -> list[Artist]:
        now = end * (frame + 1) / pictures
        begun = runs.started <= now
        to_come = np.searchsorted(runs.steps, runs.arrived) - np.searchsorted(runs.steps, now, side="right")
        bars.set_verts(list(corners_of(runs.started, np.minimum(runs.arrived, now), row)[begun]))
        bars.set_array(np.maximum(runs.staleness - np.maximum(to_come, 0), 0)[begun])
        made = runs.steps[runs.steps <= now]
        versions.set_data(np.append(0.0, made), np.full(len(made) + 1, top))
        newest.set_text(f"  version {len(made)}")
        newest.set_x(made[-1] if len(made) else 0.0)
        now_line.set_xdata([now, now])
        for link, when in zip(links, (runs.started, runs.arrived), strict=True):
            seen = (when <= now) & (when > now - _LINKED * end)
            link.set_segments([[(x, top), (x, y)] for x, y in zip(when[seen], row[seen], strict=True)])
        return [bars, versions, newest, now_line, *links]

    pictures = round(seconds * _PER_SECOND)
    film = FuncAnimation(figure, picture, frames=pictures, blit=False)
    with replacing(file) as unfinished:
        film.save(unfinished, writer=PillowWriter(_PER_SECOND), dpi=80)
