"""`jaxafl sweep`: axes as they are written, and members that fail; damaged files."""

from __future__ import annotations

import itertools

import numpy as np
import optax
import pytest
import xarray as xr

import jaxafl as afl
from jaxafl.cli import main, simulate
from jaxafl.cli.build import parse_axis
from jaxafl.cli.tables import show_result
from jaxafl.results.failures import failures
from jaxafl.sweep.assemble import labels
from jaxafl.sweep.axes import replace_at

SMALL = [
    "--data", "synthetic", "--data.max-size", "60", "--data.clients", "3", "--model", "logistic", "--no-progress",
    "--server-steps", "2", "--eval-every", "2",
]  # fmt: skip


def members(monkeypatch, *arguments: str) -> dict[tuple, afl.Simulation]:
    """Every combination of the values of the axes that the command gives to `afl.sweep`, by its labels."""
    made: dict[tuple, afl.Simulation] = {}

    def record(simulation, axes, **_):
        for chosen in itertools.product(*(zip(labels(column), column, strict=True) for column in axes.values())):
            variant = simulation
            for path, (_, value) in zip(axes, chosen, strict=True):
                variant = variant if path == "seed" else replace_at(variant, path, value)
            variant.check()
            made[tuple(label for label, _ in chosen)] = variant
        raise KeyboardInterrupt  # nothing is run

    monkeypatch.setattr(simulate, "run_sweep", record)
    assert main(["sweep", *SMALL, *arguments]) == 130
    return made


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    error = capsys.readouterr().err
    assert error.startswith("jaxafl: error: ") and error.count("\n") == 1
    return error


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("server.base_rate=1,3.5", "server.base_rate", [1, 3.5]),
        ("seed=0:3", "seed", [0, 1, 2]),
        ("server.delay_scaling=None,eq4", "server.delay_scaling", [None, "eq4"]),
        ("client.batch-size=8, none", "client.batch_size", [8, None]),
        ("clock.before_step=true,False", "clock.before_step", [True, False]),
        ("server.staleness='constant',\"hinge\",polynomial", "server.staleness", ["constant", "hinge", "polynomial"]),
        ("client.steps=[1,2,3],[2,2,2],4", "client.steps", [[1, 2, 3], [2, 2, 2], 4]),
        ("clock.durations=uniform(1,5),2", "clock.durations", ["uniform(1,5)", 2]),
        ("client.optimizer=sgd,optax:lion", "client.optimizer", ["sgd", "optax:lion"]),
    ],
)
def test_an_axis_is_parsed_into_name_and_values(text, name, values):
    assert parse_axis(text) == (name, values)


@pytest.mark.parametrize("text", ["seed", "seed=", "=1", "seed=0:x", "seed=3:3", "seed=0:1:2:3"])
def test_malformed_axes_raise(text):
    with pytest.raises(ValueError, match="--axis"):
        parse_axis(text)


@pytest.mark.parametrize("text", ["server.alpha=0.1,", "server.alpha=,1", "server.alpha=1,,2"])
def test_an_empty_value_is_said_to_be_empty(text):
    with pytest.raises(ValueError, match="empty value"):
        parse_axis(text)


def test_mu_of_fedprox_is_an_axis(monkeypatch):
    found = members(monkeypatch, "--server", "fedprox", "--axis", "server.mu=0.1,30")
    assert {key: one.client.proximal for key, one in found.items()} == {(0.1, 0): 0.1, (30.0, 0): 30.0}


def test_optimisers_are_an_axis_by_name(monkeypatch):
    found = members(monkeypatch, "--client.learning-rate", "0.01", "--axis", "client.optimizer=adam,sgd")
    assert {key: one.client.optimizer for key, one in found.items()} == {
        ("adam", 0): optax.adam,
        ("sgd", 0): optax.sgd,
    }
    assert all(one.client.hyperparameters == {"learning_rate": 0.01} for one in found.values())


def test_what_is_required_or_absent_by_default_can_be_an_axis(monkeypatch):
    found = members(monkeypatch, "--server", "audg", "--axis", "clock.upload=0.5,[0.2,0.5,0.9]", "--axis", "seed=1:3")
    assert [np.mean(one.clock.upload) for one in found.values()] == pytest.approx([0.5, 0.5, 1.6 / 3, 1.6 / 3])
    found = members(monkeypatch, "--axis", "client.momentum=0.1,0.9", "--axis", "client.epochs=1,2")
    assert [(one.client.hyperparameters["momentum"], one.client.epochs) for one in found.values()] == [
        (0.1, 1),
        (0.1, 2),
        (0.9, 1),
        (0.9, 2),
    ]
    assert all(one.client.steps is None for one in found.values())


def test_lists_and_durations_are_values_of_an_axis(monkeypatch):
    axes = ["--axis", "client.steps=[1,2,3],[2,2,2]", "--axis", "clock.durations=uniform(1,5),2"]
    found = members(monkeypatch, *axes)
    assert [one.client.steps for one in found.values()] == [(1, 2, 3), (1, 2, 3), (2, 2, 2), (2, 2, 2)]
    assert [one.clock.durations for one in found.values()] == [afl.clock.uniform(1, 5), afl.clock.constant(2)] * 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--axis", "clock.buffer=1,2"], ("'buffer'", "The clock is synchronous", "--clock")),
        (["--axis", "server.mu=1,2"], ("'mu'", "The server is fedavg")),
        (["--axis", "client.optimizer=sgd,foo"], ("no optimiser 'foo'",)),
        (["--axis", "client.optimizer=sgd,adam", "--client.momentum", "0.5"], ("adam has no option momentum",)),
        (["--axis", "seed=0:2", "--seed", "7"], ("--seed is given beside --axis seed",)),
        (
            ["--axis", "clock.durations=1,2", "--durations", "constant(7)", "--server", "fedbuff"],
            ("--durations is given beside --axis clock.durations",),
        ),
        (["--axis", "client.learning_rate=1/3,0.1"], ("--axis client.learning_rate: '1/3' is not a number",)),
        (["--axis", "client.batch-size=8", "--client.batch_size=7"], ("--client.batch-size is given beside",)),
        (["--axis", "clock.durations=uniform(1)"], ("durations",)),
        (["--axis", "server=fedavg,fedbuff"], ("--axis server: an axis varies an option",)),
        (["--axis", "seed=0,1,0"], ("names a seed more than once", "[0, 1, 0]")),
    ],
)
def test_invalid_axes_raise_one_line(arguments, said, capsys):
    assert main(["sweep", *SMALL, *arguments]) == 2
    error = error_of(capsys)
    assert all(text in error for text in said)


BREAKING = [
    "--clock", "free_running", "--clock.concurrency", "3", "--clock.buffer", "1", "--server", "fedbuff",
    "--server.staleness", "none", "--server-steps", "20", "--axis", "seed=0:2",
]  # fmt: skip


@pytest.mark.slow
def test_a_sweep_whose_runs_all_fail_says_where_and_exits_with_1(capsys):
    assert main(["sweep", *SMALL, *BREAKING, "--server.learning-rate", "1e38"]) == 1
    shown = capsys.readouterr()
    assert "2 of 2" in shown.out and "failed" in shown.out
    assert shown.err.count("\n") == 1
    assert "2 of 2 runs" in shown.err and "seed=0 at step" in shown.err and "seed=1 at step" in shown.err


@pytest.mark.slow
def test_a_sweep_with_some_failures_warns(tmp_path, capsys):
    file = tmp_path / "sweep.nc"
    axis = ["--axis", "server.learning_rate=0.1,1e38"]
    assert main(["sweep", *SMALL, *BREAKING, *axis, "--output", str(file)]) == 0
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "2 of 4 runs" in error and "seed=0, server.learning_rate=1e+38 at step" in error
    loaded = afl.load(file)
    assert failures(loaded)[1] == 2
    assert failures(loaded.isel({"server.learning_rate": [0]})) == ("", 2)


@pytest.mark.parametrize(
    ("failed_step", "said", "accuracy"),
    [((-1, -1), "", "40.0 ± 14.1 %"), ((-1, 3), "1 of 2", "30.0 %"), ((2, 3), "2 of 2", "40.0 ± 14.1 %")],
)
def test_the_table_averages_the_runs_that_have_not_failed(failed_step, said, accuracy, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    result = xr.Dataset(
        {
            "accuracy": (("seed", "evaluation"), [[0.1, 0.3], [0.1, 0.5]]),
            "staleness": (("seed", "step", "arrival"), np.zeros((2, 1, 1), int)),
            "time": (("seed", "step"), np.ones((2, 1))),
            "failed_step": (("seed",), np.asarray(failed_step)),
        },
        {"seed": [0, 1]},
    )
    show_result(result)
    shown = capsys.readouterr().out
    assert accuracy in shown and said in shown
    assert ("failed" in shown) == bool(said)


@pytest.mark.slow
def test_a_damaged_or_foreign_file_is_one_line_that_names_it(tmp_path, capsys):
    good, damaged, foreign = (tmp_path / name for name in ("good.nc", "damaged.nc", "foreign.nc"))
    assert main(["run", *SMALL, "--output", str(good)]) == 0
    capsys.readouterr()
    content = bytearray(good.read_bytes())
    for start in range(1000, len(content) - 300, 3000):
        content[start : start + 300] = bytes(range(50)) * 6
    damaged.write_bytes(content)
    xr.Dataset({"other": ("x", np.arange(3))}).to_netcdf(foreign, engine="h5netcdf")
    assert main(["plot", str(good), "--output", str(tmp_path / "image.doc")]) == 2
    assert "must end in one of" in error_of(capsys)
    for file in (damaged, foreign):
        assert main(["plot", str(file), "--output", str(tmp_path / "image.png")]) == 2
        assert str(file) in error_of(capsys)


def test_a_plan_has_the_length_of_its_limits(monkeypatch, capsys):
    planned = []

    def record(*_, server_steps, **__):
        planned.append(server_steps)
        raise KeyboardInterrupt  # nothing is compiled

    monkeypatch.setattr(simulate, "outlook", record)
    plan = [*SMALL[:-4], "--axis", "server.learning_rate=0.5,1", "--clock.durations", "2", "--plan"]
    for limits in (["--until", "time=60"], ["--until", "time=60,accuracy=0.9", "--server-steps", "7"], []):
        assert main(["sweep", *plan, *limits]) == 130
    assert planned == [30, 7, 200]
    capsys.readouterr()
    assert main(["sweep", *plan, "--until", "accuracy=0.9"]) == 2
    assert "--plan: until accuracy=0.9 is only known in training; give --server-steps" in error_of(capsys)
