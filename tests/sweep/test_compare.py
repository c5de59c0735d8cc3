"""Paired comparisons: what is the same under one seed, what comes back, and that they go on where they stopped."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from typing import Any

import matplotlib
import numpy as np
import pytest
import xarray as xr

import jaxafl as afl
from jaxafl.callbacks.base import Callback
from tests.sweep.conftest import differing, simulation

SEEDS = [0, 3]


def methods() -> dict[str, afl.Simulation]:
    """Two servers on one clock, and one on another."""
    buff = simulation()
    clock = dataclasses.replace(buff.clock, buffer=1)
    return {
        "FedBuff": buff,
        "FADAS": dataclasses.replace(buff, server=afl.server.fadas(0.01)),
        "FedAsync": dataclasses.replace(buff, server=afl.server.fedasync(0.5), clock=clock),
    }


@pytest.fixture(scope="module")
def made() -> afl.Comparison:
    steps = {"FedBuff": 8, "FADAS": 8, "FedAsync": 12}
    return afl.compare(methods(), SEEDS, steps, eval_every=2)


def artificial(**accuracies: Any) -> afl.Comparison:
    """Curves of given accuracies, [seeds, evaluations], evaluated every ten seconds."""

    def result(rows: np.ndarray) -> xr.Dataset:
        at = 10.0 * np.arange(rows.shape[1])
        return xr.Dataset(
            {"accuracy": (("seed", "evaluation"), rows), "loss": (("seed", "evaluation"), 1 - rows)},
            {"seed": range(len(rows)), "eval_time": ("evaluation", at), "eval_step": ("evaluation", at / 5)},
        ).assign(failed_step=("seed", np.where(np.isfinite(rows).all(axis=1), -1, 3)))

    return afl.Comparison({name: result(np.asarray(rows, float)) for name, rows in accuracies.items()})


@pytest.mark.slow
def test_methods_on_one_clock_have_the_same_schedule_and_initial_model(made: afl.Comparison) -> None:
    buff, adaptive, other = made.results.values()
    for name in ("time", "client_id", "run_index", "started_at", "arrived_at", "staleness", "local_steps"):
        np.testing.assert_array_equal(buff[name], adaptive[name])
    np.testing.assert_array_equal(buff.loss[:, 0], adaptive.loss[:, 0])
    np.testing.assert_array_equal(buff.loss[:, 0], other.loss[:, 0])
    assert np.abs(buff.loss - adaptive.loss)[:, 1:].min() > 0


@pytest.mark.slow
def test_summaries_and_differences_are_paired_by_seed(made: afl.Comparison) -> None:
    last = {name: result.loss.values[:, -1] for name, result in made.results.items()}
    for name, found in made.summary("loss").items():
        np.testing.assert_allclose(found.values, last[name])
        assert found.mean == pytest.approx(last[name].mean()) and found.std == pytest.approx(last[name].std(ddof=1))
    found = made.differences("FADAS", "loss")
    assert list(found) == ["FedBuff", "FedAsync"]
    np.testing.assert_allclose(found["FedAsync"].values, last["FedAsync"] - last["FADAS"])


def test_seven_of_ten_samples_reach_the_target_0_7() -> None:
    """The mean is 0.69999999 in float32."""
    x, y = np.zeros((10, 3), np.float32), np.repeat([0, 1], [7, 3])
    data = afl.data.from_arrays(x, y, y, x_test=x, y_test=y)
    client, clock = afl.Client(learning_rate=0.0, steps=1, batch_size=2), afl.clock.synchronous(cohort=2)
    sim = afl.Simulation(data, afl.models.logistic(2), client, afl.server.fedavg(), clock)
    result = sim.run(4, eval_every=2, until={"accuracy": 0.7})
    assert float(result.accuracy[0]) < 0.7 and result.attrs["stopped"] == "accuracy 0.7 has reached 0.7"
    found = afl.compare({"a": sim}, seeds=2, server_steps=2).time_to(0.7)["a"]
    assert found.reached.all() and found.median == 0


def test_a_metric_that_is_infinite_at_the_end_has_not_the_value_of_an_earlier_evaluation() -> None:
    one = artificial(a=[[0.1, 0.5], [0.1, 0.7]]).results["a"]
    other = one.assign(perplexity=(("seed", "evaluation"), [[9.0, np.inf], [8.0, 2.0]]))
    two = afl.Comparison({"a": one.assign(perplexity=1 / one.accuracy), "b": other})
    assert two.summary("perplexity")["b"].values.tolist() == [np.inf, 2.0]
    assert two.summary("perplexity", at="best")["b"].values.tolist() == [9.0, 2.0]
    assert two.time_to(3.0, "perplexity")["b"].at.tolist() == [10.0, 10.0]
    assert two.time_to(3.0, "perplexity")["b"].reached.tolist() == [False, True]
    assert "infinite (1/2)" in two.table(metrics="perplexity")


def test_a_method_with_a_run_that_failed_has_no_mean() -> None:
    two = artificial(a=[[0.1, 0.5], [0.1, 0.7]], b=[[0.1, 0.9], [0.1, np.nan]])
    assert two.failed == {"b": [1]} and np.isnan(two.summary()["b"].mean)
    assert two.differences("a")["b"].verdict == "not decided"
    assert (two.time_to(0.8)["b"].at.tolist(), two.time_to(0.8)["b"].reached.tolist()) == ([10, np.inf], [True, False])
    assert "failed (1/2)" in two.table() and "**60 ± 14**" in two.table()


def test_the_table_says_what_was_not_reached_and_what_is_best() -> None:
    fast = [[0.1, 0.6, 0.7], [0.1, 0.2, 0.8], [0.1, 0.6, 0.9]]
    slow = [[0.1, 0.2, 0.3], [0.1, 0.1, 0.2], [0.1, 0.2, 0.6]]
    both = artificial(fast=fast, slow_one=slow)
    assert repr(both) == "Comparison(fast, slow_one)"
    assert both.table(targets=0.5).splitlines()[2:4] == [
        "| fast | **80 ± 10** | **10 (3/3)** |",
        "| slow_one | 37 ± 21 | > 20 (1/3) |",
    ]
    assert both.time_to(0.5, axis="server_steps")["fast"].median == 2
    decided = both.table("latex", metrics=["loss", "accuracy"], at="best", reference="slow_one", targets=[0.35])
    assert decided.splitlines()[2] == (
        r"method & loss & accuracy (\%) & minus slow\_one, 95 \% interval & time to 0.35 (s) \\"
    )
    assert r"\textbf{0.20 $\pm$ 0.10} & \textbf{80 $\pm$ 10} & $-$0.43 [$-$0.81, $-$0.05], better &" in decided


@pytest.mark.slow
def test_a_time_is_a_limit_for_all(tmp_path: pathlib.Path) -> None:
    """Without server_steps, and going on: nothing is run again."""
    both = {name: sim for name, sim in methods().items() if name != "FADAS"}
    some = {"FedAsync": both["FedAsync"]}
    found = afl.compare(some, SEEDS, until={"time": 12.0}, eval_every=2, folder=tmp_path)
    for name, result in found.results.items():
        schedules = [some[name].schedule(100, seed).time for seed in SEEDS]
        for seed, times in enumerate(schedules):  # the last server step until then
            assert result.eval_time[seed].max().item() == times[times <= 12.0][-1]
    values = found.summary(at={"time": 12.0})["FedAsync"].values
    one = found.results["FedAsync"].isel(seed=1)
    assert values[1] == pytest.approx(one.accuracy.values[one.eval_time.values <= 12.0][-1])

    told = []

    class Told(Callback):
        def begin(self, run: Any) -> None:
            told.append(run)

    again = afl.compare(both, SEEDS, until={"time": 12.0}, eval_every=2, folder=tmp_path, callbacks=Told())
    assert {run.options["server"]["name"] for run in told} == {"fedbuff"}
    for name, result in found.results.items():
        assert not differing(again.results[name], result)
    gathered = afl.Comparison.gather(tmp_path)
    assert gathered.at == again.at
    assert gathered.table() == again.table()
    with pytest.raises(ValueError, match=r"holds runs until \{'time': 12.0\}, not \{'loss': 0.1\}"):
        afl.compare(some, SEEDS, 5, until={"loss": 0.1}, folder=tmp_path)
    next(tmp_path.glob("*/sweep.json")).unlink()
    with pytest.raises(ValueError, match=r"is not the folder of a sweep"):
        afl.Comparison.gather(tmp_path)


def test_invalid_options_raise_before_any_run() -> None:
    one, online = methods()["FedBuff"], simulation("online")
    for wrong, said in (
        (lambda: afl.compare({"a": one}, 0, 5), "seeds must be at least 1"),
        (lambda: afl.compare({"a": one}, [1, 1], 5), "each once"),
        (lambda: afl.compare({"a": one}, 2), 'server_steps, or a limit of simulated time such as until={"time"'),
        (lambda: afl.compare({"a": one}, 2, {"a": 0}), "server_steps must be at least 1, got 0 (method a)"),
        (lambda: afl.compare({"a": online}, 2, until={"time": 5}), "depends on the training"),
        (lambda: afl.Comparison({"a": artificial(a=[[0.1]]).results["a"].isel(seed=0)}), "sweeps over seeds"),
        (lambda: artificial(a=[[0.1, 0.2]]).summary(at={"time": 11}), "ends at time=10, before 11"),
        (lambda: artificial(a=[[0.1]]).summary("speed"), "metric must be one of 'accuracy', 'loss'"),
        (lambda: artificial(a=[[0.1]]).table(targets=60), "accuracy must be"),
        (lambda: afl.Comparison(artificial(a=[[0.1]]).results | artificial(b=[[1.0]] * 2).results), "on the seeds"),
    ):
        with pytest.raises((ValueError, TypeError), match=re.escape(said)):
            wrong()


def test_the_figure_shows_medians_where_all_seeds_are() -> None:
    rng = np.random.default_rng(0)
    rows = rng.random((5, 9))
    two = artificial(a=rows, b=rows[:, :6])
    two.results["b"]["eval_time"] = ("seed", "evaluation"), np.outer(1 + np.arange(5), np.arange(6.0))
    axes = afl.Comparison(two.results).plot().axes[0]
    (first, second), bands = axes.lines, axes.collections
    np.testing.assert_allclose(first.get_xdata(), 10.0 * np.arange(9))
    np.testing.assert_allclose(first.get_ydata(), 100 * np.median(rows, axis=0))
    assert second.get_xdata().max() == 5.0  # the end of the first seed
    at_four = [rows[seed, int(4 // (1 + seed))] for seed in range(5)]
    at = list(second.get_xdata()).index(4.0)
    assert second.get_ydata()[at] == pytest.approx(100 * np.median(at_four))
    heights = [path.vertices[:, 1] for path in bands[0].get_paths()]
    low, high = np.quantile(100 * rows, [0.25, 0.75], axis=0)
    assert max(map(np.max, heights)) == pytest.approx(high.max()) and min(map(np.min, heights)) == pytest.approx(
        low.min()
    )
    assert first.get_drawstyle() == "steps-post" and "5 seeds" in str(first.get_label())
    assert matplotlib.colors.same_color(bands[0].get_facecolor()[0][:3], first.get_color())


def test_methods_on_different_data_are_refused() -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32), np.arange(40) % 3
    pooled = afl.data.Dataset("toy", x, y, x[:9], y[:9], 3, afl.data.cast())

    def on(data: afl.data.FederatedData) -> afl.Simulation:
        client, clock = afl.Client(learning_rate=0.1, steps=1, batch_size=2), afl.clock.synchronous()
        return afl.Simulation(data, afl.models.logistic(3), client, afl.server.fedavg(), clock)

    iid = on(pooled.partition(afl.data.iid(4)))
    tested = dataclasses.replace(pooled, x_test=x[1:10])
    for words, other in (
        ("partition", pooled.partition(afl.data.dirichlet_equal(0.5, 4))),
        ("partition", pooled.partition(afl.data.iid(5))),
        ("validation_share None and 0", iid.data.with_validation(0.5)),
        ("other samples", tested.partition(afl.data.iid(4))),
    ):
        with pytest.raises(ValueError, match=rf"a and b have different data \({words}"):
            afl.compare({"a": iid, "b": on(other)}, 2, 1)
    again = on(pooled.partition(afl.data.iid(4)))  # the same, made again
    assert again.data is not iid.data
    assert afl.compare({"a": iid, "b": again}, 2, 1).seeds == [0, 1]


def test_files_that_say_that_their_data_differ_are_refused() -> None:
    one = artificial(a=[[0.1, 0.2]] * 2).results["a"].assign_attrs(data='{"partition": "iid", "source": "idx"}')
    other = one.assign_attrs(data='{"partition": "iid", "source": "tfds", "more": 1}')
    assert afl.Comparison({"a": one, "b": other}).seeds == [0, 1]
    with pytest.raises(ValueError, match=r"a and b have different data \(partition iid and shards\)"):
        afl.Comparison({"a": one, "b": one.assign_attrs(data='{"partition": "shards"}')})
