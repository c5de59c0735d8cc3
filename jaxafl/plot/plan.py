"""What a run will do, before it does: lanes, and the ring of past versions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxafl.engine.plan import Plan
from jaxafl.options import named
from jaxafl.plot.canvas import ImagePath, check_image_path, finish, panels_of
from jaxafl.plot.timeline import draw_bars

_CENTRED: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7, "clip_on": True}


class _Story(NamedTuple):
    """What happens up to a server step."""

    trained: np.ndarray  # [R, 5]: lane, first and last local step of the lane, client, staleness
    kept: np.ndarray  # [V, 3]: slot, first and last server step of each version
    started: np.ndarray  # [R, 2]: server step to come, slot of the version
    stepped: np.ndarray  # [T]: local steps of a lane made before each server step


@named
def plan(planned: Plan, path: ImagePath = None, *, max_steps: int = 30) -> Figure:
    """Which runs train side by side, and how long every version of the model is kept.

    Above, a row per lane: a bar for every local run, from the local step at which a lane loads it to that at which its
    update is stored, with its client's number and coloured by the staleness that its update will have; grey lines are
    server steps. Below, a row per slot of the ring: a bar for every version from the server step that makes it to the
    last that reads it, with its number; dots are runs that start from it.

    Args:
        planned: of `Simulation.plan`.
        path: where to save the figure (its ending sets the format); `None` saves nothing.
        max_steps: server steps shown, the first ones.

    Returns:
        The figure.

    Raises:
        TypeError: it is no plan.
        ValueError: nothing would be shown.
    """
    file = check_image_path(path)
    if not isinstance(planned, Plan):
        raise TypeError(f"plan draws what Simulation.plan(server_steps) gives, got {type(planned).__name__}")
    steps = min(max_steps, len(planned.steps.time))
    if steps < 1:
        raise ValueError(f"max_steps must be at least 1 and the plan have server steps, got {max_steps} and {steps}")
    story = _told(planned, steps)
    heights = [1.0 + 0.24 * planned.lanes, 1.0 + 0.24 * planned.slots]
    figure, (lanes, ring) = panels_of(None, 10, sum(heights), 2, height_ratios=heights)
    _draw_lanes(lanes, story, planned.lanes)
    _draw_ring(ring, story, planned.slots)
    if steps < len(planned.steps.time):
        figure.suptitle(f"the first {steps} of {len(planned.steps.time)} server steps", fontsize=10)
    return finish(figure, file)


def _told(planned: Plan, steps: int) -> _Story:
    """Goes through the segments and server steps as the engine does."""
    segments, table = planned.segments, planned.steps
    made, holds = 0, {0: 0}  # local steps of a lane; slot -> version
    kept, begun, trained, started, stepped = [[0, 0, 0]], {}, [], [], []
    for t, (before, after) in enumerate(np.pad(table.segments_before, (1, 0))[np.arange(steps)[:, None] + [0, 1]]):
        for s in range(before, after):
            for i in range(segments.load_count[s]):
                slot = int(segments.load_slot[s, i])
                kept[holds[slot]][2] = t
                started.append((t, slot))
                begun[int(segments.load_lane[s, i])] = made, segments.load_client[s, i], segments.load_staleness[s, i]
            made += int(segments.active[s].max())
            for lane in segments.save_lane[s, : segments.save_count[s]].tolist():
                since, client, staleness = begun.pop(lane)
                trained.append((lane, since, made, client, staleness))
        for slot in table.base_slot[t][table.mask[t]].tolist():
            kept[holds[slot]][2] = t
        holds[int(table.write_slot[t])] = len(kept)
        kept.append([int(table.write_slot[t]), t + 1, t + 1])
        stepped.append(made)
    trained += [(lane, since, made, client, staleness) for lane, (since, client, staleness) in begun.items()]
    return _Story(*(np.asarray(one, int) for one in (trained, kept, started, stepped)))


def _draw_lanes(ax: Axes, story: _Story, lanes: int) -> None:
    lane, left, right, client, staleness = story.trained.T
    draw_bars(ax, left, right, lane, staleness)
    for middle, row, who in zip((left + right) / 2, lane, client, strict=True):
        ax.text(middle, row, str(who), **_CENTRED, bbox={"boxstyle": "round,pad=0.1", "fc": "white", "lw": 0})
    ax.vlines(story.stepped, -0.6, lanes - 0.4, color="0.3", linewidth=0.7)
    ax.set(xlim=(0, story.stepped[-1]), ylim=(lanes - 0.4, -0.6), ylabel="lane", yticks=range(lanes))
    ax.set_xlabel("local steps that a lane has made; numbers: clients, lines: server steps")
    ax.spines[["top", "right"]].set_visible(False)


def _draw_ring(ax: Axes, story: _Story, slots: int) -> None:
    slot, first, last = story.kept.T
    ax.barh(slot, last - first + 1, 0.8, first - 0.5, color=np.where(first % 2, "0.82", "0.9"), edgecolor="white")
    for version, row in zip(first, slot, strict=True):
        ax.text(version - 0.3, row, str(version), **_CENTRED)
    ax.plot(*story.started.T, ".", color="#0072B2", markersize=5)
    ax.set(xlim=(-0.5, first[-1] + 0.5), ylim=(slots - 0.4, -0.6), ylabel="slot of the ring", yticks=range(slots))
    ax.set_xlabel("server step to come; numbers: versions, dots: local runs that load them")
    ax.spines[["top", "right"]].set_visible(False)
