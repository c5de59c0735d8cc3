"""`Tuned`, the result of a search."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from jaxafl.results.tables import Cell, table
from jaxafl.simulation import Simulation

if TYPE_CHECKING:  # xarray takes a third of a second to import, so it is when a result is made
    import xarray as xr

CONFIGURATION = "configuration"
"""Dimension of the configurations."""


@dataclasses.dataclass(frozen=True, eq=False)
class Tuned:
    """The result of a search.

    Attributes:
        best: path -> value of the best configuration.
        simulation: the simulation with these values. Its data still holds out the validation split;
            `dataclasses.replace(tuned.simulation, data=full)` trains on all of it.
        dataset: `score` (rung, configuration), the mean over seeds: NaN for a dropped configuration, ±∞ (the worst) if
            a run failed; `values` (rung, configuration, seed); `local_steps` (rung, configuration), the sum over seeds.
            Coordinates are `server_steps` of the longest run and limits `until` of each rung, and the options of each
            configuration.
        results: the sweep of each rung.
        failed: descriptions of the runs without a finite score.
        edges: descriptions of the options with the best value at an edge of the grid, where a wider grid may be better.
        ties: descriptions of equal scores of which only some could go on, or be the best: those first in the grid.
    """

    best: dict[str, Any]
    simulation: Simulation
    dataset: xr.Dataset
    results: tuple[xr.Dataset, ...]
    failed: tuple[str, ...]
    edges: tuple[str, ...] = ()
    ties: tuple[str, ...] = ()

    @property
    def tied(self) -> str:
        """A sentence about equal scores; empty if there are none."""
        told = f"{'; '.join(self.ties)}, and the first in the grid is taken: more seeds or steps may tell them apart"
        return told if self.ties else ""

    def __repr__(self) -> str:
        sizes = self.dataset.sizes
        return f"Tuned(best={self.best}, configurations={sizes[CONFIGURATION]}, rungs={sizes['rung']})"

    def __str__(self) -> str:
        best = ", ".join(f"{path}={value}" for path, value in self.best.items())
        edges = f"{'; '.join(self.edges)}: widen the grid"
        notes = [*([edges] if self.edges else []), *([self.tied] if self.ties else [])]
        return "\n".join([self.table(), "", f"best: {best}", *notes])

    def table(self, format: str = "markdown") -> str:
        """Returns a table with a row per configuration: its score at each rung and its local steps; the best is bold.

        Args:
            format: `"markdown"` or `"latex"`.

        Raises:
            ValueError: the format is unknown.
        """
        data = self.dataset
        ends = [f"after {steps:,} server steps" for steps in data.server_steps.values]
        if "until" in data.coords:
            ends = [f"until {limits}" for limits in data.until.values]
        metric = data.attrs["metric"].replace("_", " ")
        header = [CONFIGURATION, *(f"{metric} {end}" for end in ends), "local steps"]
        rows = []
        for place in range(data.sizes[CONFIGURATION]):
            scores = [_shown(number) for number in data.score.values[:, place]]
            texts = [data.configuration.values[place], *scores, f"{data.local_steps.values[:, place].sum():,.0f}"]
            rows.append([Cell(text, place == data.attrs["best"]) for text in texts])
        return table(format, header, rows)


def _shown(score: float) -> str:
    return "" if math.isnan(score) else f"{score:.4g}" if math.isfinite(score) else "failed"
