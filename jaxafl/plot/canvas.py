"""Code common to all figures: a canvas without a window, a colour-blind safe palette, and saving."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from typing import Any, TypeAlias, cast

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxafl.data.partition.picture import Picture
from jaxafl.options import UserError
from jaxafl.readers.replacing import replacing
from jaxafl.results import check_path
from jaxafl.results.curves import Curve, curve, failed_steps, has_failed, percent
from jaxafl.results.tables.members import Member, Results, finished_members

ImagePath: TypeAlias = str | os.PathLike[str] | None
"""File of a figure; `None` saves nothing."""
Limits: TypeAlias = tuple[float | None, float | None] | None
"""Lower and upper limit of an axis; `None` leaves one, or both, as they are."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Palette of Okabe and Ito without yellow, which has too little contrast on white."""
DASHES = ("-", "--", ":", "-.")


def panels_of(ax: Axes | None, width: float, height: float, rows: int = 1, **layout: Any) -> tuple[Figure, list[Axes]]:
    """Returns the given axes and their figure, or a new figure with rows of axes; width and height in inches."""
    if ax is not None:
        return cast(Figure, ax.get_figure(root=True)), [ax]
    figure = Picture(width, height)
    return figure, list(figure.subplots(rows, squeeze=False, **layout)[:, 0])


def thin(count: int, most: int) -> np.ndarray:
    """Returns the indices of at most `most` of `count` points, evenly spaced, including the first and the last."""
    return np.linspace(0, count - 1, min(count, most)).round().astype(int)


def one_member(results: Results, *variables: str) -> Member:
    """Returns the one configuration of results, with its finished runs; raises `ValueError` if there are several."""
    found = finished_members(results, *variables)
    if len(found) != 1:
        axis = next(iter(found[0].place), None)
        one = f"results[{found[0].name!r}]" if axis is None else f"result.isel({{{axis!r}: 0}})"
        raise UserError(f"this figure takes one configuration, got {len(found)} configurations; choose one, e.g. {one}")
    return found[0]


def styled(lines: Collection[Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Returns each line with its colour and dashes, from a palette for few and from a colour scale for many."""
    styles: list[dict[str, Any]] = [{"color": colour} for colour in COLOURS[: len(lines)]]
    if (last := len(lines) - 1) >= len(COLOURS):
        scale = matplotlib.colormaps["viridis"]
        styles = [{"color": scale(0.9 * index / last), "linestyle": DASHES[index % 4]} for index in range(last + 1)]
    return zip(lines, styles, strict=True)


def curves_of(line: Member, variable: str, metric: str) -> list[Curve]:
    """Returns the curves of a line's runs against a variable; raises `ValueError` if one has no evaluations."""
    found = [curve(run, variable, metric) for run in line.runs]
    if not all(one.at.size for one in found):
        raise UserError(
            f"{line.name or 'the result'} has no evaluation with a finite {metric}; there is nothing to plot"
        )
    return found


def draw_line(
    ax: Axes, line: Member, at: np.ndarray, values: np.ndarray, band: tuple[np.ndarray, np.ndarray], **style: Any
) -> None:
    """Draws a line, in a band if it has several seeds.

    A cross marks the end of a line with failed runs, with their number in the legend.

    Args:
        ax: the axes.
        line: the runs of the line.
        at, values: float [points].
        band: lower and upper limits, float [points].
        **style: colour and other properties of the line.
    """
    ax.plot(at, values, linewidth=1.8, **style)
    failed = sum(map(has_failed, line.runs))
    count = len(line.runs)
    if failed:
        step = int(failed_steps(line.runs[0]))
        note = f"{failed} of {count} failed" if count > 1 else f"failed at server step {step}"
        label = f"{line.name}: {note}".removeprefix(": ")
        look = {"markersize": 9, "markeredgewidth": 2, "color": style["color"]}
        ax.plot(at[-1:], values[-1:], "x", **look, clip_on=False, label=label)
    if count > 1:
        where = style.get("drawstyle", "").removeprefix("steps-") or None
        ax.fill_between(at, *band, step=where, color=style["color"], alpha=0.15, linewidth=0)


def legend_beside(ax: Axes, title: str | None = None) -> None:
    """Draws a legend of several entries, or with a title, to the right of the axes, where it covers no line."""
    entries = len(ax.get_legend_handles_labels()[1])
    if entries > 1 or title is not None:
        legend = ax.legend(
            loc="upper left",
            bbox_to_anchor=(1.01, 1),
            borderaxespad=0,
            frameon=False,
            fontsize=9,
            title=title,
            title_fontsize=9,
            ncols=1 + (entries - 1) // 20,
        )
        legend.set_alignment("left")


def label_of(metric: str, units: str = "1") -> str:
    """Returns the label of a metric, such as `test accuracy (%)` or `test rmse (m)`; those of other samples say so."""
    words = metric.replace("_", " ")
    name = words if words.startswith(("validation ", "clients ")) else f"test {words}"
    units = "%" if percent(metric) else units
    return name if units == "1" else f"{name} ({units})"


def tidy(ax: Axes, xlim: Limits = None, ylim: Limits = None) -> None:
    """Draws a light grid, removes the box around the data, and sets limits in the units of the figure, if given."""
    given = {"xlim": xlim, "ylim": ylim}
    ax.set(**{name: limits for name, limits in given.items() if limits is not None})
    ax.grid(color="0.9", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def finish_lines(
    figure: Figure, ax: Axes, path: ImagePath, xlim: Limits = None, ylim: Limits = None, title: str | None = None
) -> Figure:
    """Draws grid, limits and a legend with this title into a figure of lines, and finishes it."""
    tidy(ax, xlim, ylim)
    legend_beside(ax, title)
    return finish(figure, path)


def finish(figure: Figure, path: ImagePath) -> Figure:
    """Saves the figure if a path is given, and returns it; raises as `check_path` does."""
    if (file := check_path(path)) is not None:
        with replacing(file) as unfinished:
            figure.savefig(unfinished, dpi=150)
    return figure
