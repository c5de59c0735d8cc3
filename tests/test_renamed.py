"""Earlier names of options work for one version: in Python, sweeps, command lines and checkpoints."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from typing import Any

import pytest

import jaxafl as afl
from jaxafl.callbacks.identity import check_identity
from jaxafl.cli.options import current_arguments
from jaxafl.options import Number, UserError, number
from jaxafl.sweep.axes import axes_of
from tests.callbacks.conftest import simulation
from tests.problems import quadratic

NAMES: list[tuple[Any, str, str]] = [
    (afl.server.asyncfeded, "lam", "base_rate"),
    (afl.server.afl, "a", "staleness_exponent"),
    (functools.partial(afl.Client, learning_rate=0.1), "run_decay", "rate_decay_per_run"),
]


@pytest.mark.parametrize(("part", "earlier", "now"), NAMES)
def test_an_earlier_name_works_with_a_warning(part: Any, earlier: str, now: str) -> None:
    with pytest.warns(FutureWarning, match=f"the option '{earlier}' is now called '{now}'") as warned:
        made = part(**{earlier: 0.5})
    assert warned[0].filename == __file__
    assert getattr(made, now) == 0.5
    with pytest.warns(FutureWarning, match=now):
        assert getattr(made, earlier) == 0.5
    assert getattr(dataclasses.replace(made, **{now: 0.25}), now) == 0.25
    with pytest.raises(TypeError, match="are two names of one option"), pytest.warns(FutureWarning):
        part(**{earlier: 0.5, now: 0.5})


@pytest.mark.parametrize("method", ["run", "train"])
def test_the_folder_of_a_run_has_an_earlier_name(method: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "sweep.json").touch()  # so that it ends before it compiles
    with (
        pytest.warns(FutureWarning, match="'checkpoint' is now called 'folder'") as warned,
        pytest.raises(UserError, match="is the folder of a sweep"),
    ):
        getattr(simulation(), method)(2, checkpoint=tmp_path)
    assert warned[0].filename == __file__


def test_a_subclass_of_a_user_takes_the_earlier_name() -> None:
    class mine(afl.server.asyncfeded):
        other: Number = number(default=1.0)

    with pytest.warns(FutureWarning, match="base_rate"):
        assert mine(lam=0.5, other=2.0).base_rate == 0.5
    with pytest.raises(AttributeError, match="has no attribute 'missing'"):
        _ = mine().missing


def test_an_axis_of_a_sweep_gets_the_present_name() -> None:
    problem = quadratic()
    clock = afl.clock.free_running(concurrency=2, durations=afl.clock.constant(1.0))
    client = afl.Client(learning_rate=0.1, steps=1)
    sim = afl.Simulation(problem.data, problem.model, client, afl.server.asyncfeded(), clock)
    with pytest.warns(FutureWarning, match="base_rate"):
        (axis,) = axes_of(sim, {"server.lam": [0.5, 1.0]})[1]
    assert axis.name == "server.base_rate" and axis.paths == ("server.base_rate",)


def test_a_command_line_takes_the_earlier_name() -> None:
    line = ["--server", "asyncfeded", "--server.lam=2", "--axis", "client.run_decay=0.5,1", "--server.eps", "1"]
    with pytest.warns(FutureWarning, match="now called"):
        found = current_arguments(line)
    assert found[2:5] == ["--server.base_rate=2", "--axis", "client.rate_decay_per_run=0.5,1"]
    assert found[5:] == line[5:]


def test_a_checkpoint_with_an_earlier_name_is_of_the_same_run(tmp_path: Any) -> None:
    def saved(name: str) -> dict[str, Any]:
        return {"versions": {}, "options": {"server": {"name": "asyncfeded", name: 0.5}}}

    assert check_identity(tmp_path, saved("lam"), saved("base_rate")) == ""
