"""Matplotlib figures for notebooks, without pyplot."""

from __future__ import annotations

import io

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


class Picture(Figure):
    """Figure without a window, displayed as the value of a notebook cell.

    IPython displays ordinary figures only if pyplot has been imported.
    """

    def __init__(self, width: float, height: float) -> None:
        super().__init__(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png", dpi=90, bbox_inches="tight")
        return content.getvalue()
