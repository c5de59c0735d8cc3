"""Samples by user: LEAF's json files, read one at a time, and the HDF5 files of TensorFlow Federated."""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from jaxafl.readers.archive import damaged, read_text

Pair: TypeAlias = tuple[np.ndarray, np.ndarray]
Convert: TypeAlias = Callable[[list[Any], list[Any]], Pair]
Users: TypeAlias = dict[str, Pair]
_ADVICE = "Write it again with LEAF's preprocess.sh."


def leaf_halves(name: str, folder: pathlib.Path) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
    """Returns LEAF's training and test files, `*.json` and `*.json.gz`; two empty lists if no file exists.

    They are the files of the folders `train` and `test`, else those in `folder` with `train` or `test` in their names.

    Raises:
        FileNotFoundError: only one half exists.
    """
    train, test = (
        _json_files(folder / half) or [path for path in _json_files(folder) if half in path.name]
        for half in ("train", "test")
    )
    if bool(train) != bool(test):
        raise FileNotFoundError(
            f"{folder} holds only part of {name}: no json file in {'test' if train else 'train'}. Add those that LEAF "
            "wrote, or remove the other half to let another source be used."
        )
    return train, test


def _json_files(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted([*folder.glob("*.json"), *folder.glob("*.json.gz")])


def read_examples(path: pathlib.Path, *features: str) -> Iterator[tuple[str, tuple[np.ndarray, ...]]]:
    """Yields users with their arrays from an HDF5 file of TensorFlow Federated, `examples/<user>/<feature>`.

    Raises:
        ValueError: the file is damaged, or a user lacks a feature.
    """
    import h5py

    try:
        with h5py.File(path) as file:
            for user, group in file["examples"].items():
                yield user, tuple(group[feature][()] for feature in features)
    except (OSError, KeyError) as error:
        raise damaged(path, f"expected HDF5 with examples/<user>/{features[0]}; {error}") from error


def collect_users(files: Iterable[pathlib.Path], convert: Convert) -> Users:
    """Returns all users of some files with their samples as arrays. Peak memory is these plus one parsed file.

    A file is `{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}`. `num_samples` is
    ignored, because it is out of date in LEAF's test files.

    Args:
        files: paths of json files, gzipped (`*.gz`) or not.
        convert: converts a user's lists to two arrays, for example `(x [n, ...], y [n])`; raises `ValueError` with the
            problem (no full stop) if it cannot.

    Returns:
        The arrays of each user, in the order in which users first occur. Samples of a user in several files are
        concatenated in the order of the files.

    Raises:
        ValueError: a file has another form, or `convert` fails. The message names the file and the user.
    """
    parts: dict[str, list[Pair]] = {}
    for path in files:
        # Pixels take 256 values, and the cache keeps one object per value. Without it parsing needs four times the
        # memory.
        number = functools.lru_cache(maxsize=4096)(float)
        user = None
        try:
            content = json.loads(read_text(path, _ADVICE), parse_float=number)
            for user in content["users"]:
                samples = content["user_data"].pop(user)
                x, y = convert(samples["x"], samples["y"])
                if len(x) != len(y):
                    raise ValueError(f"{len(x)} samples x and {len(y)} labels y")
                parts.setdefault(user, []).append((x, y))
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            where = "" if user is None else f"user {user!r}: "
            raise damaged(path, f"{where}{type(error).__name__}: {error}", _ADVICE) from error
    return {user: pairs[0] if len(pairs) == 1 else _joined(pairs) for user, pairs in parts.items()}


def read_halves(
    name: str, train: Sequence[pathlib.Path], test: Sequence[pathlib.Path], convert: Convert
) -> tuple[Users, Users, str]:
    """Reads the training and test samples of all users with samples, and detects how LEAF split them.

    Args:
        name: name of the dataset.
        train: files of the training half, at least one.
        test: files of the test half, at least one.
        convert: see `collect_users`; its first array has an entry per sample.

    Returns:
        Training users with their arrays; test users with their arrays, both in sorted order; `"sample"` (every test
        user also has training samples) or `"user"` (none has).

    Raises:
        ValueError: see `collect_users`; or a half has no sample, or only some of the test users have training samples.
    """
    halves = []
    for files in (train, test):
        users = collect_users(files, convert)
        halves.append({user: pair for user, pair in sorted(users.items()) if len(pair[0])})
        if not halves[-1]:
            raise ValueError(f"{name}: no sample in the {len(files)} json files of {files[0].parent}")
    strangers = halves[1].keys() - halves[0].keys()
    if strangers and strangers != halves[1].keys():
        raise ValueError(
            f"{name}: {len(strangers)} of {len(halves[1])} users in {test[0].parent} have no training sample in "
            f"{train[0].parent}, such as {min(strangers)!r}; expected all or none. Use all files of one run of LEAF"
        )
    return halves[0], halves[1], "user" if strangers else "sample"


def pooled(half: Users) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Concatenates the samples of all users in their order; empties `half`, so that no sample is stored twice.

    Returns:
        x `[n, ...]`, y `[n, ...]`, and str `[n]`, the user of each sample.

    Raises:
        ValueError: users have samples of different shapes.
    """
    owners = np.repeat([*half], [len(y) for _, y in half.values()])
    x, y = _joined([*half.values()])
    half.clear()
    return x, y, owners


def _joined(parts: list[Pair]) -> Pair:
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])
