"""Figures that show themselves."""

from __future__ import annotations

import io

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


class Picture(Figure):
    """A figure that needs no window, and that a notebook shows where it is the value of a cell: IPython does so by
    itself only where pyplot, which is not used here, has been imported."""

    def __init__(self, width: float, height: float) -> None:
        super().__init__(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png", dpi=90, bbox_inches="tight")
        return content.getvalue()
