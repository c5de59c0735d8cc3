"""A process is killed at random instants, also inside a save: whoever goes on gets what was never interrupted."""

from __future__ import annotations

import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

import jaxafl as afl
from tests.callbacks.conftest import assert_same
from tests.callbacks.runner import run

ROOT = pathlib.Path(__file__).parents[2]


def names(folder: pathlib.Path) -> set[str]:
    """What is in a folder, and in the folders of it that hold checkpoints of a sweep."""
    folders = [folder, *folder.glob("batch-*")]
    return {f"{one.name}/{name}" for one in folders if one.is_dir() for name in os.listdir(one)}


def killed(kind: str, folder: pathlib.Path, output: pathlib.Path, after: float) -> bool:
    """Whether the process had to be killed; `after`: seconds since its first checkpoint, or since the last one."""
    before = names(folder)
    command = [sys.executable, "-m", "tests.callbacks.runner", kind, str(folder), str(output)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not names(folder) - before:
        time.sleep(0.005)
    try:
        assert process.wait(after) == 0
        return False
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
        return True


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["planned", "online", "sweep"])
def test_a_run_killed_at_any_instant_resumes(kind: str, tmp_path: pathlib.Path) -> None:
    expected, draw, kills, done = run(kind, None), random.Random(kind), 2, 0
    attempts = 0
    while done < kills:
        folder, output = tmp_path / f"run{attempts}", tmp_path / f"result{attempts}.nc"
        attempts += 1
        for _ in range(3):  # several times the same run
            if done == kills or not killed(kind, folder, output, draw.uniform(0, 1.5)):
                break
            done += 1
        if not output.exists():
            assert not killed(kind, folder, output, 120)
        assert_same(afl.load(output), expected)
        assert attempts < 5 * kills
