"""Figure of a plan: lanes, and the ring of past versions."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxafl.engine.plan import Plan
from jaxafl.options import named
from jaxafl.plot.canvas import ImagePath, finish, panels_of
from jaxafl.plot.timeline import draw_bars

_CENTRED: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7, "clip_on": True}


@named
def plan(planned: Plan, path: ImagePath = None, *, max_steps: int = 30) -> Figure:
    """Draws the runs in each lane, and the lifetime of every version of the model.

    The upper panel has a row per lane with a bar for every local run, from the local step that loads it to the one that
    stores its update. A bar has its client's number and the colour of its update's staleness; grey lines are server
    steps. The lower panel has a row per slot of the ring with a bar for every version, from the server step that writes
    it to the last that reads it. Dots are runs that start from the version.

    Args:
        planned: a plan of `Simulation.plan`.
        path: file of the figure (its ending sets the format); `None` saves nothing.
        max_steps: number of server steps shown, from the first.

    Returns:
        The figure.
    """
    steps = min(max_steps, len(planned.steps.time))
    trained, kept, started, stepped = _replay(planned, steps)
    heights = [1.0 + 0.24 * planned.lanes, 1.0 + 0.24 * planned.slots]
    figure, (lanes, ring) = panels_of(None, 10, sum(heights), 2, height_ratios=heights)
    _draw_lanes(lanes, trained, stepped, planned.lanes)
    _draw_ring(ring, kept, started, planned.slots)
    if steps < len(planned.steps.time):
        figure.suptitle(f"the first {steps} of {len(planned.steps.time)} server steps", fontsize=10)
    return finish(figure, path)


def _replay(planned: Plan, steps: int) -> list[np.ndarray]:
    """Replays segments and server steps in the order of the engine.

    Returns:
        [R, 5]: lane, first and last local step of the lane, client and staleness of each trained run; [V, 3]: slot,
        first and last server step of each kept version; [R, 2]: next server step and slot of the version of each
        started run; [T]: local steps of a lane before each server step.
    """
    segments, table = planned.segments, planned.steps
    local_steps = 0  # of a lane
    holds = {0: 0}  # slot -> version
    begun = {}  # lane -> run
    kept = [[0, 0, 0]]
    trained, started, stepped = [], [], []
    borders = [0, *table.segments_before[:steps].tolist()]
    for t, (before, after) in enumerate(itertools.pairwise(borders)):
        for s in range(before, after):
            for lane in np.flatnonzero(segments.loads[s]).tolist():
                slot = int(segments.load_slot[s, lane])
                kept[holds[slot]][2] = t
                started.append((t, slot))
                begun[lane] = local_steps, segments.load_client[s, lane], segments.load_timing.staleness[s, lane]
            local_steps += int(segments.active[s].max())
            for lane in np.flatnonzero(segments.saves[s]).tolist():
                since, client, staleness = begun.pop(lane)
                trained.append((lane, since, local_steps, client, staleness))
        for slot in table.base_slot[t][table.mask[t]].tolist():
            kept[holds[slot]][2] = t
        holds[int(table.write_slot[t])] = len(kept)
        kept.append([int(table.write_slot[t]), t + 1, t + 1])
        stepped.append(local_steps)
    trained += [(lane, since, local_steps, client, staleness) for lane, (since, client, staleness) in begun.items()]
    return [np.asarray(one, int) for one in (trained, kept, started, stepped)]


def _draw_lanes(ax: Axes, trained: np.ndarray, stepped: np.ndarray, lanes: int) -> None:
    runs = pd.DataFrame(trained, columns=["row", "start", "end", "client", "staleness"])
    draw_bars(ax, runs)
    box = {"boxstyle": "round,pad=0.1", "fc": "white", "lw": 0}
    for run in runs.itertuples():
        ax.text((run.start + run.end) / 2, run.row, str(run.client), **_CENTRED, bbox=box)
    ax.vlines(stepped, -0.6, lanes - 0.4, color="0.3", linewidth=0.7)
    ax.set(xlim=(0, stepped[-1]), ylim=(lanes - 0.4, -0.6), ylabel="lane", yticks=range(lanes))
    ax.set_xlabel("local steps that a lane has made; numbers: clients, lines: server steps")
    ax.spines[["top", "right"]].set_visible(False)


def _draw_ring(ax: Axes, kept: np.ndarray, started: np.ndarray, slots: int) -> None:
    slot, first, last = kept.T
    ax.barh(slot, last - first + 1, 0.8, first - 0.5, color=np.where(first % 2, "0.82", "0.9"), edgecolor="white")
    for version, row in zip(first, slot, strict=True):
        ax.text(version - 0.3, row, str(version), **_CENTRED)
    ax.plot(*started.T, ".", color="#0072B2", markersize=5)
    ax.set(xlim=(-0.5, first[-1] + 0.5), ylim=(slots - 0.4, -0.6), ylabel="slot of the ring", yticks=range(slots))
    ax.set_xlabel("server step to come; numbers: versions, dots: local runs that load them")
    ax.spines[["top", "right"]].set_visible(False)
