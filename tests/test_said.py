"""What is said of files with other endings, of runs that failed, and of what is no result."""

from __future__ import annotations

import functools
import pathlib
import warnings

import matplotlib
import numpy as np
import pytest
import xarray as xr

import jaxafl as afl
from jaxafl.cli import main
from jaxafl.results.failures import FailedRun
from tests.variants import slow_but

matplotlib.use("agg")


def simulation(rate: float = 0.1) -> afl.Simulation:
    problem = afl.theory.quadratic(clients=4)
    clock = afl.clock.free_running(concurrency=2, durations=afl.clock.constant(1.0))
    client = afl.Client(learning_rate=rate, steps=2, batch_size=None)
    return afl.Simulation(problem.data, problem.model, client, afl.server.fedbuff(), clock)


@pytest.fixture(scope="module")
def failed() -> xr.Dataset:
    with pytest.warns(FailedRun, match="stopped being finite at server step 0, after an update of client"):
        return simulation(3e38).run(4, eval_every=2)


@pytest.fixture(scope="module")
def grid() -> xr.Dataset:
    with pytest.warns(FailedRun, match=r"of 2 of 4 runs .*client.learning_rate=3e\+38, seed=0 at step 0; .*seed=1"):
        return afl.sweep(simulation(), {"client.learning_rate": [0.1, 3e38], "seed": range(2)}, 4, eval_every=2)


@pytest.mark.parametrize("name", ["r.csv", "r.json", "r.parquet", "r.npz", "r.PNG", "r.zarr"])
def test_a_result_is_not_written_under_the_name_of_another_format(name: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / name
    for write in (
        lambda: simulation().run(4, save=path),
        lambda: afl.sweep(simulation(), {"seed": [0]}, 4, save=path),
        lambda: afl.save(xr.Dataset(), path),
    ):
        with pytest.raises(ValueError, match=r"ends in \.\w+, but a result is written as NetCDF: call it r\.nc.*Csv"):
            write()
    assert not path.exists()


@pytest.mark.parametrize("name", slow_but(["r", "r.NC", "r.nc4", "rate=0.1", "r.h5"], "rate=0.1", "r.h5"))
def test_a_result_is_written_under_any_other_name(name: str, tmp_path: pathlib.Path, grid: xr.Dataset) -> None:
    afl.save(grid, tmp_path / name)
    assert afl.load(tmp_path / name).identical(grid)


def test_files_of_callbacks_are_called_as_what_they_are(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=r"log\.nc ends in \.nc, but Csv writes text with commas: call it log\.csv"):
        afl.callbacks.Csv(tmp_path / "log.nc")
    with pytest.raises(ValueError, match=r"but Best writes safetensors: call it best\.safetensors"):
        afl.callbacks.Best(tmp_path / "best.npz", "loss")


def test_a_failed_save_names_its_cause(tmp_path: pathlib.Path) -> None:
    with pytest.raises(TypeError, match=r"save\(result, 'r.nc'\); got"):
        afl.save(tmp_path / "r.nc", xr.Dataset())  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match=r"a file is named by its path, a str or pathlib.Path such as 'result.nc'; got 5"
    ):
        afl.save(xr.Dataset(), 5)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="could not be saved") as raised:
        afl.save(xr.Dataset({"a": ("x", np.array([object()]))}), tmp_path / "r.nc")
    assert "disk" not in str(raised.value)


def test_a_failed_load_names_its_cause(tmp_path: pathlib.Path, grid: xr.Dataset) -> None:
    afl.save(grid, tmp_path / "mine.nc")
    with pytest.raises(IsADirectoryError, match=r"is a folder.*e\.g\. .*mine\.nc, or read the folder of a sweep with"):
        afl.load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no result file .*your\.nc.*the folder has mine\.nc"):
        afl.load(tmp_path / "your.nc")
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*absent"):
        afl.load(tmp_path / "absent" / "mine.nc")
    with pytest.raises(TypeError, match="a file is named by its path"):
        afl.load([tmp_path / "mine.nc"])  # type: ignore[arg-type]


def test_a_run_that_failed_says_so_wherever_it_is_shown(failed: xr.Dataset, tmp_path: pathlib.Path) -> None:
    assert "at server step 0, after an update" in repr(failed)
    assert next(iter(failed.attrs)) == "failed"
    for draw in (afl.plot.accuracy_vs_time, afl.plot.staleness_histogram, afl.plot.timeline):
        if draw is afl.plot.accuracy_vs_time and "accuracy" not in failed:
            continue
        titles = [ax.get_title() for ax in draw(failed).axes]
        assert any("failed at server step 0" in title for title in titles), draw.__name__
    assert "failed: its parameters were not finite" in afl.plot.report(failed, tmp_path / "r.html").read_text()
    with pytest.warns(FailedRun):
        assert simulation(3e38).train(4).failure is not None


def test_a_sweep_with_runs_that_failed_says_so(grid: xr.Dataset, tmp_path: pathlib.Path) -> None:
    assert "2 of 4 runs, see failed_step" in repr(grid) and grid.attrs["title"]
    assert "(2 of 4 runs failed)" in afl.plot.staleness_histogram(grid).axes[0].get_title()
    assert "staleness_mean" in grid and "staleness_mean" not in grid.attrs  # of the runs that did not fail
    assert grid.final_loss.isnull().values.tolist() == [[False, False], [True, True]]
    methods = {name: grid.isel({"client.learning_rate": place}, drop=True) for place, name in enumerate("ab")}
    both = afl.Comparison(methods)
    assert repr(both) == "Comparison(a, b; failed: b on seeds [0, 1])"
    table = both.table(metrics="loss", reference="a")
    assert "failed (2/2)" in table and "a run failed, or is missing" in table and "not decided" not in table


def test_a_run_that_did_not_fail_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FailedRun)
        made = simulation().run(4, eval_every=2)
    assert "failed" not in made.attrs and "failed" not in afl.plot.timeline(made).axes[0].get_title()


def test_figures_and_reports_say_what_to_give_instead(grid: xr.Dataset, tmp_path: pathlib.Path) -> None:
    for wrong, said in (
        ([grid, grid], r"Give the results names: \{'first'"),
        ("r.nc", r"Read the file first: jaxafl\.load\('r\.nc'\)"),
        (pathlib.Path("r.nc"), "Read the file first"),
        (grid.loss, "Give the whole result, not its variable loss"),
        ({"a": 5}, "got {'a': 5}"),
        (None, "got None"),
    ):
        with pytest.raises(TypeError, match=said):
            afl.plot.staleness_histogram(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=said):
            afl.plot.report(wrong, tmp_path / "r.html")
    empty = grid.isel(seed=slice(0))
    for draw in (afl.plot.staleness_histogram, afl.plot.timeline):
        with pytest.raises(ValueError, match="no run to plot: the results are empty along seed"):
            draw(empty)
        with pytest.raises(ValueError, match=r"the dict is empty"):
            draw({})
    with pytest.raises(ValueError, match="no run to plot: the results are empty along seed"):
        afl.plot.report(empty, tmp_path / "r.html")


def test_errors_say_what_was_given() -> None:
    client, plan = functools.partial(afl.Client, learning_rate=0.1, batch_size=2), afl.clock.constant(1.0)
    for wrong, said in (
        (lambda: client(steps=2, charge="executed").check(4), "patience=None: give patience=n"),
        (lambda: client(steps=2, patience=3).check(4), "got steps=2, reset='run', patience=3"),
        (lambda: client(epochs=2, sampling="epochs").check(4), "got epochs=2, which implies it"),
        (
            lambda: afl.clock.free_running(concurrency=2, dispatch="step", before_step=True, durations=plan).check(4),
            "free_running: before_step=True needs dispatch='arrival', got 'step'",
        ),
        (lambda: afl.clock.synchronous(replacement=True, durations=plan).check(4), "cohort=None: give cohort=n"),
        (lambda: afl.tune([1], {}, server_steps=3), r"tune takes one Simulation.*got \[1\]"),
        (
            lambda: afl.sweep(simulation(), {"seed": [0]}, 2, executor=print, folder="x", devices=1),
            "leave devices=1 out",
        ),
        (lambda: afl.theory.staleness.of_schedule(xr.Dataset()), "of one run, .* got Dataset"),
    ):
        with pytest.raises((ValueError, TypeError), match=said):
            wrong()


def test_the_command_line_says_which_file_is_missing(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plot", str(tmp_path / "absent.nc"), "--output", "a.png"]) != 0
    assert "there is no result file" in capsys.readouterr().err
    assert main(["report", str(tmp_path)]) != 0
    assert "is a folder, not a result file" in capsys.readouterr().err


def test_the_measured_mean_beside_a_bound_is_of_steps_that_all_seeds_were_evaluated_at() -> None:
    """Runs that end at 5 and at 6 have their last evaluations at one place of the dimension."""
    steps = [[0, 2, 4, 5, np.nan], [0, 2, 4, 6, 8]]
    loss = [[3.0, 2.0, 1.0, 9.0, np.nan], [3.0, 2.0, 1.0, 0.5, 0.2]]
    variables = {"average_loss": (("seed", "evaluation"), loss)}
    runs = xr.Dataset(variables, {"seed": [0, 1], "eval_step": (("seed", "evaluation"), steps)})
    problem = afl.theory.quadratic(clients=4, heterogeneity=0.5)
    given = afl.theory.staleness.bernoulli(0.95, clients=4).assign(learning_rate=0.5)
    audg = afl.theory.delayed_gradients.audg
    bound = afl.theory.evaluate(audg, problem.constants(), given, server_steps=range(1, 9))
    line = afl.plot.bound(runs, bound).axes[0].lines[0]
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == ([2, 4], [2, 1])
