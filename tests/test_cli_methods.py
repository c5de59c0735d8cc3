"""`jaxafl compare`, `jaxafl tune`, and `jaxafl resume` beyond what was asked."""

from __future__ import annotations

import pathlib
import types
from typing import Any

import numpy as np
import pytest

import jaxafl as afl
from jaxafl.cli import main, methods
from jaxafl.cli.simulate import without

PARTS = (
    "--data synthetic --data.alpha 1 --data.beta 1 --data.clients 6 --data.max-size 60 --model logistic --no-progress"
)
SMALL = PARTS.split()
CLOCK = ["--clock.concurrency", "4"]


@pytest.mark.slow
def test_compare_runs_methods_as_python_does(tmp_path: pathlib.Path, capsys: Any) -> None:
    methods = {"A": "--server fedbuff --clock.buffer 2", "B": "--server fedasync --server.alpha 0.3"}
    given = [word for name, text in methods.items() for word in ("--method", f"{name}={text}")]
    how = ["--seeds", "2", "--until", "time=9", "--targets", "0.1", "--plot", str(tmp_path / "both.png")]
    how += ["--folder", str(tmp_path / "folder")]
    assert main(["compare", *SMALL, *CLOCK, *given, *how]) == 0
    said = capsys.readouterr().out
    data = afl.data.synthetic(1.0, 1.0, clients=6, max_size=60)
    client = afl.Client(learning_rate=0.05, steps=10, batch_size=32)
    clocks = [afl.clock.free_running(concurrency=4, buffer=m, durations=afl.clock.uniform(1, 5)) for m in (2, 1)]
    parts = data, afl.models.logistic(num_classes=10), client
    servers = [afl.server.fedbuff(), afl.server.fedasync(0.3)]
    sims = {
        name: afl.Simulation(*parts, *pair) for name, pair in zip("AB", zip(servers, clocks, strict=True), strict=True)
    }
    table = afl.compare(sims, 2, until={"time": 9.0}).table(reference="A", targets=0.1)
    assert said.startswith(table) and (tmp_path / "both.png").stat().st_size > 5000
    folder = tmp_path / "moved"
    (tmp_path / "folder").rename(folder)
    assert main(["resume", str(folder)]) == 0 and capsys.readouterr().out.startswith(table)
    assert main(["gather", str(folder)]) == 0
    assert capsys.readouterr().out == "A: 2 of 2 members are finished\nB: 2 of 2 members are finished\n"
    assert afl.Comparison.gather(folder).table(reference="A", targets=0.1) == table
    page = tmp_path / "page.html"
    assert main(["report", str(folder), "--output", str(page)]) == 0
    assert "paired by seed, at 9 s simulated" in page.read_text()
    assert main(["gather", str(folder), "--output", str(page)]) == 2
    assert "gather the folders in it" in capsys.readouterr().err
    with pytest.raises(ValueError, match="is not the folder of a comparison"):
        afl.Comparison.gather(tmp_path)


@pytest.mark.slow
def test_tune_prints_scores_and_the_options_of_the_best(tmp_path: pathlib.Path, capsys: Any) -> None:
    grid = ["--axis", "client.learning_rate=1e-9,0.02", "--server-steps", "8", "--validation", "0.2"]
    grid += ["--folder", str(tmp_path)]
    assert main(["tune", *SMALL, *CLOCK, "--server", "fedbuff", "--clock.buffer", "2", *grid]) == 0
    said = capsys.readouterr().out
    assert "| **client.learning_rate=0.02** |" in said and "is the largest of its grid: widen the grid" in said
    assert said.splitlines()[-1] == "in jaxafl run: --client.learning-rate 0.02"
    assert main(["resume", str(tmp_path)]) == 0 and capsys.readouterr().out == said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare", *SMALL], "compare needs methods: write --method NAME="),
        (["compare", *SMALL, "--method", "A"], "--method 'A': write --method NAME="),
        (["compare", *SMALL, "--method", "A=--server fedbuf"], "there is no server 'fedbuf'"),
        (
            ["compare", *SMALL, "--method", "A=--server fedbuff", "--output", "x.nc"],
            "which jaxafl report, gather and resume read",
        ),
        (["tune", *SMALL, "--axis", "client.learning_rate=0.1,0.2"], "give --validation 0.2"),
        (["tune", *SMALL, "--validation", "0.2"], "tune needs at least one --axis"),
        (["tune", *SMALL, "--validation", "0.2", "--axis", "client.steps=1,2", "--seed", "7"], "tune takes no --seed"),
        (["compare", *SMALL, "--method", "A=--server fedbuff", "--seed", "7"], "compare takes no --seed"),
        (
            ["compare", *SMALL, "--method", "A=--server fedbuff --until time=9", "--method", "B=--server fedasync"],
            "--until is time=9 for A, None for B; expected one value for all",
        ),
        (["run", *SMALL, "--until", "time=5,time=9"], "each name once"),
        (["compare", *SMALL, "--method", "A=--server fedbuff", "--metric", "foo"], "there is no metric 'foo'"),
        (["compare", *SMALL, "--method", "A=--server fedbuff", "--reference", "C"], "reference must be one of 'A'"),
        (["compare", *SMALL, "--method", "A=--server fedbuff", "--targets", "a,b"], "--targets are numbers"),
        (["compare", *SMALL, "--method", "A=--server fedbuff", "--targets", "1.5"], "must be in [0, 1], got 1.5"),
        (["compare", *SMALL, "--method", "A=--server fedbuff", "--at", "tme=5"], "did you mean 'time'?"),
        (["run", *SMALL, "--server", "fedbuff", "--partition-seed", "1"], "leave --partition-seed"),
    ],
)
def test_what_they_need_is_said(arguments: list[str], said: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "compare_methods", None)  # nothing is run
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_methods_differ_in_their_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def record(_: Any, seeds: int, server_steps: Any, **settings: Any) -> None:
        given.update(settings, server_steps=server_steps)
        raise KeyboardInterrupt  # nothing is run

    monkeypatch.setattr(methods, "compare_methods", record)
    both = ["--method", "A=--server fedbuff --server-steps 10", "--method", "B=--server fedasync --eval-every 25"]
    assert main(["compare", *SMALL, "--server-steps", "50", *both]) == 130
    assert given["server_steps"] == {"A": 10, "B": 50} and given["eval_every"] == {"A": None, "B": 25}


def test_tune_writes_the_best_options_as_run_reads_them(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    tuned = types.SimpleNamespace()

    def record(_: Any, axes: Any, *__: Any, **___: Any) -> Any:
        tuned.best = {path: values[0] for path, values in axes.items()}
        return tuned

    monkeypatch.setattr(methods, "tune_options", record)
    axes = {
        "client.optimizer": "sgd,adam",
        "client.learning_rate": "1e-3,1",
        "clock.durations": "uniform(1, 5),2",
        "clock.before_step": "false,true",
        "client.steps": "[1,2,3,4,5,6],4",
        "server.mu": "0.1,1",
    }
    given = [word for axis in axes.items() for word in ("--axis", "=".join(axis))]
    clock = ["--clock", "free_running", "--clock.concurrency", "4"]
    assert main(["tune", *SMALL, *clock, "--server", "fedprox", "--validation", "0.2", *given]) == 0
    words = "--client.optimizer sgd --client.learning-rate 0.001 --clock.durations 'uniform(1, 5)' "
    words += "--clock.no-before-step --server.mu 0.1; without a flag: client.steps=[1, 2, 3, 4, 5, 6]"
    assert capsys.readouterr().out.splitlines()[-1] == f"in jaxafl run: {words}"


def test_flags_with_underscores_are_removed() -> None:
    written = ["--server_steps", "10", "--server-steps=4", "--seed", "1"]
    assert without(written, "--server-steps") == ["--seed", "1"]


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--checkpoint", "--folder"])
def test_a_run_goes_further_than_it_was_asked_to(flag: str, tmp_path: pathlib.Path, capsys: Any) -> None:
    run = ["run", *SMALL, *CLOCK, "--server", "fedbuff", "--clock.buffer", "2", "--eval-every", "4"]
    output = tmp_path / "result.nc"
    assert main([*run, "--server-steps", "4", flag, str(tmp_path / "run"), "--output", str(output)]) == 0
    (tmp_path / "run").rename(tmp_path / "moved")
    assert main(["resume", str(tmp_path / "moved"), "--server-steps", "12"]) == 0
    longer = afl.load(output)
    assert longer.eval_step.values.tolist() == [0, 4, 8, 12]
    assert main([*run, "--server-steps", "12", "--output", str(tmp_path / "whole.nc")]) == 0
    np.testing.assert_array_equal(longer.loss, afl.load(tmp_path / "whole.nc").loss)
    assert main(["resume", str(tmp_path / "moved"), "--until", "updates=32"]) == 0
    assert afl.load(output).sizes["step"] == 16
