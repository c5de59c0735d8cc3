"""`jaxafl doctor`: it finds what is there, says what is missing, and survives whatever is broken."""

from __future__ import annotations

import importlib.metadata
import json
import pathlib
import tomllib
from typing import Any

import pytest

import jaxafl
from jaxafl.cli import main, surroundings
from jaxafl.cli.catalogue import offered
from jaxafl.cli.doctor import PURPOSES, examination
from jaxafl.cli.surroundings import devices, extra_of, extras, nvidia, packages

PYPROJECT = tomllib.loads((pathlib.Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
HEADER = """+-------------------------------------------------------------------------+
| NVIDIA-SMI 570.133.20      Driver Version: 570.133.20     {cuda}      |
+-----------------------------------------+------------------------+------+
"""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX is not asked, and looking leaves no trace in the environment."""
    found = {"default": "cpu", "found": [{"platform": "cpu", "kind": "cpu", "bytes": None}], "said": ""}
    monkeypatch.setattr(surroundings, "devices", lambda: found)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def driver(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, cuda: str) -> None:
    """A driver whose `nvidia-smi` says a version."""
    command = folder / "nvidia-smi"
    header = HEADER.format(cuda=cuda)
    listed = "GPU 0: NVIDIA H200 (UUID: GPU-1)"
    command.write_text(f"#!/bin/sh\nif [ $# = 1 ]; then echo '{listed}'; else echo '{header}'; fi\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_it_names_versions_devices_datasets_and_extras(quick, tmp_path, capsys):
    assert main(["doctor", "--data-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert f"jaxafl {jaxafl.__version__}" in shown and f"jax {importlib.metadata.version('jax')}" in shown
    assert "cpu: cpu" in shown
    for name in {*offered("datasets")} - {"synthetic", "from_leaf"}:
        assert f"  {name} " in shown
    assert f"  {'mnist':<20} missing; jaxafl data mnist downloads it\n" in shown
    for extra in importlib.metadata.metadata("jaxafl").get_all("Provides-Extra"):
        assert f"\n  {extra} " in shown


def test_as_json_it_is_what_examination_gives(quick, tmp_path, capsys):
    assert main(["doctor", "--json", "--no-data", "--data-dir", str(tmp_path)]) == 0
    shown = json.loads(capsys.readouterr().out)
    found = json.loads(json.dumps(examination(False, tmp_path)))
    kept, now = shown.pop("compiled_programs"), found.pop("compiled_programs")  # other tests compile meanwhile
    assert kept["folder"] == now["folder"] and kept["programs"] <= now["programs"]
    assert shown == found
    assert shown["data"] == {"directory": str(tmp_path)}
    assert shown["versions"]["jaxafl"] == jaxafl.__version__


def test_each_damaged_part_is_a_separate_error(quick, tmp_path):
    (tmp_path / "mnist").mkdir()
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (tmp_path / "mnist" / f"{name}-ubyte").write_bytes(b"no images")
    found = dict(surroundings.datasets(tmp_path))
    assert "train-images-idx3-ubyte" in found["mnist"]["error"] and "was not found" not in found["mnist"]["error"]
    assert "was not found" in found["fashion_mnist"]["error"] and "was not found" in found["femnist"]["error"]


@pytest.mark.parametrize("part", ["packages", "devices", "nvidia", "extras", "compiled_programs", "datasets"])
@pytest.mark.parametrize("form", [["--json"], pytest.param([], marks=pytest.mark.slow)])
def test_it_survives_whatever_is_broken(part, form, quick, monkeypatch, tmp_path, capsys):
    def broken(*_: Any) -> Any:
        raise RuntimeError("broken as it can be")

    monkeypatch.setattr(surroundings, part, broken)
    assert main(["doctor", *form, "--data-dir", str(tmp_path)]) == 0
    assert part == "packages" or "broken as it can be" in capsys.readouterr().out


def test_devices_are_those_of_a_fresh_process() -> None:
    found = devices()
    assert found["default"] in {one["platform"] for one in found["found"]} and found["said"] == ""


@pytest.mark.slow
def test_a_platform_that_is_not_there_is_said(monkeypatch, quick, tmp_path, capsys):
    monkeypatch.setenv("JAX_PLATFORMS", "nonsense")
    found = devices()
    assert "nonsense" in found["error"]
    monkeypatch.setattr(surroundings, "devices", lambda: found)
    assert main(["doctor", "--no-data", "--data-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert f"cannot be found: {found['error']}" in shown
    assert "JAX_PLATFORMS=nonsense allows no other: unset it" in shown
    monkeypatch.delenv("JAX_PLATFORMS")
    assert "JAX_PLATFORMS=cpu" in examination(False, tmp_path)["advice"][0]


@pytest.mark.slow
def test_a_broken_plugin_is_said_and_the_cpu_found(monkeypatch, tmp_path):
    plugin = tmp_path / "jax_plugins" / "broken"
    plugin.mkdir(parents=True)
    (plugin / "__init__.py").write_text("def initialize():\n    raise OSError('libbroken.so.1: no such file')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = devices()
    assert found["default"] == "cpu" and "OSError: libbroken.so.1: no such file" in found["said"]
    assert "Traceback" not in found["said"] and "File " not in found["said"]


def test_a_process_that_is_killed_is_an_error(monkeypatch):
    monkeypatch.setattr(surroundings, "_DEVICES", "import os; os.abort()")
    assert devices()["error"] == "the process was ended by signal 6"
    monkeypatch.setattr(surroundings, "_DEVICES", "import time; time.sleep(60)")
    monkeypatch.setattr(surroundings, "_SECONDS", 0.2)
    assert "no answer from JAX" in devices()["error"]


@pytest.mark.parametrize(
    ("said", "cuda", "extra"),
    [
        ("CUDA Version: 12.8 ", "12.8", "cuda12"),
        ("CUDA Version: 13.0 ", "13.0", "cuda13"),
        ("CUDA UMD Version: 13.1 ", "13.1", "cuda13"),
        ("CUDA Version: 11.4 ", "11.4", ""),
        ("CUDA Version: N/A ", "", ""),
    ],
)
def test_the_extra_is_the_newest_that_the_driver_runs(said, cuda, extra, tmp_path, monkeypatch, quick):
    driver(tmp_path, monkeypatch, said)
    assert nvidia() == {"gpus": ["GPU 0: NVIDIA H200"], "cuda": cuda, "extra": extra}
    (advice,) = examination(False, tmp_path)["advice"]
    assert f'pip install "jaxafl[{extra}]"' in advice if extra else "CUDA 12 or newer" in advice


def test_without_a_driver_there_is_nothing_to_advise(tmp_path, monkeypatch, quick):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia() is None
    assert examination(False, tmp_path)["advice"] == []


def test_newer_drivers_run_cuda_13():
    assert [extra_of(cuda) for cuda in ("14.1", "13.0", "12.0", "11.8", "")] == ["cuda13", "cuda13", "cuda12", "", ""]


def test_extras_lack_what_is_absent_or_too_old_also_behind_other_extras(tmp_path, monkeypatch):
    installed = {
        "outer": ["inner", "numpy>=1", "inner[deep]>=1; extra == 'all'", "absent; extra == 'some'",
                  "numpy>=999; extra == 'new'", "numpy; extra == 'here'", "winonly; os_name == 'nowhere'"],
        "inner": ["lost; extra == 'deep'", "numpy; extra == 'deep'"],
    }  # fmt: skip
    for name, needs in installed.items():
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        lines = [f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0", *(f"Requires-Dist: {one}" for one in needs)]
        given = sorted({one.split("'")[1] for one in needs if "extra" in one})
        (info / "METADATA").write_text("\n".join([*lines, *(f"Provides-Extra: {one}" for one in given)]) + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert extras("outer") == {"all": ["lost"], "here": [], "new": ["numpy"], "some": ["absent"]}
    assert packages("outer") == {"inner": "1.0", "numpy": importlib.metadata.version("numpy")}


def test_every_extra_has_its_purpose() -> None:
    assert {*PYPROJECT["project"]["optional-dependencies"]} <= {*PURPOSES}
