"""Who is told how runs go."""

from __future__ import annotations

import copy
import csv
import dataclasses
import json
import pathlib
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import pytest
from flax import linen

import jaxafl as afl
from jaxafl.callbacks import Best, Callback, Chunk, Csv, Run, StopAfter, StopAt
from jaxafl.callbacks.base import name_of
from tests.callbacks.conftest import Boom, assert_same, simulation
from tests.problems import classifier


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


def test_one_that_raises_ends_the_run_with_its_own_error(kind: str) -> None:
    with pytest.raises(RuntimeError, match="boom") as caught:
        simulation(kind).run(20, eval_every=4, callbacks=[Notes(), Boom(8)])
    assert caught.value.dataset.sizes["step"] == 8


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
    with pytest.raises(ValueError, match="there is no metric 'f1'; there are accuracy, loss"):
        sim.run(4, callbacks=StopAt(f1=0.5))


@pytest.mark.slow
def test_members_of_a_sweep_stop_for_themselves() -> None:
    sim, axes = simulation(), {"client.learning_rate": [0.1, 0.0]}
    whole = afl.sweep(sim, axes, 12, eval_every=4)
    target = float(whole.loss.values[0, 1])
    found = afl.sweep(sim, axes, 12, eval_every=4, callbacks=StopAt(loss=target))
    assert np.isfinite(found.loss.values[0]).sum() == 2 and np.isfinite(found.loss.values[1]).all()
    assert (found.client_id.values[0, 4:] == -1).all()


def rows_of(path: pathlib.Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_a_table_of_evaluations(tmp_path: pathlib.Path) -> None:
    path, sim = tmp_path / "log.csv", simulation()
    how = {"eval_every": 4, "folder": tmp_path / "run", "checkpoint_every": 2}
    with pytest.raises(RuntimeError):
        sim.run(20, callbacks=[Csv(path), Boom(12)], **how)
    assert [row["step"] for row in rows_of(path)] == ["0", "4", "8", "12"]
    result = sim.run(20, callbacks=Csv(path), **how)  # the last row is told again
    assert [int(row["step"]) for row in rows_of(path)] == result.eval_step.values.tolist()
    np.testing.assert_array_equal([float(row["accuracy"]) for row in rows_of(path)], result.accuracy.values)


def test_members_at_the_same_time_and_with_other_columns_share_a_table(tmp_path: pathlib.Path) -> None:
    """On several devices each has a thread."""
    path, members, chunks = tmp_path / "log.csv", 8, 12
    table = Csv(path)

    def member(number: int) -> None:
        run, own = Run("", {}, number, chunks, {"seed": number}, ""), copy.copy(table)
        own.begin(run)
        metrics = {"accuracy": 0.5} | ({"f1": 0.25} if number % 2 else {})
        for stop in range(chunks):
            own.chunk(Chunk(run, 0, stop, 0.0, 0.0, {}, metrics, dict))

    with ThreadPoolExecutor(members) as threads:
        list(threads.map(member, range(members)))
        list(threads.map(member, range(members)))  # again, each replacing its own rows
    rows = [(int(row["seed"]), int(row["step"]), row["f1"]) for row in rows_of(path)]
    assert sorted(rows) == [(one, stop, "0.25" * (one % 2)) for one in range(members) for stop in range(chunks)]


@pytest.mark.slow
def test_the_best_model_is_kept_with_its_batch_statistics(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("safetensors")
    sim, path, state = simulation(), tmp_path / "best.safetensors", tmp_path / "best.state.safetensors"

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x: Any, train: bool, mask: Any = None) -> Any:
            return linen.Dense(sim.data.num_classes)(afl.models.BatchNorm()(x.reshape(len(x), -1), train, mask))

    sim = dataclasses.replace(sim, model=afl.models.from_linen(Net()))
    result = sim.run(8, eval_every=4, callbacks=Best(path, "loss"))
    again = dataclasses.replace(sim, model=afl.models.initialised(sim.model, path, state)).run(1)
    np.testing.assert_allclose(again.loss.values[0], result.loss.min(), rtol=1e-6)
    before = state.read_bytes()
    sim.run(4, eval_every=4, seed=1, callbacks=Best(path, "loss"))
    assert (tmp_path / "best-1.state.safetensors").read_bytes() == before != state.read_bytes()
    with pytest.raises(ValueError, match=r"there is no metric 'validation_accuracy'.*with_validation"):
        simulation().run(4, callbacks=Best(path))


@pytest.mark.slow
def test_no_run_writes_over_the_rows_of_another(tmp_path: pathlib.Path) -> None:
    sim, table = simulation(), Csv(tmp_path / "log.csv")

    def rows(name: str) -> list[tuple[str, ...]]:
        with (tmp_path / name).open() as file:
            return [
                tuple(row.get(axis, "") for axis in ("method", "rung", "seed", "step")) for row in csv.DictReader(file)
            ]

    for seed in range(3):
        sim.run(4, eval_every=4, seed=seed, callbacks=table)
    assert rows("log.csv") == [("", "", "2", "0"), ("", "", "2", "4")]
    assert [rows(f"log-{number}.csv")[0][2] for number in (1, 2)] == ["0", "1"]
    afl.compare({"A": sim, "B": sim}, 2, 4, eval_every=4, callbacks=table)
    found = [(method, "", str(seed), str(step)) for method in "AB" for seed in range(2) for step in (0, 4)]
    assert sorted(rows("log.csv")) == found and len(rows("log-3.csv")) == 2
    for _ in range(2):  # that goes on keeps what it has
        afl.sweep(sim, {"seed": [0, 1]}, 4, eval_every=4, callbacks=table, folder=tmp_path / "sweep")
    assert len(rows("log.csv")) == 4 and len(rows("log-4.csv")) == 8 and not (tmp_path / "log-5.csv").exists()


def test_files_of_members_have_names_of_their_own() -> None:
    runs = [Run("", {}, 0, 1, {"server": label}, "") for label in ("a/b", "a b", "a_b", "x" * 300, "x" * 301)]
    names = [name_of(run) for run in runs]
    assert len(set(names)) == 5 and names[2] == "server=a_b" and max(map(len, names)) < 200
    assert not any("/" in name for name in names)


@pytest.mark.slow
def test_the_best_model_of_an_earlier_run_is_set_aside(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("safetensors")
    sim, path = simulation(), tmp_path / "best.safetensors"

    def kept() -> dict[str, tuple[bytes, str]]:
        files = sorted(tmp_path.glob("best*.safetensors"))
        return {file.name: (file.read_bytes(), file.with_name(f"{file.name}.json").read_text()) for file in files}

    sim.run(4, eval_every=2, seed=1, callbacks=Best(path, "loss"))
    first = kept()[path.name]
    options: dict[str, Any] = {"eval_every": 2, "folder": tmp_path / "run", "checkpoint_every": 2}
    with pytest.raises(RuntimeError):
        sim.run(8, callbacks=[Best(path, "loss"), Boom(4)], **options)
    assert list(kept()) == ["best-1.safetensors", path.name] and kept()["best-1.safetensors"] == first
    sim.run(2, callbacks=Best(path, "loss"), seed=2)  # meanwhile
    third = kept()[path.name]
    result = sim.run(8, callbacks=Best(path, "loss"), **options)
    assert list(kept()) == ["best-1.safetensors", "best-2.safetensors", path.name]
    assert kept()["best-1.safetensors"] == first and kept()[path.name] == third
    assert json.loads(kept()["best-2.safetensors"][1])["loss"] == float(result.loss.min())
    afl.sweep(sim, {"seed": [0, 1]}, 2, callbacks=Best(path, "loss"))
    afl.sweep(sim, {"seed": [0, 1]}, 2, callbacks=Best(path, "loss"))
    assert {"best-seed=0.safetensors", "best-seed=0-1.safetensors", "best-seed=1-1.safetensors"} <= set(kept())


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is shown below the cell of a notebook, one after another in the same place."""
    shown: list[Any] = []

    class Handle:
        def update(self, what: Any) -> None:
            shown.append(what)

    def display(what: Any, display_id: bool) -> Handle:
        shown.append(what)
        return Handle()

    stand_in = types.ModuleType("IPython.display")
    stand_in.__dict__.update(HTML=lambda content: content, display=display)
    shell = types.ModuleType("IPython")
    shell.__dict__.update(get_ipython=lambda: types.SimpleNamespace(kernel=True), version_info=(9, 0))
    monkeypatch.setitem(sys.modules, "IPython.display", stand_in)
    monkeypatch.setitem(sys.modules, "IPython", shell)
    return shown


def test_the_progress_is_a_bar_in_a_notebook(notebook: list[Any]) -> None:
    simulation().run(8, eval_every=4, progress=True)
    assert [text.partition("</progress> ")[2].split()[0] for text in notebook] == ["0/8", "4/8", "8/8"]
    assert 'fedbuff on free_running <progress value="4" max="8">' in notebook[1]
    assert "0:00 left" in notebook[2] and "updates/s, accuracy 0." in notebook[2]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (StopAt, "StopAt needs a metric"),
        (lambda: StopAt(accuracy="high"), "accuracy must be a number"),
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

    with pytest.raises(TypeError, match="misspelled has none of the methods check, renew, begin, chunk, end"):
        classifier().run(2, callbacks=misspelled())
