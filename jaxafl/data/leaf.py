"""LEAF's json files: samples by user, read one file at a time."""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Any

import numpy as np

from jaxafl.data.archive import damaged, read_content

_ADVICE = "Write it again with LEAF's preprocess.sh."


def leaf_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The json files of one half of a LEAF dataset, sorted by name.

    Args:
        folder: For example `<data_dir>/femnist/train`; it need not exist.

    Returns:
        `*.json` and `*.json.gz` directly in the folder; empty if there are none.

    Raises:
        ValueError: If a file is there twice, gzipped and not.
    """
    files = sorted([*folder.glob("*.json"), *folder.glob("*.json.gz")])
    for path in files:
        if path.with_name(f"{path.name}.gz") in files:
            raise ValueError(
                f"{folder} holds {path.name} and {path.name}.gz, the same samples twice; remove one of them"
            )
    return files


def read_leaf(files: Iterable[pathlib.Path]) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Users with their samples as parsed, file after file.

    A file is `{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}`. `num_samples` is
    not read: in LEAF's own test files it is out of date, and the length of x says the same. Only one file is held at a
    time, and its users are let go one by one, so convert what is yielded before asking for more.

    Args:
        files: Paths of json files, gzipped (`*.gz`) or not.

    Yields:
        `(user, x, y)` with x and y lists of equal length, possibly empty; users of one file in its order. A user whose
        samples lie in several files comes once per file.

    Raises:
        ValueError: If a file is damaged, is not json, lacks a key (which), lists a user twice or without data, holds
            data of a user it does not list, or has x and y of different lengths. The message names the file.
    """
    for path in files:
        users, user_data = _parsed(path)
        for user in users:
            samples = user_data.pop(user)
            lacking = _lacking(samples, "x", "y")
            if lacking:
                raise damaged(path, f"user {user!r} lacks {lacking}", _ADVICE)
            x, y = samples["x"], samples["y"]
            if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
                raise damaged(
                    path,
                    f"user {user!r} needs x and y as lists of one length; got {_length(x)} and {_length(y)}",
                    _ADVICE,
                )
            yield user, x, y


def collect_users(
    files: Iterable[pathlib.Path], convert: Callable[[list[Any], list[Any]], tuple[np.ndarray, np.ndarray]]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """All users of some files with their samples as arrays; memory beyond these is about that of one parsed file.

    Args:
        files: Paths of json files, see `read_leaf`.
        convert: Makes two arrays of a user's lists, for example `(x [n, ...], y [n])`; raises `ValueError` with what is
            wrong (no full stop) where it cannot.

    Returns:
        The arrays of each user, in the order in which users first occur. Samples of a user in several files follow each
        other in the order of the files.

    Raises:
        ValueError: As `read_leaf`, or what `convert` raised, with the file and the user.
    """
    parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for path in files:
        for user, x, y in read_leaf([path]):
            try:
                parts.setdefault(user, []).append(convert(x, y))
            except ValueError as error:
                raise damaged(path, f"user {user!r}: {error}", _ADVICE) from error
    return {user: _joined(own) for user, own in parts.items()}


def leaf_split(
    name: str,
    who: str,
    train: Sequence[pathlib.Path],
    test: Sequence[pathlib.Path],
    trained: Set[str],
    tested: Set[str],
) -> str:
    """How LEAF split the samples.

    Args:
        name: Name of the dataset.
        who: What its users are, in the plural.
        train: Files of the training half, at least one.
        test: Files of the test half, at least one.
        trained: Users with training samples.
        tested: Users with test samples.

    Returns:
        `"sample"` (every test user also has training samples) or `"user"` (none has).

    Raises:
        ValueError: If only some of the test users have training samples.
    """
    strangers = tested - trained
    if strangers and strangers != tested:
        raise ValueError(
            f"{name}: {len(strangers)} of {len(tested)} {who} in the {len(test)} json files of {test[0].parent} for "
            f"test have no training sample in the {len(train)} of {train[0].parent} for training (for example "
            f"{min(strangers)!r}), which neither of LEAF's splits makes: -t sample gives everyone both, -t user gives "
            "none both. Put the files of one run of LEAF there, all of them."
        )
    return "user" if strangers else "sample"


def _joined(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def _parsed(path: pathlib.Path) -> tuple[list[str], dict[str, Any]]:
    """`users` and `user_data` of one file, which name the same users."""
    # Pixels take 256 values: one object per value instead of one per pixel is a quarter of the memory.
    number = functools.lru_cache(maxsize=4096)(float)
    try:
        content = json.loads(read_content(path).decode("utf-8-sig"), parse_float=number)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(path, f"expected json; {error}", _ADVICE) from error
    lacking = _lacking(content, "users", "user_data")
    if lacking:
        raise damaged(path, f"expected LEAF's keys 'users', 'num_samples' and 'user_data'; it lacks {lacking}", _ADVICE)
    users, user_data = content["users"], content["user_data"]
    if not isinstance(users, list) or not all(isinstance(user, str) for user in users):
        raise damaged(path, "expected 'users' to be a list of names", _ADVICE)
    if not isinstance(user_data, dict):
        raise damaged(path, "expected 'user_data' to be an object", _ADVICE)
    twice, without, unlisted = len(users) - len(set(users)), set(users) - set(user_data), set(user_data) - set(users)
    if twice:
        raise damaged(path, f"'users' lists {twice} users more than once", _ADVICE)
    if without:
        raise damaged(
            path, f"{len(without)} of {len(users)} users have no entry in 'user_data': {_some(without)}", _ADVICE
        )
    if unlisted:
        raise damaged(
            path, f"'user_data' holds {len(unlisted)} users that 'users' does not list: {_some(unlisted)}", _ADVICE
        )
    return users, user_data


def _lacking(content: Any, *keys: str) -> str:
    found = content if isinstance(content, dict) else {}
    return ", ".join(repr(key) for key in keys if key not in found)


def _length(values: Any) -> str:
    return f"{len(values)} entries" if isinstance(values, list) else f"a {type(values).__name__}"


def _some(users: set[str]) -> str:
    names = sorted(users)
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
