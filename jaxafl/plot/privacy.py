"""Curves of ε against simulated time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxafl.options import UserError, named
from jaxafl.plot.canvas import ImagePath, finish, legend_beside, line_styles, panels_of, tidy


@named
def epsilon_vs_time(privacy: Any, ax: Axes | None = None, path: ImagePath = None) -> Figure:
    """Draws the largest ε of a client so far against simulated time in seconds.

    Args:
        privacy: what `Schedule.privacy` or `result.privacy` returns, or a dict of these by name: a line for each.
        ax: axes to draw into; `None` creates a figure.
        path: file of the figure (its ending sets the format); `None` saves nothing.

    Returns:
        The figure.

    Raises:
        ValueError: their δ differ.
    """
    found = dict(privacy) if isinstance(privacy, Mapping) and "max_epsilon" not in privacy else {"": privacy}
    deltas = sorted({one.attrs["delta"] for one in found.values()})
    if len(deltas) != 1:
        raise UserError(f"epsilon_vs_time: δ differs, {deltas}; expected one δ. Compute all with the same delta=")
    figure, [ax] = panels_of(ax, 8.5 if len(found) > 1 else 6.5, 4.2)
    for (name, one), style in zip(found.items(), line_styles(len(found)), strict=True):
        ax.plot(one["time"], one["max_epsilon"], drawstyle="steps-post", linewidth=1.8, label=name, **style)
    ax.set(xlabel="simulated time (s)", ylabel=f"largest ε of a client (δ = {deltas[0]:g})", xlim=(0, None))
    ax.set_ylim(0, None)
    tidy(ax)
    if len(found) > 1:
        legend_beside(ax, len(found))
    return finish(figure, path)
