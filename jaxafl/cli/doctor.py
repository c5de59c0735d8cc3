"""`jaxafl doctor`: versions, devices, datasets and extras, and what is missing; `jaxafl data`."""

from __future__ import annotations

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
from collections.abc import Iterator
from typing import Any

import jax
from tyro.conf import Positional

from jaxafl.cli.catalogue import offered
from jaxafl.device import host_bytes
from jaxafl.readers import phones
from jaxafl.readers.directory import data_directory
from jaxafl.readers.download import PLACES, download
from jaxafl.references import version

_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[([\w,-]+)\])?[^;]*(?:;.*\bextra == ['\"]([\w-]+)['\"])?")
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
        print("\n".join(f"  {name:<20} {text}" for name, text in datasets(data_dir).items()))
        print(f"jaxafl data NAME ... downloads {', '.join(PLACES)}")
    return 0


def examination(data: bool = True, data_dir: pathlib.Path | None = None) -> dict[str, dict[str, Any]]:
    """Returns the findings of `jaxafl doctor` as texts by section and name.

    Args:
        data: read the existing datasets.
        data_dir: data directory.

    Returns:
        `versions`, `machine`, `devices`, `nvidia`, `extras` and `data`. A part that failed is `{"error": reason}`.
    """
    looks = {"versions": packages, "machine": machine, "devices": devices, "nvidia": nvidia, "extras": extras}
    found: dict[str, dict[str, Any]] = {}
    for section, look in (looks | {"data": lambda: datasets(data_dir) if data else {}}).items():
        try:
            found[section] = look()
        except Exception as error:  # a failing part must not hide the others
            found[section] = {"error": f"{type(error).__name__}: {error}"}
    found["data"] = {"directory": str(data_directory(data_dir))} | found["data"]
    return found


def packages(name: str = "jaxafl") -> dict[str, str]:
    """Returns the versions of a package and of those that it requires, and the command that installs a missing one."""
    known = {one: _version(one) or f"missing: pip install {one}" for one, _ in _required(name)}
    return {name: version(), "python": platform.python_version()} | known


def machine() -> dict[str, Any]:
    """Returns the operating system, the number of cores, the bytes of memory and the folder of compiled programs."""
    found = {"system": platform.platform(), "cores": os.cpu_count(), "bytes": host_bytes()}
    return found | {"compiled programs": jax.config.values["jax_compilation_cache_dir"]}


def extras(name: str = "jaxafl") -> dict[str, str]:
    """Returns the packages that are missing for each extra of a package, and the command that installs them."""
    found = {}
    for extra in importlib.metadata.metadata(name).get_all("Provides-Extra", []):
        missing = ", ".join(sorted({*_lacking(name, extra)}))
        found[extra] = f'needs {missing}: pip install "{name}[{extra}]"' if missing else "is there"
    return found


def devices() -> dict[str, str]:
    """Returns the devices that JAX finds, in a separate process: a broken plugin may end it, and memory stays free."""
    how: Any = {"env": os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, "timeout": _SECONDS}
    done = subprocess.run([sys.executable, "-c", _DEVICES], capture_output=True, text=True, **how)
    said = [one for one in done.stderr.splitlines() if one.strip() and not one.startswith((" ", "Traceback ("))]
    if done.returncode:
        why = said[-1] if said else f"the process ended with code {done.returncode}"
        return {"error": f"{why} (JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')!r}; try cpu)"}
    return json_format.loads(done.stdout.splitlines()[-1]) | ({"JAX says": " ".join(said)} if said else {})


def nvidia() -> dict[str, str]:
    """Returns the GPUs of the NVIDIA driver, its newest CUDA, and the extra for it; empty without a driver."""
    if shutil.which("nvidia-smi") is None:
        return {}
    said = [subprocess.check_output(["nvidia-smi", *more], text=True, timeout=_SECONDS) for more in (["-L"], [])]
    cuda = re.search(r"CUDA(?: \w+)? Version *: *(\d+)[\d.]*", said[1])
    newest = min(int(cuda[1]), 13) if cuda else 0
    way = f'pip install "jaxafl[cuda{newest}]"' if newest >= 12 else "JAX needs a driver of CUDA 12 or newer"
    gpus = dict(re.findall(r"(GPU \d+): (.*?) \(UUID", said[0]))
    return gpus | {"CUDA": cuda[0].rpartition(" ")[2] if cuda else "", "if JAX does not use it": way}


def datasets(data_dir: str | os.PathLike[str] | None = None) -> dict[str, str]:
    """Reads every dataset with files, and the traces of phones: name -> summary, or how to get it."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # looking must not download a checkpoint
    looks: dict[str, Any] = {name: one.call for name, one in offered("datasets").items()}
    looks = {name: call for name, call in looks.items() if "data_dir" in inspect.signature(call).parameters}
    looks |= {f"phones: {name}": getattr(phones, f"read_{name}") for name in ("links", "availability", "scores")}
    whole = {"femnist": {"clients": None}}  # its default, ten writers, ships with jaxafl
    return {name: _summary(name, look, data_dir=data_dir, **whole.get(name, {})) for name, look in looks.items()}


def _summary(name: str, read: Any, **options: Any) -> str:
    try:
        found = read(**options)
    except Exception as error:  # a broken dataset of any kind must not hide the others
        text = str(error) or type(error).__name__
        return f"missing; jaxafl data {name} downloads it" if "Download it" in text else text.replace("\n", "\n      ")
    of = found.summary() if hasattr(found, "summary") else {"entries": len(getattr(found, "offsets", found))}
    told = ("clients", "samples", "test_samples", "source", "entries")
    return ", ".join(f"{fact}: {of[fact]}" for fact in told if fact in of)


def _required(name: str, extra: str = "") -> list[tuple[str, list[str]]]:
    """Returns the packages that a package, or one of its extras, requires, each with its own extras."""
    lines = importlib.metadata.requires(name) or []
    found = [match.groups(default="") for line in lines if (match := _REQUIREMENT.match(line))]
    return [(package, inner.split(",")) for package, inner, of in found if of == extra]


def _lacking(name: str, extra: str) -> Iterator[str]:
    """Yields the packages of an extra that are missing, including nested extras."""
    for package, nested in _required(name, extra):
        if _version(package) is None:
            yield package
        else:
            yield from (lack for inner in filter(None, nested) for lack in _lacking(package, inner))


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
