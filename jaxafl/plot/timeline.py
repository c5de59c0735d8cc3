"""Timeline of local runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import BoundaryNorm
from matplotlib.figure import Figure

from jaxafl.clock import Schedule
from jaxafl.clock.schedule import FLYING, WAITING
from jaxafl.options import UserError, named
from jaxafl.plot.canvas import ImagePath, finish, panels_of, thin
from jaxafl.results.clients import names_of
from jaxafl.results.curves import stated
from jaxafl.results.tables.members import Results, finished_members, heading, titled

_ROUNDING = 1e-9  # a smaller fraction of a run is no wait
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


class Runs(NamedTuple):
    """Contents of a timeline.

    Attributes:
        bars: `client`, `start` and `end` in simulated seconds, `staleness` and `kind` of each bar. The kind is `"run"`
            for a run that a server step takes, in the order of starts; `"paused"` for the seconds in which its client
            hangs, or in which its update waits for the server step, up to the client's next start; `"wasted"` for a run
            that no server step takes; and `"flying"` for one in flight at the end, whose end is infinite.
        labels: label of each client.
        steps: float64 [T], times of the server steps.
        missing: number of further runs that no server step took and that are not shown.
    """

    bars: pd.DataFrame
    labels: list[str]
    steps: np.ndarray
    missing: int


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
        return [(str(name), _of_schedule(one)) for name, one in results.items()]
    found = finished_members(results, "client_id", "started_at", "arrived_at", "staleness", "time")
    titles = [titled(member.name, member.runs[0]) if member.name else heading(results) for member in found]
    return [(title, _of_result(one.runs[0])) for title, one in zip(titles, found, strict=True)]


def _of_schedule(schedule: Schedule) -> Runs:
    """Returns the runs of a schedule, with those in flight at its end."""
    mask, unused = schedule.mask, schedule.unused
    lasted = schedule.arrived - schedule.started
    idle = lasted - schedule.work
    idle = np.where(idle > _ROUNDING * lasted, idle, 0.0)
    columns = [schedule.client, schedule.run, schedule.started, schedule.arrived, schedule.staleness, idle]
    flying = unused.reason == FLYING
    others = pd.DataFrame({"client": unused.client, "start": unused.started, "staleness": 0})
    others["end"] = np.where(flying, np.inf, unused.ended)
    others["kind"] = np.where(flying | (unused.reason == WAITING), "flying", "wasted")
    bars = _bars(columns, schedule.time, mask, others, waits=schedule.waits)
    labels = [str(client) for client in range(schedule.num_clients)]
    if "region" in schedule.per_step:  # of its arrival, if there is one
        regions = np.repeat(schedule.region, schedule.taken).tolist()
        for client, region in zip(schedule.of_arrivals("client").tolist(), regions, strict=True):
            labels[client] = f"{client} (region {region})"
    missing = schedule.runs_started - len(np.unique(schedule.run_id[mask])) - len(others)
    return Runs(bars, labels, schedule.time, max(missing, 0))


def _of_result(run: xr.Dataset) -> Runs:
    """Returns the runs of a result, which does not hold the runs in flight at its end."""
    time, client = run["time"].values, run["client_id"].values
    columns = [run[name].values for name in ("client_id", "run_index", "started_at", "arrived_at", "staleness")]
    bars = _bars([*columns, np.zeros(client.shape)], time, client >= 0)
    labels = names_of(run) or [str(one) for one in range(int(client.max(initial=-1)) + 1)]
    return Runs(bars, labels, time[np.isfinite(time)], int(stated(run, "runs_never_consumed", 0)))


def _bars(
    columns: list[np.ndarray], time: np.ndarray, mask: np.ndarray, *others: pd.DataFrame, waits: bool = False
) -> pd.DataFrame:
    """Returns the bars; a run consumed by several server steps is shown once, with its first staleness.

    Args:
        columns: of arrivals, [T, A]: client, number of the run among the client's, start, end, staleness, and seconds
            between start and end in which the client does not compute.
        time: times of the server steps, [T].
        mask: True for arrivals, [T, A].
        *others: bars of runs that no server step takes.
        waits: True if clients are idle before they compute, and False if afterwards.
    """
    names = ("client", "run", "start", "end", "staleness", "idle", "taken")
    columns = [*columns, np.broadcast_to(time[:, None], mask.shape)]
    arrived = {name: column[mask] for name, column in zip(names, columns, strict=True)}
    runs = pd.DataFrame(arrived).assign(kind="run")
    runs = runs.drop_duplicates(["client", "run"]).sort_values(["start", "client", "run"], ignore_index=True)
    every = pd.concat([runs, *others], ignore_index=True).sort_values(["client", "start"], kind="stable")
    following = every.groupby("client")["start"].shift(-1)[runs.index]  # the client's next start, NaN for none
    waited = np.fmin(runs.taken, following)
    paused = runs.assign(kind="paused")
    idle = {"end": runs.start + runs.idle} if waits else {"start": runs.end - runs.idle}
    held = paused.assign(start=runs.end, end=waited)[waited > runs.end]
    return pd.concat([runs, paused.assign(**idle)[runs.idle > 0], held, *others], ignore_index=True)


def _draw(ax: Axes, title: str, runs: Runs, max_clients: int, max_runs: int, until: float | None) -> None:
    """Draws one panel; the limits are those of `timeline`."""
    if "run" not in set(runs.bars.kind):
        raise UserError(f"nobody arrived in {title or 'this result'}; there is no timeline")
    number = len(runs.labels)
    total = runs.steps[-1]
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
