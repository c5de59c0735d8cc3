"""What a process finds around it: packages, devices, the NVIDIA driver, datasets."""

from __future__ import annotations

import contextlib
import ctypes
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
_ALL_OF = {"femnist": {"clients": None}}  # ten writers ship with the package


def packages(name: str = "jaxafl") -> dict[str, str | None]:
    """The version of each package that one needs, `None` where it is missing."""
    return {one.name: _version(one.name) for one in _required(name, "")}


def extras(name: str = "jaxafl") -> dict[str, list[str]]:
    """The extras of a package, each with those of its packages that are missing or too old."""
    offers = importlib.metadata.metadata(name).get_all("Provides-Extra") or []
    return {extra: sorted(set(_lacking(name, extra))) for extra in offers}


def devices() -> dict[str, Any]:
    """What JAX finds, asked in a process of its own: a broken plugin may end that, and the memory stays free.

    Returns:
        `default`, the platform that JAX takes; `found`, of every device `platform`, `kind` and `bytes` of memory
        (`None` where unknown); and `said`, what JAX had to complain of. `error` in the place of the first two.
    """
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command = [sys.executable, "-c", _DEVICES]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, env=environment)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer from JAX within {_SECONDS} s", "said": ""}
    frames = (" ", "Traceback (")  # of tracebacks, which say nothing to people
    said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith(frames)]
    if done.returncode:
        signal = f"the process was ended by signal {-done.returncode}" if done.returncode < 0 else "no reason given"
        return {"error": said[-1] if said else signal, "said": "\n".join(said[:-1])}
    return json.loads(done.stdout.splitlines()[-1]) | {"said": "\n".join(said)}


def nvidia() -> dict[str, Any] | None:
    """The GPUs that the NVIDIA driver lists, the newest CUDA that it can run ("13.0"), and the extra that fits it;
    `None` where there is no driver."""
    listed = [line.partition(" (UUID")[0] for line in _output("nvidia-smi", "-L").splitlines()]
    cuda = _cuda_of_library() or "".join(re.findall(r"CUDA(?: \w+)? Version *: *([\d.]+)", _output("nvidia-smi"))[:1])
    if not listed and not cuda:
        return None
    return {"gpus": listed, "cuda": cuda, "extra": extra_of(cuda)}


def extra_of(cuda: str) -> str:
    """The newest extra whose CUDA a driver can run that can run `cuda`; empty where there is none."""
    major = int(cuda.partition(".")[0] or 0)
    return "cuda13" if major >= 13 else "cuda12" if major == 12 else ""


def datasets(data_dir: str | os.PathLike[str] | None = None) -> Iterator[tuple[str, dict[str, str]]]:
    """Reads every dataset that has files, and the traces of phones, one after another.

    Args:
        data_dir: data directory; by default the one that datasets are looked for in.

    Yields:
        Its name and `found`, what it is, or `error`, why it cannot be read and how to get it.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # looking must not download a checkpoint
    for name, one in offered("datasets").items():
        if "data_dir" in inspect.signature(one.call).parameters:
            yield name, _attempt(functools.partial(one.call, data_dir=data_dir, **_ALL_OF.get(name, {})))
    for read in (phones.read_links, phones.read_availability, phones.read_scores):
        yield f"phones: {read.__name__.removeprefix('read_')}", _attempt(functools.partial(read, data_dir))


def compiled_programs() -> dict[str, Any]:
    """JAX's folder of compiled programs, how many are in it and their bytes; `folder` is `None` where it keeps none."""
    import jax

    folder = jax.config.values["jax_compilation_cache_dir"]
    kept = [path.stat().st_size for path in pathlib.Path(folder).glob("*-cache")] if folder else []
    return {"folder": folder, "programs": len(kept), "bytes": sum(kept)}


def _required(name: str, extra: str) -> Iterator[Requirement]:
    """What a package requires, with one of its extras if named."""
    for one in map(Requirement, importlib.metadata.requires(name) or []):
        if one.marker is None or one.marker.evaluate({"extra": extra}):
            yield one


def _lacking(name: str, extra: str) -> Iterator[str]:
    """Packages of an extra that are missing or too old, those of the extras that it names among them."""
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


def _cuda_of_library() -> str:
    """The CUDA version that the driver's own library names, "13.0"; empty where there is none."""
    number = ctypes.c_int()
    with contextlib.suppress(OSError, AttributeError):
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)) == 0 and number.value:
            return f"{number.value // 1000}.{number.value % 1000 // 10}"
    return ""


def _output(*command: str) -> str:
    """What a command prints; empty where it cannot be run."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True).stdout
    return ""


def _attempt(read: Callable[[], Any]) -> dict[str, str]:
    try:
        made = read()
        return {"found": _said(made.summary()) if hasattr(made, "summary") else _traces(made)}
    except Exception as error:  # whatever is wrong with files of any kind, the other datasets are still looked at
        return {"error": str(error) or type(error).__name__}


def _said(of: dict[str, Any]) -> str:
    """The summary of a dataset in words."""
    clients = f"{of['clients']:,} clients, " if "clients" in of else ""
    return f"{clients}{of['samples']:,} training and {of['test_samples']:,} test samples ({of['source']})"


def _traces(made: Any) -> str:
    return f"{len(made.offsets) - 1:,} traces" if hasattr(made, "offsets") else f"{len(made):,} scores"
