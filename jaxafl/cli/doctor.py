"""`jaxafl doctor`: versions, devices, datasets and extras, and advice about missing ones."""

from __future__ import annotations

import json as json_format
import os
import pathlib
import platform
import sys
from collections.abc import Callable, Iterator
from typing import Any

from jaxafl.cli import surroundings
from jaxafl.cli.data import lines as data_lines
from jaxafl.device import host_bytes
from jaxafl.readers.directory import data_directory
from jaxafl.references import version

PURPOSES = {
    "bert": "BERT, the GLUE tasks, safetensors files",
    "cuda": "NVIDIA GPUs, as cuda13",
    "cuda12": "NVIDIA GPUs whose driver runs CUDA 12",
    "cuda13": "NVIDIA GPUs whose driver runs CUDA 13",
    "dask": "sweeps on Dask",
    "docs": "building the documentation",
    "hf": "datasets of Hugging Face",
    "mlflow": "callbacks.MLflow",
    "privacy": "ε of sampled clients by privacy loss distributions",
    "reference": "tests that compare models with PyTorch's",
    "slurm": "sweeps on Slurm",
    "tensorboard": "callbacks.TensorBoard",
    "test": "running the tests",
    "tfds": "preparing and reading datasets of TensorFlow Datasets",
    "torch": "models from PyTorch modules",
    "wandb": "callbacks.WandB",
}
"""Purpose of each extra."""


def doctor(json: bool = False, data: bool = True, data_dir: pathlib.Path | None = None) -> int:
    """Show versions, devices, datasets, extras, and what is missing for what; nothing is changed or downloaded.

    Args:
        json: print JSON
        data: read the datasets that are there: some seconds, but minutes for all of LEAF's json
        data_dir: data directory; by default $JAXAFL_DATA_DIR, else the default of TensorFlow Datasets
    """
    found = examination(data, data_dir)
    print(json_format.dumps(found, indent=2, ensure_ascii=False) if json else "\n".join(_lines(found)))
    return 0


def examination(data: bool = True, data_dir: pathlib.Path | None = None) -> dict[str, Any]:
    """Returns the findings of `jaxafl doctor --json`.

    Args:
        data: read the existing datasets.
        data_dir: data directory.

    Returns:
        `versions`, `machine`, `devices`, `nvidia`, `extras` (each with its purpose `for`, the `missing` packages and
        the command to `install` them), `compiled_programs`, `data` (its `directory`, `datasets`), and `advice`, a list
        of sentences. A part that failed is `{"error": reason}`.
    """
    found: dict[str, Any] = {
        "versions": {"jaxafl": version(), "python": platform.python_version()} | _tried(surroundings.packages),
        "machine": {"system": platform.platform(), "cores": os.cpu_count(), "bytes": host_bytes()},
        "devices": _tried(surroundings.devices),
        "nvidia": _tried(surroundings.nvidia),
        "extras": _tried(_extras),
        "compiled_programs": _tried(surroundings.compiled_programs),
        "data": {"directory": str(data_directory(data_dir))},
    }
    if data:
        print("reading datasets ...", file=sys.stderr)
        found["data"]["datasets"] = _tried(lambda: dict(surroundings.datasets(data_dir)))
    return found | {"advice": list(_advice(found))}


def _tried(look: Callable[[], Any]) -> Any:
    try:
        return look()
    except Exception as error:  # a failing part must not hide the others
        return {"error": f"{type(error).__name__}: {error}"}


def _extras() -> dict[str, dict[str, Any]]:
    return {
        extra: {"for": PURPOSES.get(extra, ""), "missing": missing, "install": f'pip install "jaxafl[{extra}]"'}
        for extra, missing in surroundings.extras().items()
    }


def _advice(found: dict[str, Any]) -> Iterator[str]:
    """Yields advice about packages and devices that do not fit together."""
    missing = [name for name, one in found["versions"].items() if one is None]
    if missing:
        yield f"pip install {' '.join(missing)}: jaxafl needs {'them' if missing[1:] else 'it'}"
    if found["versions"]["jaxafl"] == "unknown":
        yield "jaxafl runs from its folder without an installation: pip install -e . there installs its requirements"
    devices, driver = found["devices"], found["nvidia"] or {}
    if "error" in devices:
        asked = os.environ.get("JAX_PLATFORMS")
        way = f"JAX_PLATFORMS={asked} allows no other: unset it" if asked else "JAX_PLATFORMS=cpu makes it take the CPU"
        yield f"JAX finds no device ({devices['error']}); {way}"
    if "cuda" not in driver or any(one["platform"] in ("gpu", "cuda") for one in devices.get("found", [])):
        return
    if extra := driver["extra"]:
        install = f'pip install "jaxafl[{extra}]"'
        yield f"JAX does not use the NVIDIA GPU, whose driver runs CUDA {driver['cuda']}: {install}"
    else:
        yield f"the NVIDIA driver runs CUDA {driver['cuda'] or '(unknown)'}; JAX needs one of CUDA 12 or newer"


def _lines(found: dict[str, Any]) -> Iterator[str]:
    """Yields the findings as lines of text."""
    machine, devices, driver, kept = (found[one] for one in ("machine", "devices", "nvidia", "compiled_programs"))
    named = [f"{name} {one or 'MISSING'}" for name, one in found["versions"].items() if name != "error"]
    yield from ["versions", *(f"  {', '.join(named[start : start + 6])}" for start in range(0, len(named), 6))]
    yield f"  {machine['system']}, {machine['cores']} cores, {_gib(machine['bytes'])}"
    yield "devices"
    for one in devices.get("found", []):
        memory = f", {_gib(one['bytes'])}" if one["bytes"] else ""
        yield f"  {one['platform']}: {one['kind']}{memory}"
    yield from [f"  cannot be found: {devices['error']}"] if "error" in devices else []
    yield from (f"  JAX says: {line}" for line in devices.get("said", "").splitlines())
    yield f"  NVIDIA driver: {_driver(driver)}"
    yield "compiled programs"
    size = f"{kept.get('programs')} in {kept.get('folder')}, {kept.get('bytes', 0) / 2**20:.0f} MiB"
    none = "not kept between processes; jaxafl run --cache DIR, or JAX_COMPILATION_CACHE_DIR=DIR, keeps them"
    yield f"  {kept.get('error') or (size if kept['folder'] else none)}"
    yield "extras"
    for name, one in _parts(found["extras"]):
        state = f"needs {', '.join(one['missing'])}: {one['install']}" if one["missing"] else "is there"
        yield f"  {name:<11} {one['for']}; {state}"
    if "datasets" in found["data"]:
        yield f"data in {found['data']['directory']} (--data-dir, or JAXAFL_DATA_DIR, names another folder)"
        yield from data_lines(_parts(found["data"]["datasets"]))
    yield from ["advice", *(f"  {one}" for one in found["advice"] or ["nothing to be done"])]


def _parts(of: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the entries, or a single one with the error."""
    yield from of.items() if "error" not in of else [("error", {"for": of["error"], "missing": [], **of})]


def _driver(driver: dict[str, Any] | None) -> str:
    if not driver or "error" in driver:
        return (driver or {}).get("error", "none")
    return f"CUDA {driver['cuda'] or 'unknown'}, extra {driver['extra'] or 'none'}; {', '.join(driver['gpus'])}"


def _gib(size: int | None) -> str:
    return f"{size / 2**30:.1f} GiB" if size else "memory unknown"
