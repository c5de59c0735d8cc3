"""Files that are there already: what replaces them, and what does not."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

import jaxafl as afl
from jaxafl.cli import main
from tests.callbacks.conftest import simulation
from tests.problems import classifier

HOW: dict[str, Any] = {"server_steps": 8, "eval_every": 4}


def test_a_folder_belongs_to_what_is_simulated(tmp_path: pathlib.Path) -> None:
    local: dict[str, Any] = {"learning_rate": [0.1, 0.2, 0.1, 0.1], "steps": 1, "batch_size": 8}
    sim = classifier(client=afl.Client(**local))
    sim.run(1, folder=tmp_path)
    same = afl.Client(**local | {"learning_rate": np.array(local["learning_rate"])})
    assert classifier(client=same).run(2, folder=tmp_path).sizes["step"] == 2
    x, y = sim.data.test_arrays()
    wider = afl.models.logistic(11)
    others: dict[str, dict[str, Any]] = {
        "attack": {"client": same, "attack": afl.attack.sign_flip(clients=[1])},
        "upload": {"client": afl.Client(**local, upload=afl.upload.sign())},
        r"client\.learning_rate": {"client": afl.Client(**local | {"learning_rate": local["learning_rate"][::-1]})},
        r"model\.leaves\..* was 'float32\[60, 10\]' and is 'float32\[60, 11\]'": {"client": same, "model": wider},
        "content": {"client": same, "data": sim.data.with_test_sets({"shifted": (x + 1, y)})},
    }
    for what, parts in others.items():
        with pytest.raises(ValueError, match=what):
            classifier(**parts).run(3, folder=tmp_path)
    with pytest.raises(ValueError, match=r"run\.seed was 0 and is 1; name another folder"):
        classifier(client=same).run(3, seed=1, folder=tmp_path)


def test_members_without_what_they_are_members_of_are_refused(tmp_path: pathlib.Path) -> None:
    afl.sweep(simulation(), {"seed": [0]}, 4, folder=tmp_path)
    (tmp_path / "sweep.json").unlink()
    with pytest.raises(ValueError, match=r"sweep\.json"):
        afl.sweep(simulation(learning_rate=0.5), {"seed": [0]}, 4, folder=tmp_path)


def test_files_of_other_content_stay(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A thesis, a table of somebody's, a page of somebody's, the result that is reported."""
    other, page = tmp_path / "thesis", tmp_path / "page.html"
    for path in (other, page):
        path.write_text("years of work")
    for call in (
        lambda: simulation().run(**HOW, save=other),
        lambda: afl.sweep(simulation(), {"seed": [0]}, 8, save=other),
    ):
        with pytest.raises(ValueError, match="holds something else, which is not replaced"):
            call()
    simulation().run(4, save=tmp_path / "result.nc")
    result = (tmp_path / "result.nc").rename(tmp_path / "result.html")
    for to in (page, result):
        assert main(["report", str(result), "--output", str(to)]) == 2
        assert "which is not replaced" in capsys.readouterr().err
    assert other.read_text() == page.read_text() == "years of work" and afl.load(result).sizes["step"] == 4
