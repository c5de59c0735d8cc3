"""The command line, through `main`."""

from __future__ import annotations

import importlib
import inspect
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import typing
import warnings

import numpy as np
import pytest

import jaxafl as afl
import jaxafl.cli.quickstart as quickstart
from jaxafl import cli
from jaxafl.cli import main
from jaxafl.cli.build import make_simulation
from jaxafl.cli.catalogue import KINDS, QUESTIONS, offered
from jaxafl.cli.expressions import parsed
from jaxafl.cli.options import Run, chosen, options_type
from jaxafl.cli.pipes import print_warnings, readable_output
from jaxafl.server import Server

SMALL = ["--data", "synthetic", "--data.max-size", "60", "--data.clients", "6", "--model", "logistic", "--no-progress"]
FREE = ["--server", "fedasync", "--clock.concurrency", "3", "--server-steps", "6", "--client.steps", "2"]


def simulation(*arguments: str) -> afl.Simulation:
    import tyro

    names = chosen(arguments)
    return make_simulation(names, tyro.cli(options_type(Run, names), args=list(arguments)))


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.err.startswith("jaxafl: error: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.slow
def test_run_writes_what_python_would(tmp_path, capsys):
    file, image = tmp_path / "result.nc", tmp_path / "result.png"
    arguments = ["run", *SMALL, *FREE, "--server.alpha", "0.3", "--durations", "uniform(1, 5) + suspension(0.1)"]
    assert main([*arguments, "--seed", "3", "--output", str(file), "--plot", str(image)]) == 0
    assert "fedasync on free_running" in capsys.readouterr().out
    assert image.stat().st_size > 5000
    same = afl.Simulation(
        data=afl.data.synthetic(clients=6, max_size=60),
        model=afl.models.logistic(10),
        client=afl.Client(learning_rate=0.05, steps=2),
        server=afl.server.fedasync(0.3),
        clock=afl.clock.free_running(concurrency=3, durations=afl.clock.uniform(1, 5) + afl.clock.suspension(0.1)),
    ).run(6, seed=3)
    loaded = afl.load(file)
    np.testing.assert_array_equal(loaded["time"], same["time"])
    np.testing.assert_allclose(loaded["accuracy"], same["accuracy"], rtol=1e-6)


@pytest.mark.slow
def test_sweep_makes_an_axis_of_each_option(tmp_path, capsys):
    file = tmp_path / "sweep.nc"
    axes = ["--axis", "server.alpha=0.2,0.6", "--axis", "seed=0:2"]
    assert main(["sweep", *SMALL, *FREE, *axes, "--output", str(file)]) == 0
    assert re.search(r"\n +0\.6 ", capsys.readouterr().out)  # a column per axis
    loaded = afl.load(file)
    assert dict(loaded.sizes)["server.alpha"] == 2
    assert loaded["seed"].values.tolist() == [0, 1]
    image = tmp_path / "sweep.svg"
    assert main(["plot", str(file), "--kind", "accuracy_vs_steps", "--output", str(image)]) == 0
    assert image.stat().st_size > 5000


def test_list_as_json_names_everything_with_its_options(capsys):
    assert main(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert set(listed) == set(KINDS)
    servers = {entry["name"]: entry for entry in listed["servers"]}
    assert {"fedavg", "fedprox", "fedasync", "fedbuff", "fadas", "asyncfeded"} <= set(servers)
    assert servers["asyncfeded"]["clocks"] == ["free_running"]
    lam = next(option for option in servers["asyncfeded"]["options"] if option["name"] == "base_rate")
    assert (lam["type"], lam["default"], lam["required"]) == ("float", 1.0, False)
    assert lam["help"]
    recorded = next(entry for entry in listed["durations"] if entry["name"] == "recorded")
    assert [option["name"] for option in recorded["options"]] == ["times", "per"]
    dispatch = next(entry for entry in listed["clocks"] if entry["name"] == "free_running")["options"][3]
    assert (dispatch["name"], dispatch["allowed"]) == ("dispatch", "arrival, step")
    assert all(entry["summary"] for entries in listed.values() for entry in entries)


def test_list_for_people_shows_every_name(capsys):
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for kind in KINDS for name in offered(kind))
    assert "`" not in shown and "\\" not in shown


def test_list_of_a_kind_is_grouped_by_question_within_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["list", "servers", "presets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    found, title = {}, ""
    for line in lines:
        title = line if line in QUESTIONS.values() else title
        if line[:1].strip() and line != title:
            found.setdefault(line.split()[0], title)
    expected = {
        "fedbuff": "tolerated",
        "fedavg": "waits",
        "fedprox": "waits",
        "naive_optimal": "tolerated",
        "ringmaster": "refused",
        "picky_sgd": "refused",
        "fedvarp": "remembered",
        "safa": "remembered",
    }
    assert {name: found[name] for name in expected} == {name: QUESTIONS[key] for name, key in expected.items()}
    assert "synthetic" not in found and set(offered("servers")) | set(offered("presets")) <= set(found)


def test_every_public_constructor_of_a_server_is_offered():
    public = {name: getattr(afl.server, name) for name in afl.server.__all__ if name.islower()}
    made = {name for name, call in public.items() if isinstance(call, type) and issubclass(call, Server)}
    assert set(offered("servers")) - {"fedprox"} == made


def test_options_of_what_is_named_reach_the_simulation():
    made = simulation(
        "--data", "synthetic", "--clients", "7", "--model", "mlp", "--model.hidden", "5", "6", "--server", "fedbuff",
        "--server.momentum", "0.5", "--clock", "free_running", "--clock.concurrency", "4", "--clock.buffer", "2",
        "--clock.durations", "uniform(1, 5, per='client') * 2", "--client.optimizer", "adam", "--client.b1", "0.8",
        "--client.epochs", "2", "--client.batch-size", "None",
    )  # fmt: skip
    assert made.data.num_clients == 7
    assert made.model.description["hidden"] == [5, 6]
    assert (made.server.momentum, made.clock.buffer, made.clock.durations.left.per) == (0.5, 2, "client")
    assert made.client.hyperparameters["b1"] == 0.8
    assert (made.client.epochs, made.client.steps, made.client.batch_size) == (2, None, None)


def test_fedprox_is_fedavg_with_a_proximal_client():
    made = simulation("--server", "fedprox", "--server.mu", "0.2", "--data", "synthetic", "--model", "logistic")
    assert (made.server.name, made.client.proximal) == ("fedavg", 0.2)


@pytest.mark.parametrize("name", sorted(offered("clocks")))
def test_every_clock_has_help_on_all_of_its_options(name, capsys):
    assert main(["run", "--clock", name, "--help"]) == 0
    shown = capsys.readouterr().out
    recordings = {"starts", "sets", "stale", "uploads", "downloads"}  # of `jaxafl.clock.trace`
    parameters = set(inspect.signature(getattr(afl.clock, name)).parameters) - recordings
    assert parameters and all(f"--clock.{parameter.replace('_', '-')}" in shown for parameter in parameters)
    assert not any(f"--clock.{parameter}" in shown for parameter in recordings)


@pytest.mark.parametrize("command", ["run", "sweep", "list", "plot", "quickstart"])
def test_every_command_has_help(command, capsys):
    assert main([command, "--help"]) == 0
    assert f"usage: jaxafl {command}" in capsys.readouterr().out
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert command in shown and max(map(len, shown.splitlines())) <= 80


def test_help_is_of_the_server_that_is_named(capsys):
    assert main(["run", "--server", "fadas", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--server.tau-c" in shown and "--server.alpha" not in shown
    assert "`" not in shown and "\\" not in shown
    assert max(map(len, shown.splitlines())) <= 120


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bogus"], "there is no command 'bogus'"),
        (["run", "--server", "fedfoo"], "there is no server 'fedfoo'; did you mean 'fedfa'? Choose from ace, "),
        (["run", "--server", "asyncfeded", "--clock", "synchronous"], "does not run on the clock synchronous"),
        (["run", *SMALL, "--clock.cohort", "20"], "more than the 6 clients"),
        (["run", *SMALL, "--server-steps", "0"], "at least 1"),
        (["run", *SMALL, "--seed=-1"], "seed must be in"),
        (["run", *SMALL, "--lanes", "0"], "lanes must be at least 1"),
        (["run", *SMALL, "--lanes", "2", "--chunk", "3"], "divisor of lanes=2"),
        (["run", *SMALL, "--durations", "recorded([[1],[1],[1],[1],[1],[1]])", "--server-steps", "2"], "run out"),
        (["sweep", *SMALL, "--axis", "server.learning_rate=1,-1"], "must be >= 0, got -1 (in the sweep at"),
        (["sweep", *SMALL, "--axis", "seed=1,x"], "seed must be a whole number"),
        (["run", *SMALL, "--durations", "uniform(1)"], "missing a required argument: 'high'"),
        (["run", *SMALL, "--output", "absent/result.nc"], "no directory absent"),
        (["run", *SMALL, "--plot", "result.doc"], "must end in one of"),
        (["run", *SMALL, "--partition", "iid"], "takes no --partition"),
        (["run", *SMALL, "--server", "fedprox", "--client.proximal", "1"], "--server.mu"),
        (["sweep", *SMALL], "at least one --axis"),
        (["sweep", *SMALL, "--axis", "server.bogus=1"], "bogus"),
        (["sweep", *SMALL, "--axis", "seed=0", "--axis", "seed=1"], "given twice"),
        (["plot", "absent.nc", "--output", "result.png"], "no result file absent.nc"),
        (["plot", "--output", "result.png"], "at least one result file"),
        (["quickstart", "--budget", "7"], "positive multiple of 100"),
        (["quickstart", "--output-dir", "absent"], "no directory absent"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert said in one_line(capsys)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_dataset_is_explained_in_lines(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--data", "mnist", "--data-dir", "absent"]) == 2
    first, *lines = capsys.readouterr().err.splitlines()
    ways = "afl.data.mnist(download=True), jaxafl run --download or jaxafl data mnist"
    assert first == f"jaxafl: error: mnist is missing. Download it: {ways}."
    assert lines[:2] == ["dataset 'mnist' was not found. Looked in:", "  absent/mnist (does not exist)"]
    assert "--data-dir on the command line" in lines[-1]


@pytest.mark.parametrize("arguments", [["run", "--server-steps", "many"], ["list", "extra"], ["plot", "a.nc"]])
def test_what_the_parser_rejects_exits_with_2_and_no_traceback(arguments, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error and "Traceback" not in error


def test_a_bug_is_not_passed_off_as_a_mistake_of_the_user(monkeypatch, capsys):
    def broken(*_, **__) -> int:
        return int("no number")

    monkeypatch.setitem(cli.COMMANDS, "run", broken)
    with pytest.raises(ValueError, match="no number"):
        main(["run"])
    monkeypatch.undo()
    monkeypatch.setattr(afl.Simulation, "run", broken)
    with pytest.raises(ValueError, match="no number"):
        main(["run", *SMALL])
    monkeypatch.undo()
    for error in (OSError, MemoryError, ImportError):
        monkeypatch.setattr(
            afl.Simulation, "run", lambda *_, error=error, **__: (_ for _ in ()).throw(error("as said"))
        )
        assert main(["run", *SMALL]) == 2
        assert one_line(capsys) == "jaxafl: error: as said\n"


@pytest.mark.slow
def test_a_run_that_fails_exits_with_1_and_says_where(capsys):
    broken = ["--model", "mlp", "--server-steps", "4", "--client.learning-rate", "1e30"]
    assert main(["run", *SMALL, *broken]) == 1
    assert "stopped being finite at server step" in capsys.readouterr().err


def test_durations_are_those_of_python():
    text = "uniform(1, 5, per='client') * constant(0.1, per=\"step\") + 2 * suspension(0.1) + lognormal(-1, 0.5)"
    clock = afl.clock
    same = clock.uniform(1, 5, per="client") * clock.constant(0.1, per="step") + 2 * clock.suspension(0.1)
    assert parsed(text) == same + clock.lognormal(-1, 0.5)
    assert parsed("3") == clock.constant(3)
    same = clock.constant([1] * 2 + [3]) * clock.stragglers(clients=[0, 2]) * clock.constant(0.25)
    assert repr(parsed("constant([1] * 2 + [3]) * stragglers(clients=[0, 2]) / (9 - 5)")) == repr(same)


def test_uploads_are_those_of_python():
    text = "chain(clip_by_global_norm(1.0), few=top_k(share=0.01))"
    assert repr(parsed(text, "uploads")) == "chain(clip_by_global_norm(max_norm=1.0), few=top_k(share=0.01))"
    for wrong in ("3", "top_k", "open('x')", "uniform(1, 2)", "top_k(shares=0.1)", "sign() * 2"):
        with pytest.raises(ValueError, match="uploads"):
            parsed(wrong, "uploads")
    assert repr(parsed("feddyn(0.5)", "corrections")) == "feddyn(alpha=0.5)"
    assert repr(parsed("trimmed_mean(share=0.2)", "aggregates")) == "trimmed_mean(share=0.2)"
    for wrong in ("3", "median", "sign()", "median(3)"):
        with pytest.raises(ValueError, match="aggregates"):
            parsed(wrong, "aggregates")


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("sign_flip", "attacks", r"did you mean sign_flip\(...\)\? Write any of"),
        ("unifrom(1, 5)", "durations", r"did you mean 'uniform'\? Write numbers"),
        ("2 ** 3", "durations", "is not allowed; write numbers"),
    ],
)
def test_misspelled_expressions_are_answered_with_the_right_one(text, kind, said):
    with pytest.raises(ValueError, match=said):
        parsed(text, kind)


def test_words_in_expressions_are_numbers_or_errors_that_say_what_to_write(capsys):
    assert repr(parsed("add_noise(nan)", "uploads")) == "add_noise(std=nan)"
    assert repr(parsed("private_mean(0.5, quantile=None)", "aggregates")) == "private_mean(max_norm=0.5)"
    np.testing.assert_array_equal(parsed("constant([1] * 2 + [inf])").value, [1, 1, np.inf])
    with pytest.raises(ValueError, match=r"'delivered' is not allowed as an argument; write numbers, 'text', True, No"):
        parsed("alie(clients=0.2, knowledge=delivered)", "attacks")
    for given, message in {
        ("--client.upload", "add_noise(nan)"): "add_noise: std must be a finite number, got nan",
        ("--attack", "sign_flip(-inf, clients=0.2)"): "sign_flip: factor must be a finite number, got -inf",
        ("--server.aggregate", "trimmed_mean(share=nan)"): "trimmed_mean: share must be a finite number, got nan",
        ("--clock.durations", "uniform(1, inf)"): "uniform: high must be a finite number, got inf",
    }.items():
        assert main(["run", *SMALL, *given]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').getcwd()", "uniform.__globals__", "uniform(1, 5).check(3)", "open('x')", "print(1)",
        "uniform(open('x'), 1)", "(lambda: 1)()", "uniform(1, 2) ** 2", "uniform(1, 2) - 1", "uniform(1, *[2])",
        "suspension(**{'probability': 1})", "[uniform(1, 2)][0]", "uniform", "'uniform(1, 2)'", "True", "uniform(1, 2",
        "", "1 if 1 else 2", "free_running(1)", "uniform(1, 2, per=f'{1}')", "(" * 900 + "1" + ")" * 900, "x" * 9000,
        "-" * 1500 + "1", "uniform(1, 2)\x00", "1 / 0", "uniform([1] * 10 ** 9, 2)",
        "constant([1] * 1000 * 1000 * 1000)", "constant([1] + 2)", "uniform(1, 2) / uniform(1, 2)", "2 / uniform(1, 2)",
    ],
)  # fmt: skip
def test_durations_are_never_evaluated_as_code(text):
    with pytest.raises(ValueError, match="durations"):
        parsed(text)


@pytest.mark.slow
def test_quickstart_compares_five_methods_and_writes_its_files(tmp_path, capsys, monkeypatch):
    # a network that compiles quickly; the next test takes the real one
    monkeypatch.setattr(quickstart.models, "cnn_asyncfeded", lambda classes, features: afl.models.logistic(classes))
    assert main(["quickstart", "--budget", "100", "--output-dir", str(tmp_path), "--no-progress"]) == 0
    shown = capsys.readouterr().out
    methods = ["FedAvg", "FedAsync", "FedBuff", "FADAS", "AsyncFedED"]
    headers = ("accuracy", "time to", "staleness", "steps", "per s", "majority class")
    for text in (*methods, *headers, "not a ranking", "fadas(learning_rate=0.003)"):
        assert text in shown
    assert (tmp_path / "quickstart.png").stat().st_size > 5000
    loaded = afl.load(tmp_path / "quickstart.nc")
    assert loaded["method"].values.tolist() == methods
    assert loaded["time"].attrs["units"] == "s" and loaded["staleness"].dtype.kind == "f"
    made = loaded["local_steps"].sum(("step", "arrival")).values
    assert (made[:4] == 100).all() and 100 <= made[4] < 120


@pytest.mark.slow
@pytest.mark.optimised  # trains more than it compiles
def test_every_method_of_quickstart_ends_well_above_the_majority_class():
    for name, run in quickstart.quickstart().items():
        assert float(run["accuracy"][-1]) > 0.5, name
        assert quickstart.BUDGET <= int(run["local_steps"].sum()) <= 1.005 * quickstart.BUDGET, name


def test_the_defaults_of_commands_are_those_of_what_they_call():
    assert inspect.signature(cli.compare).parameters["budget"].default == quickstart.BUDGET
    kinds = typing.get_type_hints(cli.plot_results)["kind"]
    assert sorted(typing.get_args(kinds)) == sorted(
        {*afl.plot.__all__} - {"bound", "epsilon_vs_time", "plan", "report"}
    )  # no pictures of files


def test_the_majority_class_of_the_ten_writers():
    assert quickstart.majority_share(afl.data.femnist(10)) == pytest.approx(16 / 217)


@pytest.mark.slow
def test_main_without_arguments_shows_the_usage_on_stderr():
    code = "import sys; from jaxafl.cli import main; sys.exit(main([]))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "usage: jaxafl COMMAND" in ended.stderr


@pytest.mark.parametrize("command", ["jaxafl", "experiments"])
@pytest.mark.parametrize("buffered", [True, False])
def test_output_that_is_not_read_to_its_end_is_no_error(
    command: str, buffered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = importlib.import_module("experiments.__main__")
    monkeypatch.setattr(whole, "experiments", lambda: {"a.b": None})
    monkeypatch.setattr(whole, "listed", lambda name, one: name)
    monkeypatch.setattr(sys, "argv", ["experiments", "--list"])
    reader, writer = os.pipe()
    os.close(reader)
    binary = os.fdopen(writer, "wb", buffering=-1 if buffered else 0)
    with io.TextIOWrapper(binary, write_through=not buffered) as output:  # closing flushes, as Python does at its exit
        monkeypatch.setattr(sys, "stdout", output)
        assert not (main(["--version"]) if command == "jaxafl" else whole.main())


def test_a_broken_pipe_that_is_not_the_output_is_raised() -> None:
    with pytest.raises(BrokenPipeError, match="of a tracker"), readable_output():
        raise BrokenPipeError("of a tracker")


@pytest.mark.slow
def test_compiled_programs_are_kept_in_a_folder_of_ones_own(tmp_path: pathlib.Path) -> None:
    code = "import sys; from jaxafl.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "run", "--server-steps", "2", "--data", "synthetic", "--model"]
    command += ["logistic", "--data.max-size", "20", "--no-progress", "--cache", str(tmp_path / "cache")]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        entries = {path.name for path in (tmp_path / "cache").glob("*-cache")}
    assert entries and (tmp_path / "cache").stat().st_mode & 0o777 == 0o700


def test_a_cache_of_another_user_is_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert main(["run", "--data", "synthetic", "--model", "logistic", "--cache", str(tmp_path)]) == 2
    assert "is another user's" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_is_stopped_before_any_server_step(capsys):
    assert main(["run", *SMALL, *FREE, "--stop-at", "0.0001", "--seed", "1"]) == 0
    said = capsys.readouterr().out
    assert "0.0 s" in said
    assert "ended by a limit: accuracy " in said


def test_a_warning_is_printed_once_and_without_a_line_of_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with warnings.catch_warnings():
        monkeypatch.setattr(warnings, "showwarning", lambda *place, **how: print("as usual", file=sys.stderr))
        print_warnings()
        warnings.simplefilter("always")
        for message in ("a small buffer", "a small buffer", "a large one"):
            warnings.warn(message, stacklevel=1)
        warnings.warn("of a developer", DeprecationWarning, stacklevel=1)
    expected = "jaxafl: warning: a small buffer\njaxafl: warning: a large one\nas usual\n"
    assert capsys.readouterr().err == expected
