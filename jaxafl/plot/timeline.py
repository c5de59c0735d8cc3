"""Timeline of local runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import BoundaryNorm
from matplotlib.figure import Figure

from jaxafl.clock import Schedule
from jaxafl.options import UserError, named
from jaxafl.plot.canvas import ImagePath, finish, panels_of, thin
from jaxafl.plot.runs import Runs, of_result, of_schedule
from jaxafl.results.tables.members import Results, finished_members, heading, titled

_PANELS = 6
_STEPS_SHOWN = 60  # lines of more server steps would fill the panel
_LOOKS: dict[str, tuple[str, dict[str, Any]]] = {
    "wasted": (
        "crossed: refused, stopped or lost",
        {"facecolors": "white", "edgecolors": "0.45", "hatch": "xxxx", "linewidths": 1.0},
    ),
    "paused": (
        "hatched: hanging or waiting",
        {"facecolors": "none", "edgecolors": "0.35", "hatch": "////", "linewidths": 0.4},
    ),
    "flying": (
        "faded: in flight at the end",
        {"facecolors": "0.85", "edgecolors": "white", "linewidths": 0.6},
    ),
}
"""Kind of bars -> what the axis says of them, and how they are drawn."""


@named
def timeline(
    results: Results | Schedule | Mapping[str, Schedule],
    ax: Axes | None = None,
    path: ImagePath = None,
    *,
    max_clients: int = 50,
    max_runs: int = 400,
    until: float | None = None,
) -> Figure:
    """Draws a row per client with a bar for every local run from its start to its arrival, coloured by its staleness.

    Hatched are the seconds of a run in which its client hangs, and the wait of an update for its server step, up to the
    client's next start. Crossed bars are refused, stopped and lost runs. Faded bars are the runs in flight at the end.
    Grey lines are the server steps, if at most 60 are shown. A result knows neither hangs nor runs that no server step
    took: the title counts these runs, and `Simulation.schedule` has them.

    All panels have the same axis of time. Beyond the limits below, the figure shows evenly spaced clients and the first
    part of the simulated time, with a note in the title.

    Args:
        results: a schedule (`Simulation.schedule`), a result, a dict of schedules or results by name, or a sweep: a
            panel for each member (its first seed), at most six.
        ax: axes to draw into (for one result or schedule); `None` creates a figure.
        path: file of the figure (its ending sets the format); `None` saves nothing.
        max_clients: largest number of rows per panel.
        max_runs: largest number of bars per panel.
        until: last simulated second shown, to compare figures; `None` takes the last server step.

    Returns:
        The figure.

    Raises:
        TypeError, ValueError: there is no result or no arrival, a limit is invalid, or there are too many results for
            `ax`.

    Examples:
        >>> import jaxafl as afl
        >>> clock = afl.clock.free_running(concurrency=3, durations=afl.clock.lognormal(0.0, 1.0))
        >>> schedule = afl.clock.schedule(clock, num_clients=5, local_steps=10, server_steps=20)
        >>> figure = afl.plot.timeline(schedule)
        >>> len(figure.axes[0].get_yticklabels())  # a row per client
        5
    """
    found = _panels(results)
    if ax is not None and len(found) > 1:
        raise ValueError(f"{len(found)} results do not fit into one ax; plot one of them, or pass ax=None")
    first = found[:_PANELS]
    heights = [1.0 + 0.17 * max(min(len(runs.labels), max_clients), 6) for _, runs in first]
    figure, panels = panels_of(ax, 10, sum(heights) + 0.3, len(first), height_ratios=heights)
    for panel, (title, runs) in zip(panels, first, strict=True):
        _draw(panel, title, runs, max_clients, max_runs, until)
    last = max(panel.get_xlim()[1] for panel in panels)
    for panel in panels:
        panel.set_xlim(0, last)
    if len(found) > len(first):
        figure.suptitle(f"the first {len(first)} of {len(found)} results")
    return finish(figure, path)


def _panels(results: Any) -> list[tuple[str, Runs]]:
    """Returns title and runs of each panel."""
    if isinstance(results, Schedule):
        results = {f"{results.protocol}, {results.num_clients} clients": results}
    if isinstance(results, Mapping) and results and all(isinstance(one, Schedule) for one in results.values()):
        return [(str(name), of_schedule(one)) for name, one in results.items()]
    found = finished_members(results, "client_id", "started_at", "arrived_at", "staleness", "time")
    titles = [titled(member.name, member.runs[0]) if member.name else heading(results) for member in found]
    return [(title, of_result(one.runs[0])) for title, one in zip(titles, found, strict=True)]


def _draw(ax: Axes, title: str, runs: Runs, max_clients: int, max_runs: int, until: float | None) -> None:
    """Draws one panel; the limits are those of `timeline`."""
    if "run" not in set(runs.bars.kind):
        raise UserError(f"nobody arrived in {title or 'this result'}; there is no timeline")
    number, total = len(runs.labels), runs.steps[-1]
    clients = thin(number, max_clients)
    bars = runs.bars[np.isin(runs.bars.client, clients)]
    end = total if until is None else until
    starts = bars.start[bars.kind == "run"].values
    if len(starts) > max_runs:
        end = min(end, starts[max_runs])
    bars = bars[bars.start < end]
    rows = np.searchsorted(clients, bars.client)
    ends = bars.end.replace(np.inf, min(end, total))
    bars = bars.assign(row=rows, end=ends)
    draw_bars(ax, bars[bars.kind == "run"])
    notes = ["simulated time (s)"]
    steps = runs.steps[runs.steps <= end]
    if len(steps) <= _STEPS_SHOWN:
        ax.vlines(steps, -0.6, len(clients) - 0.4, color="0.55", linewidth=0.7, zorder=0)
        notes.append("grey lines: server steps")
    for kind, (note, look) in _LOOKS.items():
        some = bars[bars.kind == kind]
        ax.add_collection(PolyCollection(_corners(some), **look))
        notes += [note] if len(some) else []
    ax.set(xlim=(0, end), ylim=(len(clients) - 0.4, -0.6), ylabel="client", xlabel=", ".join(notes))
    fewer = f"{len(clients)} of {number} clients, evenly spaced" if len(clients) < number else ""
    shorter = f"first {end:.4g} of {total:.4g} s" if end < total else ""
    missing = f"without {runs.missing} runs that no server step took" if runs.missing else ""
    ax.set_title(", ".join(filter(None, [title, fewer, shorter, missing])), fontsize=10)
    every = -(-len(clients) // 25)
    labels = [runs.labels[client] for client in clients[::every]]
    ax.set_yticks(range(0, len(clients), every), labels, fontsize=8)
    ax.spines[["top", "right"]].set_visible(False)


def _corners(bars: pd.DataFrame) -> list[np.ndarray]:
    """Returns the corners of each bar, [4, 2]."""
    x = bars[["start", "end", "end", "start"]].values
    y = bars.row.values[:, None] + [-0.4, -0.4, 0.4, 0.4]
    return list(np.stack([x, y], axis=2))


def draw_bars(ax: Axes, bars: pd.DataFrame) -> None:
    """Draws a bar per run, coloured by its staleness (dark is stale), and the colour bar.

    Args:
        ax: the axes.
        bars: `row`, `start`, `end` and `staleness` of each run.
    """
    levels = int(max(bars.staleness, default=0)) + 1  # empty if the shown clients start later
    colours, norm = colormaps["viridis_r"].resampled(levels), BoundaryNorm(np.arange(levels + 1) - 0.5, levels)
    look: dict[str, Any] = {"cmap": colours, "norm": norm, "edgecolors": "white", "linewidths": 0.6}
    drawn = ax.add_collection(PolyCollection(_corners(bars), array=bars.staleness.values, **look))
    ticks = list(range(0, levels, -(-levels // 10)))
    bar = ax.figure.colorbar(drawn, ax=ax, pad=0.01, aspect=12, ticks=ticks)
    bar.minorticks_off()
    bar.set_label("staleness (steps)", fontsize=8)
    bar.ax.tick_params(length=0, labelsize=8)
