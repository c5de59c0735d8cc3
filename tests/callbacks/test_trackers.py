"""TensorBoard and Weights & Biases, read back by their own readers."""

from __future__ import annotations

import json
import pathlib
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import jaxafl as afl
from jaxafl.callbacks import MLflow, TensorBoard, WandB
from tests.callbacks.conftest import broken, simulation
from tests.test_set_metrics import right

EXTRA: dict[str, Any] = {"metrics": {"right": right}}  # what all trackers record too


def curve(folder: pathlib.Path, name: str) -> tuple[list[int], list[float]]:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(folder))
    events.Reload()
    points = events.Scalars(name)
    return [point.step for point in points], [point.value for point in points]


@pytest.mark.slow
@pytest.mark.extras
def test_tensorboard_reads_what_is_written(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("tensorboardX")
    pytest.importorskip("tensorboard")
    sim = simulation()
    how = {"eval_every": 4, "folder": tmp_path / "run", "checkpoint_every": 2, **EXTRA}
    broken(sim, 20, 12, TensorBoard(tmp_path / "board"), **how)
    result = sim.run(20, callbacks=TensorBoard(tmp_path / "board"), **how)  # the run goes on, so do its curves
    steps, values = curve(tmp_path / "board", "accuracy")
    np.testing.assert_allclose(curve(tmp_path / "board", "right")[1], result.right, rtol=1e-6)
    assert steps == result.eval_step.values.tolist()
    longer = sim.run(24, callbacks=TensorBoard(tmp_path / "board"), **how)
    assert curve(tmp_path / "board", "accuracy")[0] == longer.eval_step.values.tolist()
    np.testing.assert_allclose(values, result.accuracy.values, rtol=1e-6)
    other = sim.run(8, eval_every=4, seed=1, callbacks=TensorBoard(tmp_path / "board"))  # replaces the curve
    np.testing.assert_allclose(curve(tmp_path / "board", "accuracy")[1], other.accuracy.values, rtol=1e-6)
    afl.sweep(sim, {"seed": [0, 1]}, 4, eval_every=4, callbacks=TensorBoard(tmp_path / "sweep"))
    assert sorted(path.name for path in (tmp_path / "sweep").iterdir()) == ["seed=0", "seed=1"]


def records_of(file: pathlib.Path) -> Iterator[Any]:
    """The records of an offline run, parsed by wandb: a log in LevelDB's format, in blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, data = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if (left := -at % 2**15) < 7 and left:
            at += left
        size, kind = struct.unpack_from("<HB", content, at + 4)
        data += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or its last part
            yield Record.FromString(data)
            data = b""


@pytest.mark.slow
@pytest.mark.extras
def test_wandb_keeps_runs_offline(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    result = afl.sweep(
        simulation(), {"seed": [0, 1]}, 8, eval_every=4, callbacks=WandB("jaxafl-test", dir=str(tmp_path)), **EXTRA
    )
    files = sorted(tmp_path.rglob("*.wandb"))
    assert len(files) == 2 and wandb.run is None
    for file in files:
        history, groups, names = [], [], []
        for record in records_of(file):
            if record.HasField("history"):
                items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                history.append({name: json.loads(value) for name, value in items.items()})
            if record.HasField("run"):
                groups.append(record.run.run_group)
                names.append(record.run.display_name)
        member = int(names[0].removeprefix("seed="))
        assert [row["_step"] for row in history] == [0, 4, 8]
        np.testing.assert_allclose([row["accuracy"] for row in history], result.accuracy.values[member])
        np.testing.assert_allclose([row["right"] for row in history], result.right.values[member])
        assert groups[0].startswith("fedbuff on free_running")


@pytest.mark.slow
@pytest.mark.extras
def test_mlflow_keeps_a_run_each_in_a_database(tmp_path: pathlib.Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    uri, sim = f"sqlite:///{tmp_path}/runs.db", simulation()
    how = {"eval_every": 4, "folder": tmp_path / "run", "checkpoint_every": 2, **EXTRA}
    broken(sim, 20, 12, MLflow("one", uri), **how)
    client = mlflow.MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("one").experiment_id])
    assert run.info.status == "FAILED"
    result = sim.run(20, callbacks=MLflow("one", uri), **how)  # from the checkpoint on
    run, _ = client.search_runs([client.get_experiment_by_name("one").experiment_id])
    assert run.info.status == "FINISHED" and run.data.params["client.learning_rate"] == "0.1"
    for key, expected in {"accuracy": result.accuracy, "right": result.right}.items():
        points = client.get_metric_history(run.info.run_id, key)
        steps = [point.step for point in points]
        assert steps == result.eval_step.values.tolist()[-len(steps) :]
        np.testing.assert_allclose([point.value for point in points], expected[-len(steps) :], rtol=1e-6)
    sim.run(8, eval_every=4, callbacks=MLflow("one", uri))  # a run of its own
    grid = afl.sweep(sim, {"seed": [0, 1]}, 4, eval_every=4, callbacks=MLflow("grid", uri, paper="x"))
    assert len(client.search_runs([run.info.experiment_id])) == 3
    found = client.search_runs([client.get_experiment_by_name("grid").experiment_id])
    by_seed = {int(one.data.params["seed"]): one for one in found}
    assert sorted(by_seed) == [0, 1] and by_seed[1].data.tags["paper"] == "x"
    assert by_seed[1].data.metrics["accuracy"] == pytest.approx(float(grid.final_accuracy[1]))
