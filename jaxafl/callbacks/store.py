"""The files of checkpoints, by Orbax: whole at any instant, and checked when they are read."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pathlib
import re
import sys
import warnings
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.options import UserError, check_whole, shown


class Saved(NamedTuple):
    """A checkpoint that has been read.

    Attributes:
        number: of the checkpoint.
        about: what stands beside the arrays, see `Checkpoint.save`.
        arrays: name -> array.
    """

    number: int
    about: dict[str, Any]
    arrays: dict[str, np.ndarray]


def newest(folder: pathlib.Path) -> tuple[Saved | None, list[int]]:
    """The newest whole checkpoint, and the numbers of damaged ones after it, which are passed over, and it is said."""
    numbers = [int(path.parent.name) for path in folder.glob("*/_CHECKPOINT_METADATA") if path.parent.name.isdigit()]
    damaged: list[int] = []
    for number in sorted(numbers, reverse=True):
        try:
            return _read(folder, number), damaged
        except (MemoryError, ImportError, PermissionError):  # nothing is wrong with the checkpoint
            raise
        except Exception as error:  # Orbax, TensorStore and JSON raise many kinds
            damaged.append(number)
            why = f"{type(error).__name__}: {str(error)[:120]}"
            warnings.warn(f"checkpoint {number} in {folder} is damaged and passed over ({why})", stacklevel=2)
    if damaged:
        warnings.warn(f"no checkpoint in {folder} is whole: the run begins anew", stacklevel=2)
    return None, damaged


def write(folder: pathlib.Path, keep: int, arrays: dict[str, np.ndarray], about: dict[str, Any]) -> None:
    """Adds a checkpoint, and deletes the oldest beyond those that are kept."""
    import orbax.checkpoint as ocp

    with _manager(folder, keep) as manager:
        number = max(manager.all_steps(), default=-1) + 1
        text = json.dumps(about)
        said = {"text": text, "sum": zlib.crc32(text.encode())}
        args = ocp.args.Composite(arrays=ocp.args.PyTreeSave(arrays), about=ocp.args.JsonSave(said))
        manager.save(number, args=args)
        manager.wait_until_finished()


def _read(folder: pathlib.Path, number: int) -> Saved:
    import orbax.checkpoint as ocp

    with _manager(folder, None) as manager:
        args = ocp.args.Composite(arrays=ocp.args.PyTreeRestore(), about=ocp.args.JsonRestore())
        found = manager.restore(number, args=args)
    text = found["about"]["text"]
    if zlib.crc32(text.encode()) != found["about"]["sum"]:
        raise ValueError("its description has changed")
    about, arrays = json.loads(text), dict(found["arrays"])
    for name, (dtype, shape, known) in about["arrays"].items():
        if not np.prod(shape):  # Orbax keeps no empty arrays
            arrays[name] = np.zeros(shape, jnp.dtype(dtype))
        array = np.asarray(arrays[name])
        if (str(array.dtype), list(array.shape), _sum(array)) != (dtype, shape, known):
            raise ValueError(f"the array {name} has changed")
        arrays[name] = array
    return Saved(number, about, arrays)


def steps_made(folder: pathlib.Path) -> int:
    """Server steps of the newest checkpoint, unread; 0 where there is none."""
    numbers = [int(path.parent.parent.name) for path in folder.glob("[0-9]*/about/metadata")]
    try:
        text = (folder / str(max(numbers)) / "about" / "metadata").read_text()
        return json.loads(json.loads(text)["text"])["made"]
    except (ValueError, KeyError, OSError):  # there is none, or it has just been replaced
        return 0


def check_folder(owner: str, folder: Any) -> pathlib.Path:
    """The folder, made if it is not there.

    Raises:
        NotADirectoryError: it is a file.
        PermissionError: it cannot be written.
        TypeError: it is no path.
    """
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"{owner} must be a folder, got {shown(folder)}")
    path = pathlib.Path(folder).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".{os.getpid()}.part"
        probe.touch()
        probe.unlink()
    except (FileExistsError, NotADirectoryError) as error:
        raise NotADirectoryError(f"{owner}: {path} is a file, or lies in one; name a folder") from error
    except OSError as error:
        raise PermissionError(f"{owner}: the folder {path} cannot be written: {error.strerror}") from error
    return path


def interval_of(every: Any) -> tuple[int | None, float | None]:
    """Server steps, or seconds, between saves: of `100`, `"30s"`, `"5min"` or `"2h"`."""
    if isinstance(every, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*(s|min|h)\s*", every)
        seconds = float(found[1]) * {"s": 1, "min": 60, "h": 3600}[found[2]] if found else 0.0
        if seconds > 0:
            return None, seconds
        raise UserError(
            f'checkpoint_every must be a number of server steps or a time such as "30s", "5min" or "2h", got {every!r}'
        )
    return check_whole("run", "checkpoint_every", every), None


def say(text: str) -> None:
    """A line for whoever sits before the terminal."""
    print(f"jaxafl: {text}", file=sys.stderr)


@contextlib.contextmanager
def _manager(folder: pathlib.Path, keep: int | None) -> Iterator[Any]:
    import orbax.checkpoint as ocp

    logging.getLogger("absl").setLevel(logging.ERROR)
    how: dict[str, Any] = dict(max_to_keep=keep, enable_async_checkpointing=False, create=False)
    if jax.process_count() > 1:  # each saves alone, whatever the others do
        me = jax.process_index()
        how["multiprocessing_options"] = ocp.options.MultiprocessingOptions(me, {me}, str(me))
    options = ocp.CheckpointManagerOptions(**how)
    registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
    for item, handler, args in (  # parameters hardly become smaller, and compressing them takes a third of the time
        ("arrays", ocp.PyTreeCheckpointHandler(use_compression=False), (ocp.args.PyTreeSave, ocp.args.PyTreeRestore)),
        ("about", ocp.JsonCheckpointHandler(), (ocp.args.JsonSave, ocp.args.JsonRestore)),
    ):
        for arg in args:
            registry.add(item, arg, handler)
    manager = ocp.CheckpointManager(folder, options=options, handler_registry=registry)
    try:
        yield manager
    finally:
        manager.close()


def _sum(array: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")


def flattened(parts: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """name -> array, without empty ones, and name -> (dtype, shape, CRC-32) of all."""
    arrays, table = {}, {}
    for part, tree in parts.items():
        leaves = tree.items() if part == "evaluations" else enumerate(jax.tree.leaves(tree))
        for name, leaf in leaves:
            array = np.asarray(leaf)
            table[f"{part}/{name}"] = (str(array.dtype), list(array.shape), _sum(array.reshape(-1)))
            if array.size:
                arrays[f"{part}/{name}"] = array
    return arrays, table


def unflattened(like: Any, part: str, arrays: Mapping[str, np.ndarray], table: Mapping[str, Any], check: bool) -> Any:
    """The tree of a part; `check`: its leaves have the shapes and types of `like`."""
    leaves, structure = jax.tree.flatten(like)
    found = [arrays[f"{part}/{number}"] for number in range(len(leaves))]
    extra = f"{part}/{len(leaves)}" in table
    if extra or (check and any((a.shape, a.dtype) != (b.shape, b.dtype) for a, b in zip(found, leaves, strict=True))):
        raise UserError("the checkpoint holds arrays of other shapes than this run; name another folder")
    return jax.tree.unflatten(structure, found)
