"""A run that diverged is marked wherever it is shown."""

from __future__ import annotations

import pathlib
import warnings

import matplotlib
import pytest

import jaxafl as afl
from jaxafl.results.failures import FailedRun
from tests.problems import descent

matplotlib.use("agg")


def simulation(rate: float = 0.1) -> afl.Simulation:
    return descent(client=afl.Client(learning_rate=rate, steps=2, batch_size=None))


def test_a_run_that_failed_is_marked(tmp_path: pathlib.Path) -> None:
    with pytest.warns(FailedRun, match="server step 0"):
        failed = simulation(3e38).run(4, eval_every=2)
    assert "failed" in failed.attrs and "failed" in afl.plot.timeline(failed).axes[0].get_title()
    assert "failed" in afl.plot.report(failed, tmp_path / "r.html").read_text()
    with pytest.warns(FailedRun):
        assert simulation(3e38).train(4).failure is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error", FailedRun)
        made = simulation().run(4, eval_every=2)
    assert "failed" not in made.attrs and "failed" not in afl.plot.timeline(made).axes[0].get_title()


def test_runs_of_a_sweep_that_failed_are_marked_and_left_out() -> None:
    with pytest.warns(FailedRun, match="of 2 of 4 runs"):
        grid = afl.sweep(simulation(), {"client.learning_rate": [0.1, 3e38], "seed": range(2)}, 4, eval_every=2)
    assert grid.final_loss.isnull().values.tolist() == [[False, False], [True, True]]
    assert "(2 of 4 runs failed)" in afl.plot.staleness_histogram(grid).axes[0].get_title()
    methods = {name: grid.isel({"client.learning_rate": place}, drop=True) for place, name in enumerate("ab")}
    assert "failed (2/2)" in afl.Comparison(methods).table(metrics="loss", reference="a")
