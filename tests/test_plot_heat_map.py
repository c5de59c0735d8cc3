"""Heat maps over two swept options, and what a sweep over two options shows in the shell."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.patches import Rectangle

from jaxafl import plot


def grid(failed: bool = False) -> xr.Dataset:
    """Accuracies 0.1 (row + column) ± 0.02 over three seeds, best at the last row and column."""
    dims, sizes = ("seed", "server.alpha", "clock.buffer"), (3, 2, 3)
    seeds, rows, columns = np.indices(sizes)
    last = 0.1 * (rows + columns) + 0.02 * (seeds - 1)
    step = np.where(failed & (rows == 1) & (columns == 2) & (seeds == 0), 4, -1)
    coords = {"seed": range(3), "server.alpha": [0.2, 0.5], "clock.buffer": [1, 2, 4]}
    found = {"final_accuracy": (dims, last), "final_loss": (dims, 1 - last), "failed_step": (dims, step)}
    found |= {
        "accuracy": ((*dims, "evaluation"), last[..., None]),
        "loss": ((*dims, "evaluation"), 1 - last[..., None]),
    }
    found |= {"time": ((*dims, "step"), np.ones((*sizes, 1))), "staleness": ((*dims, "step"), np.zeros((*sizes, 1)))}
    return xr.Dataset(found, coords)


def best(figure: Any) -> tuple[int, int]:
    (frame,) = [one for one in figure.axes[0].patches if isinstance(one, Rectangle)]
    return round(frame.get_y() + 0.48), round(frame.get_x() + 0.48)


def test_a_cell_is_the_mean_over_seeds_and_the_best_is_framed(tmp_path: pathlib.Path) -> None:
    figure = plot.heat_map(grid(), path=tmp_path / "grid.png")
    (ax, _) = figure.axes
    np.testing.assert_allclose(ax.images[0].get_array(), [[0, 10, 20], [10, 20, 30]], atol=1e-9)
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("server.alpha", "clock.buffer")
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "4"]
    assert ax.texts[-1].get_text() == "30.0\n± 2.0" and best(figure) == (1, 2)
    assert "mean ± std of 3 seeds" in ax.get_title() and (tmp_path / "grid.png").stat().st_size > 5000
    turned = plot.heat_map(grid(), "loss", rows="clock.buffer")
    assert turned.axes[0].images[0].get_array().shape == (3, 2) and best(turned) == (2, 1)  # the smallest loss


def test_a_configuration_with_a_failed_run_has_no_mean() -> None:
    figure = plot.heat_map(grid(failed=True))
    assert figure.axes[0].texts[-1].get_text() == "failed or\nmissing" and best(figure) in ((0, 2), (1, 1))
    unfinished = grid()
    unfinished["final_accuracy"][0, 1, 2] = np.nan  # as `gather` returns it
    assert plot.heat_map(unfinished, rows="clock.buffer").axes[0].texts[-1].get_text() == "failed or\nmissing"
    one = plot.heat_map(grid().isel(seed=0))
    assert "one seed" in one.axes[0].get_title() and "±" not in one.axes[0].texts[0].get_text()
