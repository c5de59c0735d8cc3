"""Averages of results: over seeds that end at different steps, and over places at which nothing arrived."""

from __future__ import annotations

import pathlib

import matplotlib
import numpy as np
import pytest
import xarray as xr

import jaxafl as afl
from tests.problems import classifier, points

matplotlib.use("agg")
TARGET = 0.3


def simulation(clock: afl.clock.Clock) -> afl.Simulation:
    return classifier(data=points(8, 50), client=afl.Client(learning_rate=0.01, steps=2, batch_size=5), clock=clock)


@pytest.fixture(scope="module")
def ragged(tmp_path_factory: pytest.TempPathFactory) -> xr.Dataset:
    """Three seeds, each stopped where it reaches a target."""
    sim = simulation(afl.clock.free_running(concurrency=6, buffer=4, durations=afl.clock.lognormal(0.0, 1.0)))
    stop = afl.callbacks.StopAt(accuracy=TARGET)
    path = tmp_path_factory.mktemp("ragged") / "ragged.nc"
    found = afl.sweep(sim, {"seed": range(3)}, 24, eval_every=4, callbacks=[stop], save=path)
    assert afl.load(path).identical(found)
    assert found.accuracy.isnull().any(), "all seeds end at the same step"
    return found


@pytest.mark.slow
def test_the_final_values_are_those_of_the_last_evaluation_of_each_seed(ragged: xr.Dataset) -> None:
    for name in ("accuracy", "loss"):
        last = [values[np.isfinite(values)][-1] for values in ragged[name].values]
        np.testing.assert_array_equal(ragged[f"final_{name}"].values, last)
    assert (ragged.final_accuracy >= TARGET).all()
    assert ragged.final_accuracy.mean("seed", skipna=False) >= TARGET
    np.testing.assert_array_equal(ragged.final_time, ragged.eval_time.max("evaluation"))
    np.testing.assert_array_equal(ragged.final_step, ragged.eval_step.max("evaluation"))
    assert ragged.final_accuracy.attrs["long_name"].endswith("at the end of each run")


def test_a_run_that_failed_has_no_final_value() -> None:
    clock = afl.clock.free_running(concurrency=6, durations=afl.clock.constant(1.0))
    client = afl.Client(learning_rate=1e38, steps=5, batch_size=5)
    with pytest.warns(UserWarning, match="stopped being finite"):
        failed = classifier(data=points(8, 50), client=client, clock=clock).run(12, eval_every=2)
    assert np.isnan([failed.final_accuracy, failed.final_loss]).all() and failed.final_time >= 0


def test_a_point_takes_the_last_evaluation_that_is_not_after_it(ragged: xr.Dataset) -> None:
    for axis, variable in {"time": "eval_time", "server_steps": "eval_step", "bytes": "eval_bytes"}.items():
        point = float(ragged[variable].max("evaluation").min())  # all seeds have run until there
        found = afl.at(ragged, **{axis: point})
        for seed in range(3):
            one = ragged.isel(seed=seed)
            there = one.loss.values[one[variable].values <= point]
            assert found.loss.values[seed] == there[-1], axis
        assert (found[variable] <= point).all()
    assert afl.at(ragged, time=2.5).attrs["at"] == "at 2.5 s simulated"
    with pytest.raises(ValueError, match="a point"):
        afl.at(ragged, time=1, bytes=2)


def test_a_run_that_ends_before_a_point_is_missing_there_and_a_warning_names_it(ragged: xr.Dataset) -> None:
    ends = ragged.final_step.values
    with pytest.warns(UserWarning, match=rf"3 of 3 runs end before server_steps=1000, the first at {min(ends):g}"):
        assert afl.at(ragged, server_steps=1000).accuracy.isnull().all()
    with pytest.warns(UserWarning, match=f"{int((ends < ends.max()).sum())} of 3 runs"):
        found = afl.at(ragged, server_steps=ends.max())
    np.testing.assert_array_equal(found.accuracy.isnull().values, ends < ends.max())


def curves(rows: list[list[float]], times: list[list[float]]) -> xr.Dataset:
    steps = np.arange(len(rows[0]))
    dims = ("seed", "evaluation")
    variables = {"accuracy": (dims, rows), "loss": (dims, 1 - np.asarray(rows))}
    coords = {"seed": range(len(rows)), "eval_time": (dims, times), "eval_step": ("evaluation", steps)}
    own = {"failed_step": ("seed", [-1] * len(rows)), "time": (("seed", "step"), np.asarray(times)[:, 1:])}
    return xr.Dataset(variables | own, coords, {"title": "t"})


def test_a_comparison_has_one_point_that_table_summary_figure_and_report_say(tmp_path: pathlib.Path) -> None:
    """The slow method's last evaluation is long after 200 s, when it is as good as the other."""
    fast = curves([[0.1, 0.90, 0.9], [0.1, 0.92, 0.92]], [[0, 100, 205], [0, 100, 206]])
    slow = curves([[0.1, 0.80, 0.9], [0.1, 0.82, 0.92]], [[0, 100, 280], [0, 100, 290]])
    both = afl.Comparison({"fast": fast, "slow": slow}, at={"time": 200})
    assert [one.mean for one in both.summary().values()] == pytest.approx([0.91, 0.81])
    assert both.summary(at="last")["slow"].mean == pytest.approx(0.91)
    _, _, one, other, _, said, *_ = both.table(reference="slow").splitlines()
    assert said.startswith("Values: at 200 s simulated.") and "91.0" in one and "81.0" in other
    assert "Values: at the end of each run." in both.table(at="last")
    (ax,) = both.plot().axes
    assert "compared at 200 s simulated" in ax.get_legend().get_title().get_text()
    assert [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == ":"] == [200]
    page = afl.plot.report(both, tmp_path / "page.html").read_text()
    assert "At 200 s simulated: fast 91.0 %, slow 81.0 %." in page


@pytest.mark.slow
def test_means_over_arrivals_leave_out_places_without_one() -> None:
    sparse = simulation(afl.clock.bernoulli(upload=0.4)).run(12, eval_every=6, diagnostics="drift")
    assert 0 < sparse.arrived.mean() < 1
    there, client = sparse.arrived.values, sparse.client_id.values
    assert there.dtype == bool and sparse.arrived.dims == ("step", "arrival")
    np.testing.assert_array_equal(there, client >= 0)
    assert float(sparse.staleness.mean()) == pytest.approx(sparse.attrs["staleness_mean"], rel=1e-12)
    assert float(sparse.local_steps.mean()) == 2 and float(sparse.multiplicity.mean()) == 1
    assert float(sparse.local_steps.sum()) == float(sparse.final_local_steps)
    for name, values in sparse.data_vars.items():
        if values.dims == ("step", "arrival") and values.dtype.kind == "f":
            np.testing.assert_array_equal(values.notnull(), there, err_msg=name)
        elif values.dims == ("step", "arrival"):
            assert name in ("client_id", "run_index", "arrived")
