"""Samples by user: LEAF's json files, read one at a time, and the HDF5 files of TensorFlow Federated."""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from jaxafl.readers.archive import damaged, lacking, read_text

Pair: TypeAlias = tuple[np.ndarray, np.ndarray]
Convert: TypeAlias = Callable[[list[Any], list[Any]], Pair]
Users: TypeAlias = dict[str, Pair]
_ADVICE = "Write it again with LEAF's preprocess.sh."
_damaged = functools.partial(damaged, advice=_ADVICE)


def leaf_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the json files of one half of a LEAF dataset, sorted by name.

    Args:
        folder: for example `<data_dir>/femnist/train`; it need not exist.

    Returns:
        `*.json` and `*.json.gz` directly in the folder; empty if there are none.

    Raises:
        ValueError: a file exists twice, gzipped and not.
    """
    files = sorted([*folder.glob("*.json"), *folder.glob("*.json.gz")])
    for path in files:
        if path.with_name(f"{path.name}.gz") in files:
            raise ValueError(
                f"{folder} holds {path.name} and {path.name}.gz, the same samples twice; remove one of them"
            )
    return files


def leaf_halves(name: str, folder: pathlib.Path) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
    """Returns LEAF's training and test files; two empty lists if no file exists.

    They are the json files of the folders `train` and `test`, else those in `folder` with `train` or `test` in their
    names.

    Raises:
        FileNotFoundError: only one half exists.
    """
    files = leaf_files(folder)
    train, test = (
        leaf_files(folder / half) or [path for path in files if half in path.name] for half in ("train", "test")
    )
    if bool(train) != bool(test):
        present, absent = ("train", "test") if train else ("test", "train")
        raise FileNotFoundError(
            f"{folder} holds only part of {name}: no json file in {absent}. Add those that LEAF wrote with the ones in "
            f"{present}, or remove these to let another source be used."
        )
    return train, test


def read_leaf(files: Iterable[pathlib.Path]) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Yields users with their parsed samples, file after file.

    A file is `{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}`. `num_samples` is
    ignored, because it is out of date in LEAF's test files. Only one file is held at a time, and its users are released
    one by one, so convert a user's lists before asking for the next.

    Args:
        files: paths of json files, gzipped (`*.gz`) or not.

    Yields:
        `(user, x, y)` with x and y lists of equal length, possibly empty, in the order of the file. A user with samples
        in several files comes once per file.

    Raises:
        ValueError: a file is damaged, is not json or lacks a key; a user is listed twice or without data, has data but
            is not listed, or has x and y of different lengths. The message names the file.
    """
    for path in files:
        users, user_data = _parsed(path)
        for user in users:
            samples = user_data.pop(user)
            if absent := lacking(samples, "x", "y"):
                raise _damaged(path, f"user {user!r} lacks {absent}")
            x, y = samples["x"], samples["y"]
            if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
                wrong = f"got {length_of(x, 'entries')} and {length_of(y, 'entries')}"
                raise _damaged(path, f"user {user!r} needs x and y as lists of one length; {wrong}")
            yield user, x, y


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

    Args:
        files: paths of json files, see `read_leaf`.
        convert: converts a user's lists to two arrays, for example `(x [n, ...], y [n])`; raises `ValueError` with the
            problem (no full stop) if it cannot.

    Returns:
        The arrays of each user, in the order in which users first occur. Samples of a user in several files are
        concatenated in the order of the files.

    Raises:
        ValueError: see `read_leaf`; or the error of `convert`, with the file and the user.
    """
    parts: dict[str, list[Pair]] = {}
    for path in files:
        for user, x, y in read_leaf([path]):
            try:
                parts.setdefault(user, []).append(convert(x, y))
            except ValueError as error:
                raise _damaged(path, f"user {user!r}: {error}") from error
    return {user: pairs[0] if len(pairs) == 1 else _joined(pairs) for user, pairs in parts.items()}


def read_halves(
    name: str,
    noun: str,
    train: Sequence[pathlib.Path],
    test: Sequence[pathlib.Path],
    convert: Convert,
) -> tuple[Users, Users, str]:
    """Reads the training and test samples of all users with samples, and detects how LEAF split them.

    Args:
        name: name of the dataset.
        noun: plural noun for its users, such as `"writers"`, for messages.
        train: files of the training half, at least one.
        test: files of the test half, at least one.
        convert: see `collect_users`; its first array has an entry per sample.

    Returns:
        Training users with their arrays; test users with their arrays; `"sample"` (every test user also has training
        samples) or `"user"` (none has).

    Raises:
        ValueError: see `collect_users`; or a half has no sample, or only some of the test users have training samples.
    """
    halves = []
    for files in (train, test):
        halves.append({user: pair for user, pair in collect_users(files, convert).items() if len(pair[0])})
        if not halves[-1]:
            raise ValueError(f"{name}: no sample in the {len(files)} json files of {files[0].parent}")
    strangers = halves[1].keys() - halves[0].keys()
    if strangers and strangers != halves[1].keys():
        raise ValueError(
            f"{name}: {len(strangers)} of {len(halves[1])} {noun} in the {len(test)} json files of {test[0].parent} "
            f"for test have no training sample in the {len(train)} of {train[0].parent} for training (for example "
            f"{min(strangers)!r}), which neither of LEAF's splits makes: -t sample gives everyone both, -t user gives "
            "none both. Put the files of one run of LEAF there, all of them."
        )
    return halves[0], halves[1], "user" if strangers else "sample"


def pooled(half: Users) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Concatenates the samples of all users in sorted order; empties `half`, so that no sample is stored twice.

    Returns:
        x `[n, ...]`, y `[n, ...]`, and str `[n]`, the user of each sample.

    Raises:
        ValueError: users have samples of different shapes.
    """
    names = sorted(half)
    owners = np.repeat(names, [len(half[name][1]) for name in names])
    stops = np.cumsum([len(half[name][1]) for name in names])[:-1]
    arrays = []
    for column in zip(*half.values(), strict=True):
        shapes = {part.shape[1:] for part in column}
        if len(shapes) > 1:
            raise ValueError(f"users have samples of different shapes: {', '.join(map(str, sorted(shapes)[:3]))}")
        arrays.append(np.empty((len(owners), *shapes.pop()), np.result_type(*column)))
    for name, *parts in zip(names, *(np.split(array, stops) for array in arrays), strict=True):
        for part, values in zip(parts, half.pop(name), strict=True):
            part[:] = values
    return arrays[0], arrays[1], owners


def _joined(parts: list[Pair]) -> Pair:
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def _parsed(path: pathlib.Path) -> tuple[list[str], dict[str, Any]]:
    """Returns `users` and `user_data` of one file, checked to name the same users."""
    # Pixels take 256 values, and the cache keeps one object per value. Without it parsing needs four times the memory.
    number = functools.lru_cache(maxsize=4096)(float)
    try:
        content = json.loads(read_text(path, _ADVICE), parse_float=number)
    except (json.JSONDecodeError, RecursionError) as error:
        raise _damaged(path, f"expected json; {error}") from error
    if absent := lacking(content, "users", "user_data"):
        raise _damaged(path, f"expected LEAF's keys 'users', 'num_samples' and 'user_data'; it lacks {absent}")
    users, user_data = content["users"], content["user_data"]
    if not isinstance(users, list) or not all(isinstance(user, str) for user in users):
        raise _damaged(path, "expected 'users' to be a list of names")
    if not isinstance(user_data, dict):
        raise _damaged(path, "expected 'user_data' to be an object")
    twice, without, unlisted = len(users) - len(set(users)), set(users) - set(user_data), set(user_data) - set(users)
    if twice:
        raise _damaged(path, f"'users' lists {twice} users more than once")
    if without:
        raise _damaged(path, f"{len(without)} of {len(users)} users have no entry in 'user_data': {_some(without)}")
    if unlisted:
        raise _damaged(path, f"'user_data' holds {len(unlisted)} users that 'users' does not list: {_some(unlisted)}")
    return users, user_data


def length_of(values: object, unit: str) -> str:
    """Returns the length of a list in parsed json, otherwise its type, for a message."""
    return f"{len(values)} {unit}" if isinstance(values, list) else f"a {type(values).__name__}"


def _some(users: set[str]) -> str:
    names = sorted(users)
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
