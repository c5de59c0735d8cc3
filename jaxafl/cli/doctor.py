"""`jaxafl doctor`: versions, devices, datasets and extras, and what is missing; `jaxafl data`."""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import pathlib
import platform
import re
import shutil
import subprocess
from typing import Any

import jax
from tyro.conf import Positional

from jaxafl.cli.catalogue import offered
from jaxafl.device.hardware import host_bytes
from jaxafl.readers.directory import data_directory
from jaxafl.readers.download import PLACES, download
from jaxafl.references import version

# name and extra of a requirement; not of an extra of another package, which has its packages
_REQUIREMENT = re.compile(r"^([\w.-]+)(?![\w.\[-])[^;\n]*(?:;.*\bextra == ['\"]([\w-]+)['\"])?", re.MULTILINE)
_SECONDS = 120  # a broken driver may never answer


def doctor(data_dir: pathlib.Path | None = None) -> None:
    """Show versions, devices, datasets, extras, and what is missing for what; nothing is changed or downloaded.

    Args:
        data_dir: data directory; by default $JAXAFL_DATA_DIR, else the default of TensorFlow Datasets
    """
    looks: dict[str, Any] = {"machine": machine, "packages": packages, "data": lambda: datasets(data_dir)}
    looks |= {"nvidia": nvidia, "devices": devices}  # last, since a broken plugin may end the process
    for section, look in looks.items():
        try:
            found = look()
        except Exception as error:  # a failing part must not hide the others
            found = {"error": f"{type(error).__name__}: {error}"}
        print("\n".join([section, *(f"  {name:<20} {text}" for name, text in found.items())]), flush=True)


def data(names: Positional[tuple[str, ...]] = (), data_dir: pathlib.Path | None = None) -> None:
    """Download datasets by name, or list all datasets: where they are, and how to get missing ones.

    Args:
        names: datasets to download (complete files are only checked); without names, all datasets are read and listed
        data_dir: data directory; by default $JAXAFL_DATA_DIR, else the default of TensorFlow Datasets
    """
    for name in names:
        print(f"{name}: complete in {download(name, data_dir)}")
    if not names:
        print("\n".join(f"  {name:<20} {text}" for name, text in datasets(data_dir).items()))
        print(f"jaxafl data NAME ... downloads {', '.join(PLACES)}")


def machine() -> dict[str, Any]:
    """Returns versions, the number of cores, the bytes of memory and the folder of compiled programs."""
    found: dict[str, Any] = {"jaxafl": version(), "python": platform.python_version(), "system": platform.platform()}
    found |= {"cores": os.cpu_count(), "bytes": host_bytes()}
    return found | {"compiled programs": jax.config.values["jax_compilation_cache_dir"]}


def packages(name: str = "jaxafl") -> dict[str, str]:
    """Returns the versions of what a package and its extras require, and the commands that install what is missing."""
    found = {}
    for package, extra in _REQUIREMENT.findall("\n".join(importlib.metadata.requires(name) or [])):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "missing: pip install " + (f'"{name}[{extra}]"' if extra else package)
    return found


def devices() -> dict[str, str]:
    """Returns the devices that JAX finds, and their memory."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    sizes = {one: (one.memory_stats() or {}).get("bytes_limit", 0) / 2**30 for one in jax.local_devices()}
    return {
        f"{one.platform}:{one.id}": one.device_kind + f", {size:.1f} GiB" * (size > 0) for one, size in sizes.items()
    }


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
    """Reads every dataset with files: name -> facts about it, or how to get it."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # looking must not download a checkpoint
    found = {"directory": str(data_directory(data_dir))}
    for name, one in offered("datasets").items():
        if "data_dir" in inspect.signature(one.call).parameters:
            whole = {"clients": None} if name == "femnist" else {}  # its default, ten writers, ships with jaxafl
            try:
                found[name] = repr(one.call(data_dir=data_dir, **whole))
            except Exception as error:  # a broken dataset of any kind must not hide the others
                text = str(error).replace("\n", "\n      ") or type(error).__name__
                found[name] = f"missing; jaxafl data {name} downloads it" if "Download it" in text else text
    return found
