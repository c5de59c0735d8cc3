"""Files that are there already: what replaces them, and what does not."""

from __future__ import annotations

import pathlib
import warnings
from typing import Any

import numpy as np
import pytest

import jaxafl as afl
from jaxafl.cli import main
from jaxafl.results.failures import keep
from tests.callbacks.conftest import simulation
from tests.problems import classifier

HOW: dict[str, Any] = {"server_steps": 8, "eval_every": 4}


def failing() -> afl.Simulation:
    one = simulation(learning_rate=1e30)
    return afl.Simulation(one.data, one.model, one.client, afl.server.fedbuff(1e30), one.clock)


@pytest.mark.slow
def test_a_run_that_fails_does_not_replace_one_that_did_not(tmp_path: pathlib.Path) -> None:
    path, beside = tmp_path / "result.nc", tmp_path / "result.incomplete.nc"
    failing().run(**HOW, save=path)  # where there was nothing, or as little
    failing().run(**HOW, save=path)
    assert not beside.exists()
    simulation().run(**HOW, save=path)
    whole = path.read_bytes()
    with pytest.warns(UserWarning, match=r"stopped being finite, so .*result\.incomplete\.nc, and .* stays as it was"):
        failing().run(**HOW, save=path)
    assert path.read_bytes() == whole and afl.load(beside).attrs["failed_step"] >= 0
    simulation().run(4, save=path)  # another run that came to its end, as it was asked for
    assert path.read_bytes() != whole


def test_a_folder_belongs_to_what_is_simulated(tmp_path: pathlib.Path) -> None:
    local: dict[str, Any] = {"learning_rate": [0.1, 0.2, 0.1, 0.1], "steps": 1, "batch_size": 8}
    sim = classifier(client=afl.Client(**local))
    sim.run(1, folder=tmp_path)
    same = afl.Client(**local | {"learning_rate": np.array(local["learning_rate"])})
    assert classifier(client=same).run(2, folder=tmp_path).sizes["step"] == 2
    x, y = sim.data.test_arrays()
    others: dict[str, dict[str, Any]] = {
        "attack": {"client": same, "attack": afl.attack.sign_flip(clients=[1])},
        "upload": {"client": afl.Client(**local, upload=afl.upload.sign())},
        r"client\.learning_rate": {"client": afl.Client(**local | {"learning_rate": local["learning_rate"][::-1]})},
        "content": {"client": same, "data": sim.data.with_test_sets({"shifted": (x + 1, y)})},
    }
    for what, parts in others.items():
        with pytest.raises(ValueError, match=what):
            classifier(**parts).run(3, folder=tmp_path)


@pytest.mark.slow
def test_a_sweep_under_way_does_not_replace_one_that_has_ended(tmp_path: pathlib.Path) -> None:
    path, folder = tmp_path / "result.nc", tmp_path / "sweep"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        afl.sweep(simulation(), {"seed": [0, 1]}, 8, eval_every=4, folder=folder, save=path)
        keep(afl.gather(folder).load(), path)
    (folder / "member-00001.nc").unlink()
    whole = path.read_bytes()
    with pytest.warns(UserWarning, match="1 runs are missing"):
        keep(afl.gather(folder).load(), path)
    assert path.read_bytes() == whole and afl.load(tmp_path / "result.incomplete.nc").sizes["seed"] == 2


def test_a_sweeps_own_files_are_no_place_for_its_result(tmp_path: pathlib.Path) -> None:
    save = tmp_path / "member-00000.nc"
    with pytest.raises(ValueError, match="is the name of a member of the sweep"):
        afl.sweep(simulation(), {"seed": [0]}, 4, folder=tmp_path, save=save)
    afl.sweep(simulation(), {"seed": [0]}, 4, folder=tmp_path)
    (tmp_path / "sweep.json").unlink()
    with pytest.raises(ValueError, match=r"sweep\.json"):  # of what was it one?
        afl.sweep(simulation(learning_rate=0.5), {"seed": [0]}, 4, folder=tmp_path)


def test_files_of_other_content_stay(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A thesis, a table of somebody's, a page of somebody's, the result that is reported."""
    other, page = tmp_path / "thesis", tmp_path / "page.html"
    for path in (other, page):
        path.write_text("years of work")
    for call in (
        lambda: simulation().run(**HOW, save=other),
        lambda: afl.sweep(simulation(), {"seed": [0]}, 8, save=other),
        lambda: afl.callbacks.Csv(other),
    ):
        with pytest.raises(ValueError, match=r"holds (something else|another table), which is not replaced"):
            call()
    simulation().run(4, save=tmp_path / "result.nc")
    result = (tmp_path / "result.nc").rename(tmp_path / "result.html")
    for to in (page, result):
        assert main(["report", str(result), "--output", str(to)]) == 2
        assert "which is not replaced" in capsys.readouterr().err
    assert other.read_text() == page.read_text() == "years of work" and afl.load(result).sizes["step"] == 4
