"""`jaxafl init`: the experiment it writes runs, goes on where it stopped, and nothing is written over."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from jaxafl.cli import main

FILES = [".gitignore", "README.md", "experiment.py", "job.slurm"]


@pytest.fixture
def made(tmp_path: pathlib.Path) -> pathlib.Path:
    assert main(["init", str(tmp_path / "new" / "mine")]) == 0
    return tmp_path / "new" / "mine"


@pytest.mark.slow
def test_it_writes_a_script_that_compiles_and_what_belongs_to_it(made):
    assert sorted(path.name for path in made.iterdir()) == FILES
    compile((made / "experiment.py").read_text(), "experiment.py", "exec")
    readme = (made / "README.md").read_text()
    assert all(name in readme for name in ("experiment.py --smoke", "sbatch job.slurm", "results/table.md"))
    assert subprocess.run(["bash", "-n", made / "job.slurm"]).returncode == 0
    help_ = subprocess.run([sys.executable, "experiment.py", "--help"], cwd=made, capture_output=True, text=True)
    assert help_.returncode == 0 and "--smoke" in help_.stdout


def test_it_fills_an_empty_folder_and_refuses_any_other(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert main(["init", "empty"]) == 0
    assert "cd empty && python experiment.py --smoke" in capsys.readouterr().out
    (tmp_path / "empty" / "experiment.py").write_text("mine")
    assert main(["init", "empty"]) == 2
    assert "empty is not empty" in capsys.readouterr().err
    assert (tmp_path / "empty" / "experiment.py").read_text() == "mine"
    (tmp_path / "file").touch()
    assert main(["init", "file"]) == 2
    assert "file is a file" in capsys.readouterr().err


@pytest.mark.slow
def test_the_experiment_runs_and_a_second_call_has_nothing_left_to_do(made):
    command = [sys.executable, "experiment.py", "--smoke"]
    first = subprocess.run(command, cwd=made, capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    assert "| FedBuff |" in first.stdout and "| mine |" in first.stdout
    assert (made / "smoke" / "comparison.png").stat().st_size > 5000
    kept = {path: path.stat().st_mtime_ns for path in (made / "smoke").rglob("*.nc")}
    second = subprocess.run(command, cwd=made, capture_output=True, text=True)
    table = (made / "smoke" / "table.md").read_text()
    assert table in first.stdout and table in second.stdout
    assert kept and kept == {path: path.stat().st_mtime_ns for path in (made / "smoke").rglob("*.nc")}
    script = (made / "experiment.py").read_text()
    changed = script.replace("x + self.learning_rate * step", "x - self.learning_rate * step")
    assert changed != script
    (made / "experiment.py").write_text(changed)
    third = subprocess.run(command, cwd=made, capture_output=True, text=True)
    assert third.returncode and f"smoke{os.sep}mine holds something else: server.methods.update" in third.stderr


@pytest.mark.slow
def test_a_job_whose_time_is_up_is_saved_and_queued_again(made, tmp_path):
    """With an `srun` that runs the command, and an `scontrol` that notes what it is asked for."""
    commands = {
        "srun": 'exec "$@"',
        "scontrol": f'echo "$@" >> {tmp_path}/asked',
        "python": f'exec {sys.executable} "$@"',
    }
    for name, line in commands.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    command = ["bash", "job.slurm", "--seeds", "1", "--server-steps", "100000"]
    job = subprocess.Popen(command, cwd=made, env=environment, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    children = pathlib.Path(f"/proc/{job.pid}/task/{job.pid}/children")
    if not children.exists():
        job.kill()
        pytest.skip("no /proc that tells the children of a process")
    while not list((made / "results").rglob("checkpoint.npz")) and time.monotonic() < deadline and job.poll() is None:
        time.sleep(0.5)
    os.kill(int(children.read_text().split()[0]), signal.SIGUSR1)  # as Slurm does to what `srun` has started
    error = job.communicate(timeout=300)[1]
    assert job.returncode == 138 and "interrupted by SIGUSR1" in error and "saved in" in error, error
    assert (tmp_path / "asked").read_text() == "requeue 7\n"
