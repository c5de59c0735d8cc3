"""The files of checkpoints, in NumPy's format: complete at any time, and verified when read."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import sys
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.options import UserError, as_path, check_whole


class Saved(NamedTuple):
    """A checkpoint that has been read.

    Attributes:
        number: number of the checkpoint.
        about: the metadata that `Checkpoint.save` writes.
        arrays: name -> array.
    """

    number: int
    about: dict[str, Any]
    arrays: dict[str, np.ndarray]


_FILE = "checkpoint.npz"
_ABOUT = "about"
_UNFINISHED = ".part"


def numbers_in(folder: pathlib.Path) -> list[int]:
    """Returns the numbers of the checkpoints in a folder, sorted."""
    return sorted(int(path.parent.name) for path in folder.glob(f"[0-9]*/{_FILE}") if path.parent.name.isdigit())


def newest(folder: pathlib.Path) -> tuple[Saved | None, list[int]]:
    """Returns the newest intact checkpoint, and the numbers of newer, damaged ones. Warns of each damaged one."""
    damaged: list[int] = []
    for number in reversed(numbers_in(folder)):
        try:
            return _read(folder, number), damaged
        except (MemoryError, ImportError, PermissionError):  # the checkpoint is intact, and must not be deleted
            raise
        except Exception as error:  # zipfile, NumPy and JSON raise many kinds
            damaged.append(number)
            why = f"{type(error).__name__}: {str(error)[:120]}"
            warnings.warn(f"checkpoint {number} in {folder} is damaged and passed over ({why})", stacklevel=2)
    if damaged:
        warnings.warn(f"no checkpoint in {folder} is whole: the run begins anew", stacklevel=2)
    return None, damaged


def write(folder: pathlib.Path, keep: int, arrays: dict[str, np.ndarray], about: dict[str, Any]) -> None:
    """Writes a checkpoint, and deletes the oldest if there are more than `keep`."""
    before = numbers_in(folder)
    unfinished = folder / _UNFINISHED
    text = json.dumps(about).encode()
    content: dict[str, Any] = {_ABOUT: np.frombuffer(text, np.uint8), f"{_ABOUT}/sum": np.asarray(zlib.crc32(text))}
    content |= {name: np.asarray(array, order="C").view(_plain(array.dtype)) for name, array in arrays.items()}
    shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
    try:
        unfinished.mkdir()
        with (unfinished / _FILE).open("wb") as file:
            np.savez(file, **content)
            file.flush()
            os.fsync(file.fileno())  # else a power failure after the rename leaves an empty file
        taken = (int(path.name) for path in folder.iterdir() if path.name.isdigit())  # files of other programs too
        unfinished.rename(folder / str(max(taken, default=-1) + 1))
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    for old in before[: max(len(before) + 1 - keep, 0)]:
        shutil.rmtree(folder / str(old), ignore_errors=True)


def _plain(dtype: np.dtype[Any]) -> Any:
    """Returns the type under which an array is stored: unsigned integers if NumPy lacks it, such as bfloat16."""
    return dtype if dtype.isbuiltin == 1 else f"u{dtype.itemsize}"


def _read(folder: pathlib.Path, number: int) -> Saved:
    with np.load(folder / str(number) / _FILE) as file:
        arrays = dict(file)
    text = arrays.pop(_ABOUT).tobytes()
    if zlib.crc32(text) != int(arrays.pop(f"{_ABOUT}/sum")):
        raise ValueError("its description has changed")
    about = json.loads(text)
    for name, (dtype, shape, known) in about["arrays"].items():
        array = arrays[name].view(jnp.dtype(dtype))
        if (list(array.shape), _sum(array)) != (shape, known):
            raise ValueError(f"the array {name} has changed")
        arrays[name] = array
    return Saved(number, about, arrays)


def steps_made(folder: pathlib.Path) -> dict[int, int]:
    """Returns index of a run in its sweep -> server steps of the newest checkpoint, without reading its arrays."""
    try:
        with np.load(folder / str(numbers_in(folder)[-1]) / _FILE) as file:
            about = json.loads(file[_ABOUT].tobytes())
    except (IndexError, ValueError, KeyError, OSError, zipfile.BadZipFile):  # none exists, or a run has just deleted it
        return {}
    return dict.fromkeys(about["places"], about["made"])


def check_folder(owner: str, folder: Any) -> pathlib.Path:
    """Returns the absolute path of a folder, which is created if it does not exist.

    Raises:
        OSError: the path is a file, or the folder cannot be written.
        TypeError: the argument is no path.
    """
    path = as_path(folder).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".{os.getpid()}.part"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise type(error)(f"{owner}: the folder {path} cannot be written: {error.strerror}") from error
    return path


def interval_of(every: Any) -> tuple[int | None, float | None]:
    """Returns (server steps, None) or (None, seconds) for an interval `100`, `"30s"`, `"5min"` or `"2h"`."""
    if isinstance(every, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*(s|min|h)\s*", every)
        seconds = float(found[1]) * {"s": 1, "min": 60, "h": 3600}[found[2]] if found else 0.0
        if seconds > 0:
            return None, seconds
        raise UserError(
            f'checkpoint_every must be a number of server steps or a time such as "30s", "5min" or "2h", got {every!r}'
        )
    return check_whole("run", "checkpoint_every", every), None


def log_info(text: str) -> None:
    """Prints a line on standard error."""
    print(f"jaxafl: {text}", file=sys.stderr)


def _sum(array: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def flattened(parts: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Returns name -> array, and name -> (dtype, shape, CRC-32) of all arrays."""
    arrays: dict[str, np.ndarray] = {}
    for part, tree in parts.items():
        leaves = tree.items() if part == "evaluations" else enumerate(jax.tree.leaves(tree))
        arrays |= {f"{part}/{name}": np.asarray(leaf) for name, leaf in leaves}
    return arrays, {name: (str(array.dtype), list(array.shape), _sum(array)) for name, array in arrays.items()}


def unflattened(like: Any, part: str, arrays: Mapping[str, np.ndarray], table: Mapping[str, Any], check: bool) -> Any:
    """Returns a part as a tree with the structure of `like`.

    Raises:
        ValueError: the part has more leaves, or, with `check`, leaves of other shapes or types.
    """
    leaves, structure = jax.tree.flatten(like)
    names = [f"{part}/{number}" for number in range(len(leaves))]
    fits = {name for name in table if name.startswith(f"{part}/")} == set(names)
    found = [arrays[name] for name in names] if fits else leaves
    if not fits or (check and [(a.shape, a.dtype) for a in found] != [(b.shape, b.dtype) for b in leaves]):
        raise UserError(
            f"the checkpoint's {part} holds arrays of other shapes or types than this run's, as one of another version "
            "of jaxafl does; name another folder"
        )
    return jax.tree.unflatten(structure, found)
