"""`jaxafl doctor`: versions, devices, datasets and extras, and advice about missing ones; `jaxafl data`."""

from __future__ import annotations

import contextlib
import importlib.metadata
import inspect
import json as json_format
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
from packaging.requirements import Requirement
from tyro.conf import Positional

from jaxafl.cli.catalogue import offered
from jaxafl.device import host_bytes
from jaxafl.readers import phones
from jaxafl.readers.directory import data_directory
from jaxafl.readers.download import PLACES, download
from jaxafl.references import version

_SECONDS = 120  # a broken device may never answer
_DEVICES = """import json, jax
of = lambda one: f"{one.device_kind}, {(one.memory_stats() or {}).get('bytes_limit', 0) / 2**30:.1f} GiB"
print(json.dumps({f"{one.platform}:{one.id}": of(one) for one in jax.local_devices()}))
"""


def doctor(json: bool = False, data: bool = True, data_dir: pathlib.Path | None = None) -> int:
    """Show versions, devices, datasets, extras, and what is missing for what; nothing is changed or downloaded.

    Args:
        json: print JSON
        data: read the datasets that are there: some seconds, but minutes for all of LEAF's json
        data_dir: data directory; by default $JAXAFL_DATA_DIR, else the default of TensorFlow Datasets
    """
    found = examination(data, data_dir)
    if json:
        print(json_format.dumps(found, indent=2, ensure_ascii=False))
    else:
        for section, entries in found.items():
            print("\n".join([section, *(f"  {name:<20} {text}" for name, text in entries.items())]))
    return 0


def data(names: Positional[tuple[str, ...]] = (), data_dir: pathlib.Path | None = None) -> int:
    """Download datasets by name, or list all datasets: where they are, and how to get missing ones.

    Args:
        names: datasets to download (complete files are only checked); without names, all datasets are read and listed
        data_dir: data directory; by default $JAXAFL_DATA_DIR, else the default of TensorFlow Datasets
    """
    for name in names:
        print(f"{name}: complete in {download(name, data_dir)}")
    if not names:
        print(f"datasets in {data_directory(data_dir)} (--data-dir, or JAXAFL_DATA_DIR, names another folder)")
        print("\n".join(f"  {name:<20} {text}" for name, text in datasets(data_dir)))
        print(f"jaxafl data NAME ... downloads {', '.join(PLACES)}")
    return 0


def examination(data: bool = True, data_dir: pathlib.Path | None = None) -> dict[str, dict[str, Any]]:
    """Returns the findings of `jaxafl doctor` as texts by section and name.

    Args:
        data: read the existing datasets.
        data_dir: data directory.

    Returns:
        `versions` (`None` for a missing package), `machine`, `devices`, `nvidia`, `extras`, `compiled_programs`,
        `data` and `advice`. A part that failed is `{"error": reason}`.
    """
    found: dict[str, dict[str, Any]] = {
        "versions": {"jaxafl": version(), "python": platform.python_version()} | _tried(packages),
        "machine": {"system": platform.platform(), "cores": os.cpu_count(), "bytes": host_bytes()},
        "devices": _tried(devices),
        "nvidia": _tried(nvidia),
        "extras": _tried(extras),
        "compiled programs": {"folder (--cache)": jax.config.values["jax_compilation_cache_dir"]},
        "data": {"directory": str(data_directory(data_dir))}
        | (_tried(lambda: dict(datasets(data_dir))) if data else {}),
    }
    return found | {"advice": dict(_advice(found))}


def _tried(look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return look()
    except Exception as error:  # a failing part must not hide the others
        return {"error": f"{type(error).__name__}: {error}"}


def _advice(found: dict[str, dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yields advice about packages and devices that do not fit together."""
    if missing := [name for name, one in found["versions"].items() if one is None]:
        yield "packages", f"pip install {' '.join(missing)}"
    if "error" in found["devices"]:
        yield "devices", f"JAX finds none with JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')!r}; try cpu"
    cuda = found["nvidia"].get("CUDA", "")
    if found["nvidia"] and not any(name.startswith(("gpu", "cuda")) for name in found["devices"]):
        extra = (
            f'pip install "jaxafl[{extra_of(cuda)}]"' if extra_of(cuda) else "JAX needs a driver of CUDA 12 or newer"
        )
        yield "GPU", f"JAX does not use the NVIDIA GPU, whose driver runs CUDA {cuda or '(unknown)'}: {extra}"


def extra_of(cuda: str) -> str:
    """Returns the newest extra for a driver that can run CUDA up to version `cuda`; "" if there is none."""
    major = min(int(cuda.partition(".")[0] or 0), 13)
    return f"cuda{major}" if major >= 12 else ""


def packages(name: str = "jaxafl") -> dict[str, str | None]:
    """Returns the versions of the packages that a package requires; `None` for a missing one."""
    return {one.name: _version(one.name) for one in _required(name, "")}


def extras(name: str = "jaxafl") -> dict[str, str]:
    """Returns the packages that are missing for each extra of a package, and the command that installs them."""
    found = {
        one: sorted({*_lacking(name, one)}) for one in importlib.metadata.metadata(name).get_all("Provides-Extra", [])
    }
    ways = {extra: f'needs {", ".join(missing)}: pip install "{name}[{extra}]"' for extra, missing in found.items()}
    return {extra: ways[extra] if missing else "is there" for extra, missing in found.items()}


def devices() -> dict[str, str]:
    """Returns the devices that JAX finds, in a separate process: a broken plugin may end it, and memory stays free."""
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    how: Any = {"capture_output": True, "text": True, "timeout": _SECONDS, "env": environment}
    done = subprocess.run([sys.executable, "-c", _DEVICES], **how)
    said = [one for one in done.stderr.splitlines() if one.strip() and not one.startswith((" ", "Traceback ("))]
    if done.returncode:
        return {"error": said[-1] if said else f"the process ended with code {done.returncode}"}
    return json_format.loads(done.stdout.splitlines()[-1]) | ({"JAX says": " ".join(said)} if said else {})


def nvidia() -> dict[str, str]:
    """Returns the GPUs of the NVIDIA driver, and the newest CUDA that it can run; empty without a driver."""
    if shutil.which("nvidia-smi") is None:
        return {}
    how: Any = {"capture_output": True, "text": True, "timeout": _SECONDS, "check": True}
    listed, header = (subprocess.run(["nvidia-smi", *more], **how).stdout for more in (["-L"], []))
    cuda = re.search(r"CUDA(?: \w+)? Version *: *([\d.]+)", header)
    return {"CUDA": cuda[1] if cuda else ""} | dict(re.findall(r"(GPU \d+): (.*?) \(UUID", listed))


def datasets(data_dir: str | os.PathLike[str] | None = None) -> Iterator[tuple[str, str]]:
    """Reads every dataset with files, and the traces of phones, and yields name and summary, or how to get it."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # looking must not download a checkpoint
    for name, one in offered("datasets").items():
        if "data_dir" in inspect.signature(one.call).parameters:
            # all files are read; the default of femnist, ten writers, ships with jaxafl
            yield name, _summary(name, one.call, data_dir=data_dir, **({"clients": None} if name == "femnist" else {}))
    for read in (phones.read_links, phones.read_availability, phones.read_scores):
        yield (name := f"phones: {read.__name__.removeprefix('read_')}"), _summary(name, read, data_dir)


def _summary(name: str, read: Callable[..., Any], *args: Any, **options: Any) -> str:
    try:
        found = read(*args, **options)
    except Exception as error:  # a broken dataset of any kind must not hide the others
        text = str(error) or type(error).__name__
        return f"missing; jaxafl data {name} downloads it" if "Download it" in text else text.replace("\n", "\n      ")
    if not hasattr(found, "summary"):
        return f"{len(getattr(found, 'offsets', found)):,} entries"
    of = found.summary()
    clients = f"{of['clients']:,} clients, " if "clients" in of else ""
    return f"{clients}{of['samples']:,} training and {of['test_samples']:,} test samples ({of['source']})"


def _required(name: str, extra: str) -> Iterator[Requirement]:
    """Yields the requirements of a package; with an extra, also those of the extra."""
    for one in map(Requirement, importlib.metadata.requires(name) or []):
        if one.marker is None or one.marker.evaluate({"extra": extra}):
            yield one


def _lacking(name: str, extra: str) -> Iterator[str]:
    """Yields the packages of an extra that are missing or too old, including nested extras."""
    for one in {*_required(name, extra)} - {*_required(name, "")}:
        if (found := _version(one.name)) is None or not one.specifier.contains(found, prereleases=True):
            yield one.name
        else:
            yield from (lack for inner in one.extras for lack in _lacking(one.name, inner))


def _version(name: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None
