"""`~` is the home directory wherever a path is taken."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

import jaxafl as afl
from jaxafl.cli import main
from jaxafl.models.adapters.checkpoint import save_parameters
from tests import reported


@pytest.fixture
def home(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.slow
def test_files_of_a_result_may_lie_at_home(home: pathlib.Path) -> None:
    result = reported.run()
    afl.save(result, "~/result.nc")
    assert afl.load("~/result.nc").identical(result)
    afl.plot.accuracy_vs_time(result, path="~/accuracy.png")
    assert afl.plot.report(result, "~/report.html") == home / "report.html"
    assert main(["plot", "~/result.nc", "--output=~/again.png"]) == 0
    save_parameters("~/model.safetensors", {"w": np.ones(2)})
    assert {path.name for path in home.glob("[!.]*")} == {
        *("result.nc", "accuracy.png", "report.html", "again.png", "model.safetensors", "elsewhere")
    }
    assert not list((home / "elsewhere").iterdir())
