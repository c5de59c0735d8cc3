"""The files of checkpoints, in NumPy's format: complete at any time, and verified when read."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.options import UserError, as_path, check_whole, warn


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


def newest(folder: pathlib.Path) -> Saved | None:
    """Returns the newest intact checkpoint. Warns of each newer one, which is damaged."""
    for number in reversed(numbers_in(folder)):
        try:
            with np.load(folder / str(number) / _FILE) as file:
                arrays = dict(file)  # zipfile compares the checksum of each array
            about = json.loads(arrays[_ABOUT].tobytes())
            typed = {name: arrays[name].view(jnp.dtype(kind)) for name, kind in about["dtypes"].items()}
            return Saved(number, about, typed)
        except (MemoryError, ImportError, PermissionError):  # the checkpoint is intact, and must not be passed over
            raise
        except Exception as error:  # zipfile, NumPy and JSON raise many kinds
            why = f"{type(error).__name__}: {str(error)[:120]}"
            warn(f"checkpoint {number} in {folder} is damaged and passed over ({why})")
    return None


def write(folder: pathlib.Path, arrays: dict[str, np.ndarray], about: dict[str, Any]) -> None:
    """Writes a checkpoint, and deletes all earlier ones but the last."""
    before = numbers_in(folder)
    unfinished = folder / _UNFINISHED
    about = about | {"dtypes": {name: str(array.dtype) for name, array in arrays.items()}}  # NumPy lacks bfloat16
    content: dict[str, Any] = {_ABOUT: np.frombuffer(json.dumps(about).encode(), np.uint8), **arrays}
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
    for old in before[:-1]:
        shutil.rmtree(folder / str(old), ignore_errors=True)


def check_folder(folder: Any) -> pathlib.Path:
    """Returns the absolute path of a folder, which is created if it does not exist.

    Raises:
        OSError: the path is a file, or the folder cannot be written.
        TypeError: the argument is no path.
    """
    path = as_path(folder).absolute()
    path.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=path).close()  # raises where nothing can be written
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


def flattened(parts: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the arrays of all parts by name."""
    arrays: dict[str, np.ndarray] = {}
    for part, tree in parts.items():
        leaves = tree.items() if part == "evaluations" else enumerate(jax.tree.leaves(tree))
        arrays |= {f"{part}/{name}": np.asarray(leaf) for name, leaf in leaves}
    return arrays


def unflattened(like: Any, part: str, arrays: Mapping[str, np.ndarray], check: bool) -> Any:
    """Returns a part as a tree with the structure of `like`.

    Raises:
        ValueError: the part has more leaves, or, with `check`, leaves of other shapes or types.
    """
    leaves, structure = jax.tree.flatten(like)
    names = [f"{part}/{number}" for number in range(len(leaves))]
    fits = {name for name in arrays if name.startswith(f"{part}/")} == set(names)
    found = [arrays[name] for name in names] if fits else leaves
    if not fits or (check and [(a.shape, a.dtype) for a in found] != [(b.shape, b.dtype) for b in leaves]):
        raise UserError(
            f"the checkpoint's {part} holds arrays of other shapes or types than this run's, as one of another version "
            "of jaxafl does; name another folder"
        )
    return jax.tree.unflatten(structure, found)
