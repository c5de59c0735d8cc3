"""Files that are there already: what replaces them, and what does not."""

from __future__ import annotations

import pathlib
import warnings
from typing import Any

import pytest
from matplotlib.figure import Figure

import jaxafl as afl
from jaxafl import results
from jaxafl.cli import main
from tests.callbacks.conftest import simulation

HOW: dict[str, Any] = {"server_steps": 8, "eval_every": 4}
RUN = ["run", "--data", "synthetic", "--data.max-size", "60", "--data.clients", "4", "--model", "logistic",
       "--server-steps", "4", "--no-progress"]  # fmt: skip


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


@pytest.mark.slow
def test_a_sweep_under_way_does_not_replace_one_that_has_ended(tmp_path: pathlib.Path) -> None:
    path, folder = tmp_path / "result.nc", tmp_path / "sweep"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        afl.sweep(simulation(), {"seed": [0, 1]}, 8, eval_every=4, folder=folder, save=path)
        assert main(["gather", str(folder), "--output", str(path)]) == 0
    (folder / "member-00001.nc").unlink()
    whole = path.read_bytes()
    with pytest.warns(UserWarning, match="1 runs are missing"):
        assert main(["gather", str(folder), "--output", str(path)]) == 0
    assert path.read_bytes() == whole and afl.load(tmp_path / "result.incomplete.nc").sizes["seed"] == 2


def test_a_sweeps_own_files_are_no_place_for_its_result(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save = tmp_path / "member-00000.nc"
    with pytest.raises(ValueError, match="is the name of a member of the sweep"):
        afl.sweep(simulation(), {"seed": [0]}, 4, folder=tmp_path, save=save)
    afl.sweep(simulation(), {"seed": [0]}, 4, folder=tmp_path)
    assert main(["gather", str(tmp_path), "--output", str(save)]) == 2
    assert "is the name of a member of the sweep" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_was_made_longer_is_resumed_as_that(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A call that the folder refuses is not what is resumed."""
    folder = ["--folder", str(tmp_path)]
    assert main([*RUN, *folder]) == 0
    assert main([*RUN, "--server-steps", "6", *folder]) == 0
    assert main([*RUN, "--server-steps", "6", "--seed", "1", *folder]) == 2
    capsys.readouterr()
    assert main(["resume", str(tmp_path)]) == 0
    assert "nothing left to do after 6 server steps" in capsys.readouterr().err


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
    result = tmp_path / "result.html"
    assert main([*RUN, "--output", str(tmp_path / "result.nc")]) == 0
    (tmp_path / "result.nc").rename(result)
    for to in (page, result):
        assert main(["report", str(result), "--output", str(to)]) == 2
        assert "which is not replaced" in capsys.readouterr().err
    assert other.read_text() == page.read_text() == "years of work" and afl.load(result).sizes["step"] == 4


@pytest.mark.slow
def test_a_sweep_goes_on_only_where_its_folder_says_of_what_it_is(tmp_path: pathlib.Path) -> None:
    afl.sweep(simulation(), {"seed": [0]}, 4, folder=tmp_path)
    (tmp_path / "sweep.json").unlink()
    with pytest.raises(ValueError, match=r"holds results of a sweep, but no sweep\.json"):
        afl.sweep(simulation(learning_rate=0.5), {"seed": [0]}, 4, folder=tmp_path)


def test_outputs_of_a_command_have_names_of_their_own(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "result.nc")
    assert main([*RUN, "--output", path, "--csv", path]) == 2
    assert "--output and --csv name the same file" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_picture_is_replaced_by_a_whole_one(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full leaves the picture that was there."""
    result, path = simulation().run(**HOW), tmp_path / "picture.png"
    afl.plot.accuracy_vs_time(result, path=path)
    whole = path.read_bytes()

    def full(self: Figure, path: Any, **how: Any) -> None:
        pathlib.Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(OSError, match="No space left"):
        afl.plot.accuracy_vs_time(result, path=path)
    assert path.read_bytes() == whole and [one.name for one in tmp_path.iterdir()] == ["picture.png"]
    with pytest.raises(OSError, match="No space left"):
        afl.data.heat_map(simulation().data.statistics(), path)
    assert path.read_bytes() == whole


def test_the_first_bytes_of_results_are_known(tmp_path: pathlib.Path) -> None:
    simulation().run(4, save=tmp_path / "result.nc")
    assert (tmp_path / "result.nc").read_bytes().startswith(results.BEGINS)
