"""What a run returns, and what is kept in its file."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl import results


@pytest.fixture(scope="module")
def sim() -> afl.Simulation:
    return afl.Simulation(
        data=afl.data.synthetic(1.0, 1.0, clients=6, max_size=60),
        model=afl.models.logistic(10),
        client=afl.Client(optax.sgd, learning_rate=0.01, steps=2, batch_size=5),
        server=afl.server.fedbuff(),
        clock=afl.clock.free_running(concurrency=4, buffer=2, durations=afl.clock.uniform(1, 5)),
    )


def test_axes_and_units_are_named(sim: afl.Simulation) -> None:
    result = sim.run(9, eval_every=4)
    assert result.accuracy.dims == ("evaluation",)
    assert result.staleness.dims == ("step", "arrival")
    assert list(result.eval_step.values) == [0, 4, 8, 9]
    np.testing.assert_array_equal(result.eval_time.values[1:], result.time.values[[3, 7, 8]])
    np.testing.assert_array_equal(result.eval_updates.values, [0, 8, 16, 18])
    np.testing.assert_array_equal(result.eval_local_steps.values, [0, 16, 32, 36])
    for name in ("time", "staleness", "accuracy", "loss", "eval_time"):
        assert result[name].attrs["units"] and result[name].attrs["long_name"]


def test_every_option_of_the_run_is_in_its_attributes(sim: afl.Simulation, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "result.nc"
    result = sim.run(4, eval_every=2, seed=5, save=path)
    again = afl.load(path)
    assert again.attrs["seed"] == 5
    assert json.loads(again.attrs["server"])["learning_rate"] == 1.0
    clock = json.loads(again.attrs["clock"])
    assert (clock["concurrency"], clock["buffer"], clock["dispatch"]) == (4, 2, "arrival")
    assert clock["durations"]["parameters"] == {"low": 1, "high": 5}
    client = json.loads(again.attrs["client"])
    assert (client["steps"], client["batch_size"], client["hyperparameters"]) == (2, 5, {"learning_rate": 0.01})
    assert json.loads(again.attrs["data"])["clients"] == 6
    assert again.equals(result)


def test_observed_arrays_are_recorded_at_every_step(sim: afl.Simulation) -> None:
    result = sim.run(5, observe=lambda params: {"norm": optax.tree.norm(params)})
    assert result.observe_norm.dims == ("step",)
    assert (result.observe_norm.values > 0).all()


def test_runs_that_nobody_consumes_are_counted(sim: afl.Simulation) -> None:
    result = sim.run(6, eval_every=6)
    assert result.attrs["runs_started"] - result.attrs["runs_never_consumed"] == 12


def test_a_file_that_is_no_result(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError, match="no result file"):
        results.load(tmp_path / "nothing.nc")
    broken = tmp_path / "broken.nc"
    broken.write_bytes(b"not a result")
    with pytest.raises(ValueError, match="not a result file"):
        results.load(broken)


def test_progress_is_reported_after_every_chunk(sim: afl.Simulation) -> None:
    class Reporter:
        def __init__(self) -> None:
            self.seen: list[tuple[int, float, dict[str, float]]] = []

        def __enter__(self) -> Reporter:
            return self

        def __exit__(self, *args: object) -> None:
            return None

        def update(self, done: int, updates_per_second: float, metrics: dict[str, float]) -> None:
            self.seen.append((done, updates_per_second, metrics))

    reporter = Reporter()
    sim.run(7, eval_every=3, progress=reporter)
    assert [done for done, _, _ in reporter.seen] == [3, 6, 7]
    assert all(rate > 0 and set(metrics) == {"loss", "accuracy"} for _, rate, metrics in reporter.seen)
