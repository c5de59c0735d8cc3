"""Heat maps over two swept options, and what a sweep over two options shows in the shell."""

from __future__ import annotations

import pathlib
import warnings
from typing import Any

import numpy as np
import pytest
import xarray as xr
from matplotlib.patches import Rectangle

import jaxafl as afl
from jaxafl import plot
from jaxafl.cli import main
from jaxafl.cli.show import show_result
from tests.sweep.conftest import simulation


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


def test_values_that_look_equal_keep_their_rows() -> None:
    close = grid().assign_coords({"server.alpha": [0.2, 0.2000000001]})
    assert [one.get_text() for one in plot.heat_map(close).axes[0].get_yticklabels()] == ["0.2", "0.2"]


def test_a_configuration_with_a_failed_run_has_no_mean() -> None:
    figure = plot.heat_map(grid(failed=True))
    assert figure.axes[0].texts[-1].get_text() == "failed" and best(figure) in ((0, 2), (1, 1))
    unfinished = grid()
    unfinished["final_accuracy"][0, 1, 2] = np.nan  # as `gather` returns it
    assert plot.heat_map(unfinished, rows="clock.buffer").axes[0].texts[-1].get_text() == "missing"
    one = plot.heat_map(grid().isel(seed=0))
    assert "one seed" in one.axes[0].get_title() and "±" not in one.axes[0].texts[0].get_text()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda: plot.heat_map(grid().isel({"server.alpha": 0})), "varies in clock.buffer; expected two swept options"),
        (lambda: plot.heat_map(grid(), "f1"), "has no final_f1"),
        (lambda: plot.heat_map(grid(), rows="seed"), "rows must be one of 'server.alpha', 'clock.buffer'"),
        (lambda: plot.heat_map([grid()]), "takes a result"),
        (lambda: plot.heat_map({"a": grid(), "b": grid()}), "heat_map: there are several results; expected one sweep"),
        (lambda: plot.heat_map(grid().expand_dims(test_set=2)), r"varies along test_set; .*result.isel\(test_set=0\)"),
    ],
)
def test_other_results_are_refused(how: Any, said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        how()


def test_the_shell_draws_it_and_its_table_has_a_column_per_axis(tmp_path: pathlib.Path, capsys: Any) -> None:
    afl.save(grid().assign_attrs(jaxafl_version="1"), tmp_path / "grid.nc")
    assert main(["plot", str(tmp_path / "grid.nc"), "--kind", "heat_map", "--output", str(tmp_path / "grid.png")]) == 0
    capsys.readouterr()
    show_result(grid())
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:2] == ["server.", "clock."] for line in lines)
    assert any(line.split()[:2] == ["alpha", "buffer"] for line in lines)
    assert any(line.split()[:4] == ["0.5", "4", "30.0", "±"] for line in lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.slow
def test_a_sweep_of_buffers_at_equal_server_steps_warns(tmp_path: pathlib.Path) -> None:
    sim = simulation()
    with pytest.warns(UserWarning, match="4 server steps are 4 updates with buffer=1, but 8 updates with buffer=2"):
        afl.sweep(sim, {"clock.buffer": [1, 2]}, 4, eval_every=4)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="sweep")
        afl.sweep(sim, {"clock.buffer": [1, 2]}, until={"updates": 4}, eval_every=4)


def test_what_is_listed_can_be_called() -> None:
    assert dir(plot) == sorted(plot.__all__) and all(callable(getattr(plot, name)) for name in dir(plot))
