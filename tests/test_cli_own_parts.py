"""Parts of the user's own on the command line, named `module:name` and found from the current directory."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import tyro

import jaxafl as afl
from jaxafl.cli import main, simulate
from jaxafl.cli.build import make_simulation
from jaxafl.cli.options import Run, chosen, options_type
from jaxafl.sweep.axes import replace_at

SMALL = ["--data", "synthetic", "--data.max-size", "60", "--data.clients", "3", "--model", "logistic", "--no-progress"]
PARTS = [
    ("server", "halved", ("--server.share", "--server.mode {fast,slow}", "the share of the mean", "(required)")),
    ("clock", "deadline", ("--clock.seconds", "the deadline", "--clock.cohort", "--clock.durations EXPR")),
    ("model", "narrow", ("--model.width", "units of the hidden layer")),
    ("data", "toy", ("--data.samples", "samples of each client", "--clients")),
    ("partition", "in_turn", ("--partition.clients", "number of clients")),
]


SOURCE = '''"""Parts of a user's own."""

from __future__ import annotations

from typing import Literal

import jax
import numpy as np
import optax

import jaxafl as afl
from jaxafl.options import Number, number, static
from jaxafl.server import mean_delta


class halved(afl.server.Server):
    """Adds a share of the mean update.

    Args:
        share: the share of the mean, >= 0.
        mode: `"fast"` or `"slow"`.
    """

    share: Number = number(least=0)
    mode: Literal["fast", "slow"] = static(default="fast")

    def update(self, params, state, arrivals):
        mean = mean_delta(arrivals)
        return afl.server.Outcome(jax.tree.map(lambda x, d: x + self.share * d, params, mean), state, {})


class deadline(afl.clock.synchronous):
    """Rounds that last as long as a deadline.

    Args:
        seconds: the deadline.
    """

    seconds: Number = number(default=10.0, above=0, kw_only=True)


def broken():
    return float("no number")


def narrow(num_classes, width: int = 3):
    """A perceptron with one hidden layer.

    Args:
        num_classes: number of classes.
        width: units of the hidden layer.
    """
    return afl.models.mlp(num_classes, (width,))


def toy(clients: int = 4, samples: int = 5):
    """Zeros.

    Args:
        clients: number of clients.
        samples: samples of each client.
    """
    ids = np.repeat(np.arange(clients), samples)
    x, y = np.zeros((len(ids), 3), np.float32), np.arange(len(ids)) % 2
    return afl.data.from_arrays(x, y, ids, x_test=x[:2], y_test=y[:2])


def pooled():
    """Twenty zeros."""
    x = np.zeros((20, 3), np.float32)
    return afl.data.Dataset("toy", x, np.arange(20) % 2, x[:2], np.arange(2), 2, afl.data.cast())


class in_turn:
    """Samples dealt out in turn.

    Args:
        clients: number of clients.
    """

    def __init__(self, clients: int = 2):
        self.clients = clients

    def split(self, labels, users, rng):
        return [np.arange(len(labels))[client :: self.clients] for client in range(self.clients)]

    @property
    def description(self):
        return {"partition": "in_turn", "partition_clients": self.clients}


def plain(learning_rate: float):
    """Gradient descent."""
    return optax.sgd(learning_rate)
'''


@pytest.fixture
def own_parts(tmp_path_factory, monkeypatch) -> str:
    """The name of a module in the current directory, which is not on `sys.path`."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "parts_of_mine.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.delitem(sys.modules, "parts_of_mine", raising=False)
    return "parts_of_mine"


def simulation(*arguments: str) -> afl.Simulation:
    names = chosen(arguments)
    return make_simulation(names, tyro.cli(options_type(Run, names), args=list(arguments)))


@pytest.mark.parametrize(("part", "name", "said"), PARTS)
def test_help_shows_the_options_of_a_part_of_ones_own(part, name, said, own_parts, capsys):
    own = f"{own_parts}:{name}"
    assert main(["run", f"--{part}", own, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"usage: jaxafl run --{part} {own}" in shown
    assert f"{own}: " in shown and all(text in shown for text in said)


def test_options_of_ones_own_parts_reach_the_simulation(own_parts):
    made = simulation(
        "--server", f"{own_parts}:halved", "--server.share", "0.25", "--server.mode", "slow",
        "--clock", f"{own_parts}:deadline", "--clock.seconds", "3", "--clock.durations", "constant(9)",
        "--model", f"{own_parts}:narrow", "--model.width", "7",
        "--data", f"{own_parts}:pooled", "--partition", f"{own_parts}:in_turn", "--clients", "4",
        "--client.optimizer", f"{own_parts}:plain",
    )  # fmt: skip
    assert (made.server.share, made.server.mode) == (0.25, "slow")
    assert (made.clock.seconds, made.clock.durations) == (3, afl.clock.constant(9))
    assert made.model.description["hidden"] == [7]
    assert made.data.num_clients == 4
    assert made.client.optimizer.__name__ == "plain"
    made.check()
    assert simulation("--data", f"{own_parts}:toy", "--clients", "6", "--model", "logistic").data.num_clients == 6


@pytest.mark.slow
def test_a_server_and_a_clock_of_ones_own_run(own_parts, tmp_path, capsys):
    own = ["--server", f"{own_parts}:halved", "--server.share", "0.5", "--clock", f"{own_parts}:deadline"]
    assert main(["run", *SMALL, *own, "--server-steps", "3", "--output", str(tmp_path / "own.nc")]) == 0
    assert "halved on deadline" in capsys.readouterr().out
    assert json.loads(afl.load(tmp_path / "own.nc").attrs["server"])["share"] == 0.5


@pytest.mark.parametrize(
    ("arguments", "path", "values"),
    [
        (["--server", "{own}:halved", "--axis", "server.share=0.5,1"], "server.share", [0.5, 1]),
        (["--clock", "{own}:deadline", "--axis", "clock.seconds=1,2"], "clock.seconds", [1, 2]),
        (
            ["--clock", "{own}:deadline", "--axis", "clock.durations=1,uniform(1,2)"],
            "clock.durations",
            [afl.clock.constant(1), afl.clock.uniform(1, 2)],
        ),
    ],
)
def test_an_option_of_ones_own_part_is_an_axis(arguments, path, values, own_parts, monkeypatch):
    swept = []

    def record(simulation, axes, **_):
        swept.append(axes)
        for value in axes[path]:
            replace_at(simulation, path, value).check()
        raise KeyboardInterrupt  # nothing is run

    monkeypatch.setattr(simulate, "run_sweep", record)
    assert main(["sweep", *SMALL, *(argument.format(own=own_parts) for argument in arguments)]) == 130
    assert swept == [{path: values, "seed": [0]}]


@pytest.mark.slow
def test_a_sweep_over_an_option_of_ones_own_server_runs(own_parts, tmp_path):
    own = ["--server", f"{own_parts}:halved", "--axis", "server.share=0,1", "--server-steps", "3"]
    assert main(["sweep", *SMALL, *own, "--output", str(tmp_path / "own.nc")]) == 0
    still, moved = afl.load(tmp_path / "own.nc")["loss"].isel(seed=0).values
    assert len(set(still)) == 1 and len(set(moved)) > 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--server", "absent_module:halved"], "No module named 'absent_module'"),
        (["--server", "{own}:absent"], "there is no server '{own}:absent': the module {own} has no class or function"),
        (["--server", "{own}:deadline"], "{own}:deadline is no server: it has no method update"),
        (["--server", "{own}:halved", "--server.share", "-1"], "halved: share must be >= 0, got -1"),
        (["--server", "{own}:halved", "--server.share", "1", "--server.alpha", "1"], "which has --server.share"),
        (["--server", "{own}:"], "has no class or function ''"),
        (["--model", "{own}:halved"], "{own}:halved is no model"),
    ],
)
def test_mistakes_with_parts_of_ones_own_are_one_line(arguments, said, own_parts, capsys):
    arguments = [argument.format(own=own_parts) for argument in arguments]
    assert main(["run", "--data", "synthetic", "--model", "logistic", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("jaxafl: error: ") and error.count("\n") == 1
    assert said.format(own=own_parts) in error


def test_a_broken_module_keeps_its_traceback(tmp_path, monkeypatch):
    (tmp_path / "broken_module_of_mine.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ZeroDivisionError):
        main(["run", "--server", "broken_module_of_mine:server"])


@pytest.mark.slow
def test_the_current_directory_is_searched_as_with_python(own_parts):
    """Also by the installed script, which does not have it on `sys.path`."""
    code = (
        "import sys; sys.path = [p for p in sys.path if p]; from jaxafl.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-P", "-c", code, "run", "--server", f"{own_parts}:halved", "--help"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0 and "--server.share" in ended.stdout


def test_a_pooled_dataset_without_a_partition_is_an_error_that_says_what_to_add(capsys, own_parts):
    toy = f"{own_parts}:pooled"
    assert main(["run", "--data", toy, "--model", "logistic"]) == 2
    assert "--partition iid" in capsys.readouterr().err
    made = simulation("--data", toy, "--partition", "iid", "--clients", "5", "--model", "logistic")
    assert made.data.num_clients == 5


def test_an_error_below_a_constructor_is_one_line(capsys, own_parts):
    assert main(["run", *SMALL, "--clock", f"{own_parts}:broken"]) == 2
    assert "no number" in capsys.readouterr().err


METRICS = """
from jaxafl.models import Metric, confusion_matrix


def right(labels, outputs):
    return (outputs.argmax(-1) == labels).mean()


farthest = Metric(lambda labels, outputs: outputs.max(), better="lower")
number = 3
"""


@pytest.mark.slow
def test_metrics_of_whole_sets_are_named_by_module_and_function(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scores_of_mine.py").write_text(METRICS)
    given = "share_accuracy=scores_of_mine:right,confusion=scores_of_mine:confusion_matrix,far=scores_of_mine:farthest"
    command = ["run", *SMALL, "--server-steps", "4", "--metrics", given, "--output", "r.nc", "--csv", "log.csv"]
    assert main([*command, "--stop-at", "share_accuracy=0.99"]) == 0
    result = afl.load("r.nc")
    np.testing.assert_allclose(result.share_accuracy, result.accuracy, rtol=1e-6)
    assert result.confusion.dims == ("evaluation", "label", "predicted") and result.far.better == "lower"
    assert {"share_accuracy", "far"} < set((tmp_path / "log.csv").read_text().splitlines()[0].split(","))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("f1", "expected NAME=MODULE:FUNCTION"),
        ("f1=numbers", "expected NAME=MODULE:FUNCTION"),
        ("f1=numbers:,auc=numbers:auc", "expected NAME=MODULE:FUNCTION"),
        ("f1=math:sqrt,f1=math:exp", "each name once"),
        ("f1=math:macro_f1", "there is no metric 'math:macro_f1': the module math has no class or function 'macro_f1'"),
        ("f1=math:pi", "there is no metric 'math:pi'"),
        ("f1=no_such_module:f1", "No module named 'no_such_module'"),
        ("staleness=math:sqrt", "results have this name for something else"),
    ],
)
def test_metrics_that_cannot_be_computed_are_one_line(given, said, capsys):
    assert main(["run", *SMALL, "--server-steps", "4", "--metrics", given]) != 0
    error = capsys.readouterr().err
    assert said in error and len(error.strip().splitlines()) == 1
