"""`jaxafl doctor`, `data`, `init` and `quickstart`."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

import jaxafl as afl
from jaxafl.cli import doctor, main, quickstart
from jaxafl.cli.catalogue import offered

HEADER = "| NVIDIA-SMI 570.133.20      Driver Version: 570.133.20     {cuda}      |"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX is not asked, and looking leaves no trace in the environment."""
    monkeypatch.setattr(doctor, "devices", lambda: {"cpu:0": "cpu"})
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_it_names_versions_devices_datasets_and_extras(quick, tmp_path, capsys):
    assert main(["doctor", "--data-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert afl.__version__ in shown and importlib.metadata.version("jax") in shown and "cpu:0" in shown
    for name in {*offered("datasets")} - {"synthetic", "from_leaf"}:
        assert f"  {name} " in shown
    assert f"  {'mnist':<20} missing; jaxafl data mnist downloads it\n" in shown
    for package in ("torch", "datasets", "mlflow"):
        assert f"\n  {package} " in shown
    assert main(["data", "--data-dir", str(tmp_path)]) == 0
    assert "missing; jaxafl data mnist downloads it" in capsys.readouterr().out


def test_each_damaged_part_is_a_separate_error(quick, monkeypatch, tmp_path, capsys):
    (tmp_path / "mnist").mkdir()
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (tmp_path / "mnist" / f"{name}-ubyte").write_bytes(b"no images")
    found = doctor.datasets(tmp_path)
    assert "train-images-idx3-ubyte" in found["mnist"] and "missing" in found["fashion_mnist"]
    for part in ("machine", "packages", "devices", "nvidia", "datasets"):
        monkeypatch.setattr(doctor, part, lambda *_, **__: 1 / 0)
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.count("ZeroDivisionError: division by zero") == 5


def test_devices_are_those_of_jax_with_their_memory():
    assert doctor.devices()["cpu:0"] == "cpu"


@pytest.mark.parametrize(
    ("said", "cuda", "extra"),
    [
        ("CUDA Version: 12.8 ", "12.8", "cuda12"),
        ("CUDA UMD Version: 13.1 ", "13.1", "cuda13"),
        ("CUDA Version: 14.1 ", "14.1", "cuda13"),
        ("CUDA Version: 11.4 ", "11.4", ""),
        ("CUDA Version: N/A ", "", ""),
    ],
)
def test_the_extra_is_the_newest_that_the_driver_runs(said, cuda, extra, tmp_path, monkeypatch, quick):
    command = tmp_path / "nvidia-smi"
    listed = "GPU 0: NVIDIA H200 (UUID: GPU-1)"
    command.write_text(f"#!/bin/sh\nif [ $# = 1 ]; then echo '{listed}'; else echo '{HEADER.format(cuda=said)}'; fi\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = doctor.nvidia()
    assert (found["GPU 0"], found["CUDA"]) == ("NVIDIA H200", cuda)
    way = f'pip install "jaxafl[{extra}]"' if extra else "JAX needs a driver of CUDA 12 or newer"
    assert found["if JAX does not use it"] == way
    monkeypatch.setenv("PATH", "")
    assert doctor.nvidia() == {}


def test_packages_that_are_missing_are_named_with_their_extra(tmp_path, monkeypatch):
    info = tmp_path / "outer-1.0.dist-info"
    info.mkdir()
    needs = ["inner", "numpy>=1", "outer[deep]; extra == 'all'", "absent>=2; extra == 'some'", "numpy; extra == 'deep'"]
    lines = ["Metadata-Version: 2.4\nName: outer\nVersion: 1.0", *(f"Requires-Dist: {one}" for one in needs)]
    (info / "METADATA").write_text("\n".join([*lines, *(f"Provides-Extra: {one}" for one in ("all", "some", "deep"))]))
    monkeypatch.syspath_prepend(tmp_path)
    numpy = importlib.metadata.version("numpy")
    absent = {"inner": "missing: pip install inner", "absent": 'missing: pip install "outer[some]"'}
    assert doctor.packages("outer") == absent | {"numpy": numpy}


@pytest.fixture
def made(tmp_path: pathlib.Path) -> pathlib.Path:
    assert main(["init", str(tmp_path / "new" / "mine")]) == 0
    return tmp_path / "new" / "mine"


def test_init_fills_an_empty_folder_and_refuses_any_other(made, capsys):
    assert sorted(path.name for path in made.iterdir()) == [".gitignore", "README.md", "experiment.py", "job.slurm"]
    compile((made / "experiment.py").read_text(), "experiment.py", "exec")
    assert subprocess.run(["bash", "-n", made / "job.slurm"]).returncode == 0
    assert main(["init", str(made)]) == main(["init", str(made / "README.md")]) == 2
    assert f"{made} is not empty" in capsys.readouterr().err


@pytest.mark.slow
def test_the_experiment_runs_and_a_second_call_has_nothing_left_to_do(made):
    command = [sys.executable, "experiment.py", "--smoke"]
    first = subprocess.run(command, cwd=made, capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    assert "| FedBuff |" in first.stdout and "| mine |" in first.stdout
    kept = {path: path.stat().st_mtime_ns for path in (made / "smoke").rglob("*.nc")}
    second = subprocess.run(command, cwd=made, capture_output=True, text=True)
    table = (made / "smoke" / "table.md").read_text()
    assert table in first.stdout and table in second.stdout
    assert kept and kept == {path: path.stat().st_mtime_ns for path in (made / "smoke").rglob("*.nc")}


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
    while not list((made / "results").rglob("checkpoint.npz")) and time.monotonic() < deadline and job.poll() is None:
        time.sleep(0.5)
    os.kill(int(children.read_text().split()[0]), signal.SIGUSR1)  # as Slurm does to what `srun` has started
    error = job.communicate(timeout=300)[1]
    assert job.returncode == 138 and "interrupted by SIGUSR1" in error and "saved in" in error, error
    assert (tmp_path / "asked").read_text() == "requeue 7\n"


@pytest.mark.slow
def test_quickstart_compares_five_methods_and_writes_its_files(tmp_path: Any, capsys: Any, monkeypatch: Any) -> None:
    quick = quickstart.COMMON.replace("cnn_asyncfeded --model.features 8 16", "logistic")  # it compiles quickly
    monkeypatch.setattr(quickstart, "COMMON", quick)
    assert main(["quickstart", "--budget", "100", "--output-dir", str(tmp_path), "--no-progress"]) == 0
    methods = ["FedAvg", "FedAsync", "FedBuff", "FADAS", "AsyncFedED"]
    shown = capsys.readouterr().out
    assert all(name in shown for name in methods)
    assert (tmp_path / "quickstart.png").stat().st_size > 5000
    loaded = [afl.load(tmp_path / f"quickstart-{name}.nc") for name in methods]
    made = [int(one["local_steps"].sum()) for one in loaded]
    assert made[:4] == [100] * 4 and 100 <= made[4] < 120


@pytest.mark.slow
@pytest.mark.optimised  # trains more than it compiles
def test_every_method_of_quickstart_ends_well_above_the_majority_class(tmp_path: pathlib.Path) -> None:
    assert main(["quickstart", "--output-dir", str(tmp_path), "--no-progress"]) == 0
    files = [*tmp_path.glob("quickstart-*.nc")]
    assert len(files) == 5
    for one in map(afl.load, files):
        assert one["accuracy"].max() > 0.5 and 4000 <= one["local_steps"].sum() <= 4020
