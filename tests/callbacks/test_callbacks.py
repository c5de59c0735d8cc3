"""Who is told how runs go."""

from __future__ import annotations

import csv
import dataclasses
import json
import pathlib
from typing import Any

import jax
import numpy as np
import pytest

import jaxafl as afl
from jaxafl.callbacks import Best, Callback, Chunk, Csv, Run, StopAfter, StopAt
from jaxafl.callbacks.base import name_of
from tests.callbacks.conftest import assert_same, broken, simulation
from tests.problems import Normalised, classifier


class Notes(Callback):
    """Remembers everything; the copies of a sweep share it."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.chunks: list[Chunk] = []
        self.results: list[Any] = []

    def begin(self, run: Run) -> None:
        self.runs.append(run)

    def chunk(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)

    def end(self, result: Any) -> None:
        self.results.append(result)


def test_callbacks_receive_the_values_of_the_result(kind: str) -> None:
    told, sim = Notes(), simulation(kind)
    result = sim.run(10, eval_every=4, seed=3, callbacks=told)
    assert_same(result, sim.run(10, eval_every=4, seed=3))
    assert told.results == [result] or told.results[0] is result
    (run,) = told.runs
    assert (run.seed, run.server_steps, run.member, run.resumed) == (3, 10, {}, None)
    assert run.citation == sim.citation() and run.options["server"]["name"] == sim.server.name
    assert [(chunk.start, chunk.stop) for chunk in told.chunks] == [(0, 0), (0, 4), (4, 8), (8, 10)]
    for number, chunk in enumerate(told.chunks):
        assert chunk.evaluation["accuracy"] == result.accuracy.values[number]
        assert chunk.time == result.eval_time.values[number]
    for name in ("time", "client_id", "staleness", "delta_norm"):
        joined = np.concatenate([chunk.records[name] for chunk in told.chunks[1:]])
        np.testing.assert_array_equal(joined, result[name].values, err_msg=name)
    params, _ = told.chunks[-1].model()
    trained = sim.train(10, eval_every=4, seed=3, callbacks=told)
    jax.tree.map(np.testing.assert_array_equal, params, jax.device_get(trained.params))
    assert told.results[-1] is trained


class Answering(Callback):
    def chunk(self, chunk: Chunk) -> Any:
        return chunk.evaluation


def test_an_answer_that_is_neither_a_text_nor_a_bool_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"Answering: chunk returned {.*expected None to go on, or a text or True to"):
        simulation().run(4, callbacks=[Answering()])


def test_a_run_stops_at_the_step_of_the_callback(kind: str) -> None:
    sim = simulation(kind)
    whole = sim.run(20, eval_every=4)
    limit = whole.eval_time.values[2]
    found = sim.run(20, eval_every=4, callbacks=StopAfter(simulated=limit))
    assert found.sizes["step"] == 8 and found.sizes["evaluation"] == 3
    assert "simulated seconds are over" in found.attrs["stopped"]
    np.testing.assert_array_equal(found.delta_norm.values, whole.delta_norm.values[:8])
    assert "stopped" not in whole.attrs


def test_targets_that_are_reached_stop_a_run() -> None:
    sim = simulation()
    whole = sim.run(20, eval_every=4)
    target = float(whole.loss.values[3])
    first = int(np.argmax(whole.loss.values <= target))
    found = sim.run(20, eval_every=4, callbacks=StopAt(loss=target))
    assert found.sizes["evaluation"] == first + 1
    at_once = sim.run(20, eval_every=4, callbacks=StopAt(accuracy=0.0))
    assert (at_once.sizes["step"], at_once.sizes["evaluation"]) == (0, 1)


def rows_of(path: pathlib.Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_a_table_of_evaluations(tmp_path: pathlib.Path) -> None:
    path, sim = tmp_path / "log.csv", simulation()
    how = {"eval_every": 4, "folder": tmp_path / "run", "checkpoint_every": 2}
    broken(sim, 20, 12, Csv(path), **how)
    assert [row["step"] for row in rows_of(path)] == ["0", "4", "8", "12"]
    result = sim.run(20, callbacks=Csv(path), **how)  # the last row is told again
    assert [int(row["step"]) for row in rows_of(path)] == result.eval_step.values.tolist()
    np.testing.assert_array_equal([float(row["accuracy"]) for row in rows_of(path)], result.accuracy.values)


@pytest.mark.slow
def test_the_best_model_is_kept_with_its_batch_statistics(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("safetensors")
    sim, path, state = simulation(), tmp_path / "best.safetensors", tmp_path / "best.state.safetensors"

    sim = dataclasses.replace(sim, model=afl.models.from_linen(Normalised(2)))
    result = sim.run(8, eval_every=4, callbacks=Best(path, "loss"))
    again = dataclasses.replace(sim, model=afl.models.initialised(sim.model, path, state)).run(1)
    np.testing.assert_allclose(again.loss.values[0], result.loss.min(), rtol=1e-6)


@pytest.mark.slow
def test_no_run_writes_over_the_rows_of_another(tmp_path: pathlib.Path) -> None:
    sim, table = simulation(), Csv(tmp_path / "log.csv")

    def rows(name: str, *columns: str) -> list[tuple[str, ...]]:
        return [tuple(row[column] for column in columns) for row in rows_of(tmp_path / name)]

    for seed in range(3):
        sim.run(4, eval_every=4, seed=seed, callbacks=table)
    assert rows("log.csv", "seed", "step") == [("2", "0"), ("2", "4")]
    assert [rows(f"log-{number}.csv", "seed")[0] for number in (1, 2)] == [("0",), ("1",)]
    afl.compare({"A": sim, "B": sim}, 2, 4, eval_every=4, callbacks=table)
    for method, seed in (("A", "0"), ("A", "1"), ("B", "0"), ("B", "1")):
        found = rows(f"log-method={method},seed={seed}.csv", "method", "seed", "step")
        assert found == [(method, seed, "0"), (method, seed, "4")]
    for _ in range(2):  # that goes on keeps what it has
        afl.sweep(sim, {"seed": [0, 1]}, 4, eval_every=4, callbacks=table, folder=tmp_path / "sweep")
    assert len(rows("log-seed=0.csv", "step")) == 2 and not (tmp_path / "log-seed=0-1.csv").exists()


def test_files_of_members_have_names_of_their_own() -> None:
    runs = [Run("", {}, 0, 1, {"server": label}, "") for label in ("a/b", "a b", "a_b", "x" * 300, "x" * 301)]
    names = [name_of(run) for run in runs]
    assert len(set(names)) == 5 and names[2] == "server=a_b" and max(map(len, names)) < 200
    assert not any("/" in name for name in names)


@pytest.mark.slow
def test_the_best_model_of_an_earlier_run_is_set_aside(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("safetensors")
    sim, path = simulation(), tmp_path / "best.safetensors"

    sim.run(4, eval_every=2, seed=1, callbacks=Best(path, "loss"))
    first = path.read_bytes()
    options: dict[str, Any] = {"eval_every": 2, "folder": tmp_path / "run", "checkpoint_every": 2}
    broken(sim, 8, 4, Best(path, "loss"), **options)
    assert (tmp_path / "best-1.safetensors").read_bytes() == first != path.read_bytes()
    result = sim.run(8, callbacks=Best(path, "loss"), **options)  # continues its own file
    assert json.loads((tmp_path / "best.safetensors.json").read_text())["loss"] == float(result.loss.min())
    assert not (tmp_path / "best-2.safetensors").exists()
    afl.sweep(sim, {"seed": [0, 1]}, 2, callbacks=Best(path, "loss"))
    afl.sweep(sim, {"seed": [0, 1]}, 2, callbacks=Best(path, "loss"))
    names = {file.name for file in tmp_path.glob("best-seed*.safetensors")}
    assert {"best-seed=0.safetensors", "best-seed=0-1.safetensors", "best-seed=1-1.safetensors"} <= names


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (StopAt, "StopAt needs a metric"),
        (lambda: StopAt(validation_accuracy=90), r"validation_accuracy must be >= 0, <= 1, got 90"),
        (StopAfter, "StopAfter needs seconds"),
        (lambda: StopAfter(simulated=0), "simulated must be > 0"),
        (lambda: Csv("/nowhere/log.csv"), "cannot be written to /nowhere"),
    ],
)
def test_invalid_options_raise(made: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError, OSError), match=said):
        made()


def test_a_callback_without_a_method_that_a_run_calls_is_refused() -> None:
    class misspelled(afl.callbacks.Callback):
        def chunck(self, chunk: Any) -> None:
            return None

    with pytest.raises(TypeError, match="misspelled is no Callback with a method check"):
        classifier().run(2, callbacks=misspelled())
