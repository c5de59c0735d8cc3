"""Numbers per client from files on the command line."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tyro

from jaxafl.cli import main
from jaxafl.cli.build import make_simulation, parse_axis
from jaxafl.cli.files import read_numbers, with_arrays, without_files
from jaxafl.cli.options import Run, chosen, options_type
from jaxafl.options import UserError

DATA = ("--data", "synthetic", "--data.clients", "4")
RATES = [0.1, 0.2, 0.05, 0.3]


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    np.save("rates.npy", RATES)
    np.save("square.npy", np.ones((2, 2)))
    np.save("words.npy", np.array(["a"]))
    pathlib.Path("sizes.txt").write_text("8, 16\n4\t2\n")
    pathlib.Path("short.csv").write_text("1e-1,0.2,0.3\n")
    pathlib.Path("bad.txt").write_text("a b")
    return tmp_path


def simulation(*arguments: str) -> Any:
    names = chosen(arguments)
    plain, arrays = without_files(arguments, names)
    return make_simulation(names, with_arrays(tyro.cli(options_type(Run, names), args=plain), arrays))


def test_a_number_per_client_comes_from_a_file(folder: pathlib.Path) -> None:
    given = ("--client.learning-rate", "@rates.npy", "--client.batch_size=@sizes.txt", "--client.momentum=@rates.npy")
    sim = simulation(*DATA, *given, "--client.epochs", "@sizes.txt", "--server", "fedbuff")
    sim.check()
    np.testing.assert_array_equal(sim.client.hyperparameters["learning_rate"], RATES)
    np.testing.assert_array_equal(sim.client.hyperparameters["momentum"], RATES)
    assert sim.client.batch_size == sim.client.epochs == (8, 16, 4, 2) and sim.client.steps is None
    fedprox = simulation(*DATA, "--server", "fedprox", "--server.mu", "@rates.npy", "--clock", "synchronous")
    assert fedprox.client.proximal.tolist() == RATES
    upload = ("--clock", "bernoulli", "--clock.upload", "@short.csv", "--server", "fedavg")
    assert simulation(*DATA, *upload).clock.upload.tolist() == [0.1, 0.2, 0.3]


@pytest.mark.slow
def test_an_axis_has_files_beside_numbers(folder: pathlib.Path, capsys: Any) -> None:
    name, values = parse_axis("client.learning_rate=0.05,@rates.npy")
    assert name == "client.learning_rate" and values[0] == 0.05 and values[1].tolist() == RATES
    axis = ("--axis", "client.learning-rate=0.05,@rates.npy", "--axis", "client.batch_size=@sizes.txt,4")
    assert main(["sweep", *DATA, *axis, "--plan", "--no-progress", "--server-steps", "2"]) == 0
    assert capsys.readouterr().out.split()[:2] == ["members", "4"]


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("none.npy", r"--client.rate: @none.npy cannot be read: No such file or directory; expected an array"),
        ("bad.txt", r"--client.rate: @bad.txt is something else: .*'a'; expected an array of numbers"),
        ("square.npy", r"@square.npy has shape \(2, 2\) and type float64; expected .*, one per client"),
        ("words.npy", r"@words.npy has shape \(1,\) and type <U1"),
    ],
)
def test_a_file_of_something_else_is_refused(file: str, said: str, folder: pathlib.Path) -> None:
    with pytest.raises(UserError, match=said):
        read_numbers(file, "--client.rate")


def test_a_file_for_other_clients_is_one_line(folder: pathlib.Path, capsys: Any) -> None:
    assert main(["run", *DATA, "--client.learning-rate", "@short.csv", "--no-progress"]) == 2
    error = capsys.readouterr().err
    assert "learning_rate must be a number or an array of one number per client (4,), got shape (3,)" in error
