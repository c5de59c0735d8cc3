"""Inspection of the environment of a process: packages, devices, the NVIDIA driver, datasets."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import inspect
import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from packaging.requirements import Requirement

from jaxafl.cli.catalogue import offered
from jaxafl.readers import phones

_SECONDS = 120  # a broken device may never answer
_DEVICES = """import json, jax
found = [dict(platform=d.platform, kind=d.device_kind, bytes=(d.memory_stats() or {}).get("bytes_limit"))
         for d in jax.local_devices()]
print(json.dumps(dict(default=jax.default_backend(), found=found)))
"""
_ALL_OF = {"femnist": {"clients": None}}  # options that read all files; the default, ten writers, ships with jaxafl


def packages(name: str = "jaxafl") -> dict[str, str | None]:
    """Returns the versions of the packages that a package requires; `None` for a missing one."""
    return {one.name: _version(one.name) for one in _required(name, "")}


def extras(name: str = "jaxafl") -> dict[str, list[str]]:
    """Returns the extras of a package, each with the packages that are missing or too old."""
    offers = importlib.metadata.metadata(name).get_all("Provides-Extra") or []
    return {extra: sorted(set(_lacking(name, extra))) for extra in offers}


def devices() -> dict[str, Any]:
    """Returns the devices that JAX finds, in a separate process: a broken plugin may end it, and memory stays free.

    Returns:
        `default`, the platform of JAX; `found`, for every device `platform`, `kind` and `bytes` of memory (`None` if
        unknown); and `said`, the warnings of JAX. After a failure, `error` replaces the first two.
    """
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command = [sys.executable, "-c", _DEVICES]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, env=environment)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer from JAX within {_SECONDS} s", "said": ""}
    frames = (" ", "Traceback (")  # lines of tracebacks are of no use to users
    said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith(frames)]
    if done.returncode:
        signal = f"the process was ended by signal {-done.returncode}" if done.returncode < 0 else "no reason given"
        return {"error": said[-1] if said else signal, "said": "\n".join(said[:-1])}
    return json.loads(done.stdout.splitlines()[-1]) | {"said": "\n".join(said)}


def nvidia() -> dict[str, Any] | None:
    """Returns the GPUs of the NVIDIA driver, the newest CUDA that it can run ("13.0"), and the matching extra.

    Returns `None` without a driver.
    """
    listed = [line.partition(" (UUID")[0] for line in _output("nvidia-smi", "-L").splitlines()]
    cuda = "".join(re.findall(r"CUDA(?: \w+)? Version *: *([\d.]+)", _output("nvidia-smi"))[:1])
    if not listed and not cuda:
        return None
    return {"gpus": listed, "cuda": cuda, "extra": extra_of(cuda)}


def extra_of(cuda: str) -> str:
    """Returns the newest extra for a driver that can run CUDA up to version `cuda`; "" if there is none."""
    major = int(cuda.partition(".")[0] or 0)
    return "cuda13" if major >= 13 else "cuda12" if major == 12 else ""


def datasets(data_dir: str | os.PathLike[str] | None = None) -> Iterator[tuple[str, dict[str, str]]]:
    """Reads every dataset with files, and the traces of phones.

    Args:
        data_dir: data directory; by default the directory of datasets.

    Yields:
        The name of a dataset, and its summary as `found`, or the reason and the ways to get it as `error`.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # looking must not download a checkpoint
    for name, one in offered("datasets").items():
        if "data_dir" in inspect.signature(one.call).parameters:
            yield name, _attempt(functools.partial(one.call, data_dir=data_dir, **_ALL_OF.get(name, {})))
    for read in (phones.read_links, phones.read_availability, phones.read_scores):
        yield f"phones: {read.__name__.removeprefix('read_')}", _attempt(functools.partial(read, data_dir))


def compiled_programs() -> dict[str, Any]:
    """Returns JAX's folder of compiled programs, their number and bytes; `folder` is `None` if JAX keeps none."""
    import jax

    folder = jax.config.values["jax_compilation_cache_dir"]
    kept = [path.stat().st_size for path in pathlib.Path(folder).glob("*-cache")] if folder else []
    return {"folder": folder, "programs": len(kept), "bytes": sum(kept)}


def _required(name: str, extra: str) -> Iterator[Requirement]:
    """Yields the requirements of a package; with an extra, also those of the extra."""
    for one in map(Requirement, importlib.metadata.requires(name) or []):
        if one.marker is None or one.marker.evaluate({"extra": extra}):
            yield one


def _lacking(name: str, extra: str) -> Iterator[str]:
    """Yields the packages of an extra that are missing or too old, including nested extras."""
    always = {str(one) for one in _required(name, "")}
    for one in _required(name, extra):
        if str(one) not in always:
            version = _version(one.name)
            if version is None or not one.specifier.contains(version, prereleases=True):
                yield one.name
            else:
                for inner in one.extras:
                    yield from _lacking(one.name, inner)


def _version(name: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None


def _output(*command: str) -> str:
    """Returns the output of a command; "" if it fails."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True).stdout
    return ""


def _attempt(read: Callable[[], Any]) -> dict[str, str]:
    try:
        found = read()
        return {"found": _in_words(found.summary()) if hasattr(found, "summary") else _traces(found)}
    except Exception as error:  # a broken dataset of any kind must not hide the others
        return {"error": str(error) or type(error).__name__}


def _in_words(of: dict[str, Any]) -> str:
    """Returns the summary of a dataset in words."""
    clients = f"{of['clients']:,} clients, " if "clients" in of else ""
    return f"{clients}{of['samples']:,} training and {of['test_samples']:,} test samples ({of['source']})"


def _traces(found: Any) -> str:
    return f"{len(found.offsets) - 1:,} traces" if hasattr(found, "offsets") else f"{len(found):,} scores"
