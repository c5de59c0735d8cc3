"""Timeline of local runs."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import BoundaryNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jaxafl.clock import Schedule
from jaxafl.options import UserError, named
from jaxafl.plot.animation import Runs, check_film, corners_of, save_film
from jaxafl.plot.canvas import ImagePath, check_image_path, figure_of, finish, panels_of
from jaxafl.results.clients import names_of
from jaxafl.results.members import Results, heading, members, titled

_COLUMNS = ("client_id", "run_index", "started_at", "arrived_at", "staleness")
_PANELS = 6
_STEPS_SHOWN = 60  # lines of more server steps would fill the panel


@named
def timeline(
    results: Results | Schedule,
    ax: Axes | None = None,
    path: ImagePath = None,
    *,
    max_clients: int = 50,
    max_runs: int = 400,
    animate: float | None = None,
) -> Figure:
    """Draws a row per client with a bar for every local run from its start to its arrival, coloured by its staleness.

    Runs that no server step consumed are not in a result and leave a gap. Beyond the limits below, the figure shows
    evenly spaced clients and the first part of the simulated time, with a note in the title.

    Args:
        results: a schedule (`Simulation.schedule`), a result, a dict of results by name or a sweep: a panel for each
            member (its first seed), at most six.
        ax: axes to draw into (for one result or schedule); `None` creates a figure.
        path: file of the figure (its ending sets the format); `None` saves nothing.
        max_clients: largest number of rows per panel.
        max_runs: largest number of bars per panel.
        animate: duration of an animation in seconds, for one result or schedule. Runs grow, darken with every version
            that they miss, and reach the server. It is written to `path`, which must end in .gif.

    Returns:
        The figure; of an animation, its last frame.

    Raises:
        TypeError, ValueError: there is no result or no arrival, or too many results for `ax` or an animation.

    Examples:
        >>> import jaxafl as afl
        >>> clock = afl.clock.free_running(concurrency=3, durations=afl.clock.lognormal(0.0, 1.0))
        >>> schedule = afl.clock.schedule(clock, num_clients=5, local_steps=10, server_steps=20)
        >>> figure = afl.plot.timeline(schedule)
        >>> len(figure.axes[0].get_yticklabels())  # a row per client
        5
    """
    file = check_image_path(path)
    if isinstance(results, Schedule):
        found = [(f"{results.protocol}, {results.num_clients} clients", _of_schedule(results))]
        names: list[list[str]] = [[]]
    else:
        named = members(results, "client_id", "started_at", "arrived_at", "staleness", "time")
        firsts = [member.runs[0] for member in named]
        titles = [titled(member.name, member.runs[0]) if member.name else heading(results) for member in named]
        found = list(zip(titles, map(_of_result, firsts), strict=True))
        names = [names_of(run) for run in firsts]
    if animate is not None:
        check_film(animate, file, len(found), ax)
    if ax is not None and len(found) > 1:
        raise ValueError(f"{len(found)} results do not fit into one ax; plot one of them, or pass ax=None")
    shown = found[:_PANELS]
    rows = [min(len(np.unique(runs.client)), max_clients) for _, runs in shown]
    heights = [1.0 + 0.17 * max(count, 6) for count in rows]
    figure, panels = panels_of(ax, 10, sum(heights) + 0.3, len(shown), height_ratios=heights)
    drawn = [
        _draw(panel, title, runs, labels, max_clients, max_runs)
        for panel, (title, runs), labels in zip(panels, shown, names, strict=False)
    ]
    if len(found) > len(shown):
        figure.suptitle(f"the first {len(shown)} of {len(found)} results")
    if animate is not None and file is not None:
        save_film(*drawn[0], animate, file)
        return figure
    return finish(figure, file)


def _draw(
    ax: Axes, name: str, runs: Runs, names: list[str], max_clients: int, max_runs: int
) -> tuple[PolyCollection, np.ndarray, Runs]:
    """Draws one panel and returns its bars, their rows and their runs; `names` are those of all clients, or none."""
    if not len(runs.client):
        raise UserError(f"nobody arrived in {name or 'this result'}; there is no timeline")
    heard = np.unique(runs.client)
    clients = heard[np.linspace(0, len(heard) - 1, min(max_clients, len(heard))).round().astype(int)]
    kept = np.flatnonzero(np.isin(runs.client, clients))
    end = runs.steps[-1] if len(kept) <= max_runs else runs.started[kept[max_runs]]
    kept = kept[runs.started[kept] < end] if len(kept) > max_runs else kept
    row = np.searchsorted(clients, runs.client[kept])
    left, right, stale = runs.started[kept], runs.arrived[kept], runs.staleness[kept]
    steps = runs.steps[runs.steps <= end]
    bars = draw_bars(ax, left, right, row, stale)
    few = len(steps) <= _STEPS_SHOWN
    if few:
        ax.vlines(steps, -0.6, len(clients) - 0.4, color="0.55", linewidth=0.7, zorder=0)
    ax.set(xlim=(0, end), ylim=(len(clients) - 0.4, -0.6), ylabel="client")
    ax.set_xlabel("simulated time (s)" + (", grey lines: server steps" if few else ""))
    fewer = f"{len(clients)} of the {len(heard)} clients heard" if len(clients) < len(heard) else ""
    shorter = f"first {end:.4g} of {runs.steps[-1]:.4g} s" if end < runs.steps[-1] else ""
    ax.set_title(", ".join(filter(None, [name, fewer, shorter])), fontsize=10)
    every = -(-len(clients) // 25)
    labels = [names[client] if client < len(names) else str(client) for client in clients[::every]]
    ax.set_yticks(range(0, len(clients), every), labels, fontsize=8)
    ax.spines[["top", "right"]].set_visible(False)
    return bars, row, Runs(runs.client[kept], left, right, stale, steps)


def draw_bars(ax: Axes, left: np.ndarray, right: np.ndarray, row: np.ndarray, staleness: np.ndarray) -> PolyCollection:
    """Draws a bar per run, coloured by its staleness, and the colour bar."""
    corners = list(corners_of(left, right, row))
    worst = int(staleness.max())
    colours, norm = _colours(worst)
    bars = PolyCollection(corners, array=staleness, cmap=colours, norm=norm, edgecolors="white", linewidths=0.6)
    ax.add_collection(bars)
    bar = figure_of(ax).colorbar(bars, ax=ax, pad=0.01, aspect=12)
    bar.set_label("staleness (steps)", fontsize=8)
    if isinstance(norm, BoundaryNorm):
        bar.set_ticks(list(range(worst + 1)), labels=[str(level) for level in range(worst + 1)])
        bar.ax.tick_params(length=0)
    else:
        bar.locator = MaxNLocator(5, integer=True)
    bar.ax.tick_params(labelsize=8)
    return bars


def _colours(worst: int) -> tuple[object, Normalize | BoundaryNorm]:
    """Returns a colour per staleness if there are few values, else a continuous scale; dark is stale."""
    scale = colormaps["viridis_r"]
    if worst > 9:
        return scale, Normalize(0, worst)
    return scale.resampled(worst + 1), BoundaryNorm(np.arange(worst + 2) - 0.5, worst + 1)


def _of_schedule(schedule: Schedule) -> Runs:
    columns = [
        getattr(schedule, name.removesuffix("_at").removesuffix("_index").removesuffix("_id")) for name in _COLUMNS
    ]
    return _sorted(schedule.mask, columns, schedule.time)


def _of_result(run: xr.Dataset) -> Runs:
    time = run["time"].values
    return _sorted(run["client_id"].values >= 0, [run[name].values for name in _COLUMNS], time[np.isfinite(time)])


def _sorted(mask: np.ndarray, columns: list[np.ndarray], steps: np.ndarray) -> Runs:
    """Returns the runs sorted by start; a run consumed by several server steps once, with its first staleness."""
    client, run, started, arrived, staleness = (values[mask] for values in columns)
    first = np.unique(np.stack([client, run]), axis=1, return_index=True)[1]
    order = first[np.argsort(started[first], kind="stable")]
    return Runs(client[order].astype(int), started[order], arrived[order], staleness[order], steps)
