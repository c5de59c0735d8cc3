"""FEMNIST as LEAF writes it: json files with the pixels of every writer as numbers in [0, 1]."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxafl.data.leaf import collect_users, leaf_split

_PIXELS = 28 * 28


def read_json(
    train: Sequence[pathlib.Path], test: Sequence[pathlib.Path], classes: int
) -> tuple[dict[str, np.ndarray], str]:
    """LEAF's json files as flat arrays. Pixels are kept as uint8, which loses nothing: LEAF writes x/255.

    Args:
        train: Files of the training half.
        test: Files of the test half.
        classes: Labels must be in `[0, classes)`.

    Returns:
        Arrays under the keys `users` (names, sorted), `x_train` uint8 `[n, 28, 28]`, `y_train`, `user_train` (index
        into `users`) and the same with `_test`; and how LEAF split the samples, see `leaf_split`.

    Raises:
        ValueError: If a file is damaged (see `read_leaf`), an image does not have 784 pixels in [0, 1], a label is out
            of range, a half holds no sample, or only some of the test writers have training samples.
    """

    def convert(x: list[Any], y: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        return _pixels(x), _labels(y, classes)

    halves = [collect_users(files, convert) for files in (train, test)]
    trained, tested = ({user for user, (_, y) in half.items() if len(y)} for half in halves)
    for files, writers in ((train, trained), (test, tested)):
        if not writers:
            raise ValueError(f"femnist: no sample in the {len(files)} json files of {files[0].parent}")
    split = leaf_split("femnist", "writers", train, test, trained, tested)
    users = np.array(sorted(trained | tested))
    arrays = {"users": users}
    for name, half in zip(("train", "test"), halves, strict=True):
        arrays |= {f"{key}_{name}": array for key, array in _flat(half, users).items()}
    return arrays, split


def _pixels(x: list[Any]) -> np.ndarray:
    """Images as uint8 `[n, 28, 28]`."""
    for image in x:
        if not isinstance(image, list) or len(image) != _PIXELS:
            size = f"{len(image)} values" if isinstance(image, list) else f"a {type(image).__name__}"
            raise ValueError(f"an image needs {_PIXELS} pixels; got {size}")
    try:
        pixels = np.array(x, np.float32).reshape(-1, 28, 28)
    except (TypeError, ValueError) as error:
        raise ValueError(f"pixels must be numbers; {error}") from error
    if not ((pixels >= 0) & (pixels <= 1)).all():
        raise ValueError(f"pixels must lie in [0, 1]; they run from {pixels.min()} to {pixels.max()}")
    return np.rint(pixels * 255).astype(np.uint8)


def _labels(y: list[Any], classes: int) -> np.ndarray:
    labels = np.array(y) if y else np.zeros(0, np.uint8)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(f"labels must be whole numbers; got {y[:3]}")
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise ValueError(f"labels run from {labels.min()} to {labels.max()}, outside 0..{classes - 1}")
    return labels.astype(np.uint8)


def _flat(half: dict[str, tuple[np.ndarray, np.ndarray]], users: np.ndarray) -> dict[str, np.ndarray]:
    """Users one after the other, in sorted order; `half` is emptied on the way, so that pixels are not held twice."""
    counts = [len(half[user][1]) if user in half else 0 for user in users.tolist()]
    x, y = np.empty((sum(counts), 28, 28), np.uint8), np.empty(sum(counts), np.uint8)
    done = 0
    for user, count in zip(users.tolist(), counts, strict=True):
        if count:
            x[done : done + count], y[done : done + count] = half.pop(user)
            done += count
    return {"x": x, "y": y, "user": np.repeat(np.arange(len(users)), counts)}
