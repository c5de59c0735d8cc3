"""`jaxafl sweep` on several devices and by workers, its outlook, and `jaxafl gather`."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

import jaxafl as afl
from jaxafl.cli import main
from tests.sweep.conftest import differing

SMALL = [
    "--data", "synthetic", "--data.max-size", "60", "--data.clients", "3", "--model", "logistic", "--no-progress",
    "--server-steps", "4", "--eval-every", "2", "--axis", "seed=0:3",
]  # fmt: skip


@pytest.mark.slow
def test_how_far_the_members_of_a_sweep_are(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "sweep"
    assert main(["sweep", *SMALL, "--folder", str(folder), "--output", str(tmp_path / "whole.nc")]) == 0
    (folder / "member-00001.nc").unlink()
    (folder / "member-00001.error").write_text("ValueError: it does not work\n\nTraceback")
    capsys.readouterr()
    assert main(["gather", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "2 of 3 members are finished" in said and "seed=1: ValueError: it does not work" in said
    part, whole = afl.gather(folder), afl.load(tmp_path / "whole.nc")
    assert (part.loss.sel(seed=2).values == whole.loss.sel(seed=2).values).all()
    assert main(["gather", str(tmp_path)]) == 2
    assert "is not the folder of a sweep" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("how", [["--devices", "all"], ["--devices", "3"], ["--workers", "2", "--folder", "sweep"]])
def test_executors_of_the_command_line_run_a_sweep(how: list[str], tmp_path: pathlib.Path) -> None:
    """In processes of their own, whose devices nobody has made before."""
    script = tmp_path / "jaxafl_main.py"
    script.write_text('from jaxafl.cli import main\n\nif __name__ == "__main__":\n    raise SystemExit(main())\n')

    def sweep(*more: str) -> str:
        command = [sys.executable, str(script), "sweep", *SMALL, *more]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    sweep("--output", "one.nc")
    sweep(*how, "--output", "several.nc")
    assert differing(afl.load(tmp_path / "several.nc"), afl.load(tmp_path / "one.nc")) == []
    at_once = min(3, os.cpu_count() or 1 if how[1] == "all" else int(how[1]))
    assert re.search(rf"devices +{at_once}\n", sweep(*how, "--plan"))
