"""One dimension for clients, with their names, in results and in what is made of them."""

from __future__ import annotations

import functools
import pathlib
from typing import Any

import numpy as np
import pytest
import xarray as xr
from matplotlib.collections import PathCollection

import jaxafl as afl

NAMES = ["ann", "bob", "eve", "zoe"]


@functools.cache
def simulation(named: bool = True) -> afl.Simulation:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 3)).astype(np.float32), rng.integers(0, 3, 60)
    ids = np.repeat(NAMES, [1, 19, 20, 20])  # of the first no sample is held out
    data = afl.data.from_arrays(x, y, ids, test_fraction=0.3, num_classes=3)
    if not named:
        data = afl.data.FederatedData(**{**vars(data), "client_names": None})
    clock = afl.clock.free_running(concurrency=2, buffer=2, durations=afl.clock.uniform(1, 5))
    client = afl.Client(learning_rate=0.1, steps=1, batch_size=2)
    return afl.Simulation(data, afl.models.logistic(3), client, afl.server.fedbuff(0.5), clock)


@functools.cache
def _run() -> xr.Dataset:
    return simulation().run(4, eval_every=2, diagnostics="per_client")


def run() -> xr.Dataset:
    return _run().copy(deep=True)


@functools.cache
def grid() -> xr.Dataset:
    axes = {"seed": [3, 5], "client.learning_rate": [0.01, 0.1]}
    return afl.sweep(simulation(), axes, 4, eval_every=2, diagnostics="per_client")


def test_what_is_known_of_a_client_lies_along_one_dimension() -> None:
    result = run()
    assert result.client_name.values.tolist() == NAMES
    product = result.client_accuracy * result.participation * result.mean_staleness
    assert product.dims == ("evaluation", "population") and product.client_name.values.tolist() == NAMES
    assert result.client_accuracy.isnull().values.tolist() == [[True, False, False, False]] * 3
    assert result.client_samples.values.tolist() == [0, 5, 6, 6] and result.client_accuracy.dtype == np.float32
    share, count, error = (
        float(result[name].isel(evaluation=-1, population=1, missing_dims="ignore"))
        for name in ("client_accuracy", "client_samples", "client_accuracy_error")
    )
    ends = np.roots([1 + 1 / count, -2 * share - 1 / count, share**2])  # (p - q)² = q(1 - q)/n
    assert error == pytest.approx(abs(ends[1] - ends[0]) / 2, rel=1e-5) and error > 0
    by_name = result.participation.swap_dims(population="client_name")
    assert by_name.sel(client_name="eve") == result.participation[2]


@pytest.mark.slow
def test_a_sweep_keeps_the_names(tmp_path: pathlib.Path) -> None:
    assert grid().client_name.dims == ("population",) and grid().client_name.values.tolist() == NAMES
    found = afl.sweep(simulation(), {"data": [simulation().data, simulation(False).data]}, 2, eval_every=2)
    assert "client_name" not in found.coords  # the second has none
    folder = tmp_path / "sweep"
    afl.sweep(simulation(), {"seed": [0, 1]}, 2, eval_every=2, diagnostics="per_client", folder=folder)
    gathered = afl.gather(folder)
    assert gathered.client_name.values.tolist() == NAMES
    assert (gathered.client_accuracy * gathered.participation).dims == ("seed", "evaluation", "population")


@pytest.mark.parametrize(
    ("table", "rows", "columns"),
    [
        ("evaluations", 3, {"evaluation", "accuracy", "loss", "eval_step", "eval_time", "eval_bytes"}),
        ("steps", 4, {"step", "time", "bytes_up", "bytes_down"}),
        ("arrivals", 8, {"step", "arrival", "client_id", "client_name", "staleness", "local_loss", "time"}),
        ("clients", 4, {"population", "client_name", "participation", "mean_staleness", "client_samples"}),
        ("client_evaluations", 9, {"evaluation", "population", "client_name", "client_accuracy", "eval_time"}),
        ("runs", 1, {"final_accuracy", "final_time"}),
    ],
)
def test_a_tidy_table_has_a_row_per_observation(table: Any, rows: int, columns: set[str]) -> None:
    one, all_ = afl.tidy(run(), table), afl.tidy(grid(), table)
    assert len(one) == rows and columns | {"seed"} <= set(one) and set(one.seed) == {0}
    assert len(all_) == 4 * rows and columns | {"seed", "client.learning_rate"} <= set(all_)
    assert all_.groupby(["seed", "client.learning_rate"]).size().tolist() == [rows] * 4
    for seed, rate in ((3, 0.01), (5, 0.1)):
        member = grid().sel({"seed": seed, "client.learning_rate": rate})
        own = all_[(all_.seed == seed) & (all_["client.learning_rate"] == rate)]
        for name in columns & set(member.data_vars) - {"time"}:
            expected = member[name].values.ravel().astype(float)
            np.testing.assert_array_equal(own[name], expected if len(expected) == rows else expected[expected >= 0])


def test_a_tidy_table_says_who_arrived_and_leaves_out_who_is_not_there() -> None:
    result = run()
    result["client_id"][1, 1], result["staleness"][1, 1] = -1, np.nan
    frame = afl.tidy(result, "arrivals")
    assert len(frame) == 7 and (frame.staleness >= 0).all()
    assert frame.client_name.tolist() == [NAMES[client] for client in frame.client_id]
    np.testing.assert_array_equal(frame.time, result.time.values[frame.step])


def test_tidy_tables_of_several_results_have_a_method() -> None:
    frame = afl.tidy({"short": run().isel(evaluation=[0]), "long": run()})
    assert frame.columns[0] == "method" and frame.method.value_counts().to_dict() == {"long": 3, "short": 1}
    ragged = xr.concat([run(), run().isel(evaluation=[0, 1])], "repeat", join="outer")
    assert len(afl.tidy(ragged)) == 5


def test_figures_and_reports_call_clients_by_their_names(tmp_path: pathlib.Path) -> None:
    rows = afl.plot.timeline(run()).axes[0].get_yticklabels()
    assert {label.get_text() for label in rows} <= set(NAMES)
    texts = {text.get_text() for text in afl.plot.accuracy_vs_participation(run()).axes[0].texts}
    assert texts == set(NAMES[1:])  # of whom samples are held out
    failed = run().assign_attrs(failed_step=1, failed_client=2)
    page = afl.plot.report(failed, tmp_path / "report.html").read_text()
    assert "after an update of client 2 (eve)" in page
    page = afl.plot.report(run(), tmp_path / "report.html").read_text()
    assert '["ann","bob","eve","zoe"]' in page.replace(", ", ",")


def test_invalid_results_for_a_tidy_table_raise() -> None:
    with pytest.raises(ValueError, match=r"table must be .*'evaluations'"):
        afl.tidy(run(), "everything")
    with pytest.raises(ValueError, match=r"has no client_loss.*diagnostics=.per_client"):
        afl.tidy(run().drop_vars(["client_loss", "client_accuracy"]), "client_evaluations")
    with pytest.raises(TypeError, match=r"tidy takes a result .*; got 3"):
        afl.tidy(3)


def test_runs_that_xarray_has_joined_are_not_given_the_seed_of_the_first() -> None:
    """`xr.concat` keeps the attributes of the first one."""
    joined = xr.concat([run(), run()], "repeat", combine_attrs="override")
    assert "seed" in afl.tidy(run()) and "seed" not in afl.tidy(joined)
    assert "seed" not in afl.tidy(joined.assign_coords(repeat=[3, 4]))


@pytest.mark.slow
def test_figures_of_seeds_that_end_at_different_steps_are_those_of_each_run() -> None:
    """Shorter runs are padded; the figures took their last, missing evaluation."""
    seeds = range(6)
    how = {"until": {"time": 23.0}, "eval_every": 1, "diagnostics": "per_client"}
    found = afl.sweep(simulation(), {"seed": seeds}, **how)
    assert found.client_accuracy.isnull().all("population").any()  # padded
    drawn = afl.plot.accuracy_vs_participation(found).axes[0].collections
    means = 100 * found.final_client_accuracy.mean("seed"), found.participation.mean("seed")
    expected = [(share, accuracy) for accuracy, share in zip(*means, strict=True) if np.isfinite(accuracy)]
    dots = np.concatenate([one.get_offsets() for one in drawn if isinstance(one, PathCollection)])
    np.testing.assert_allclose(sorted(map(tuple, dots)), sorted(expected), rtol=1e-6)
    median = afl.plot.client_spread(found).axes[0].lines[0].get_ydata()
    assert np.isfinite(median).all()
    assert len(median) > 2
