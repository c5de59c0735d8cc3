"""Where a pooled image dataset comes from: its canonical files, else TensorFlow Datasets, else one clear error."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable

import numpy as np

from jaxafl.data.directory import missing_dataset
from jaxafl.data.tfds_source import prepared_directory, read_prepared


@dataclasses.dataclass(frozen=True)
class Images:
    """Raw images with their labels.

    Attributes:
        route: How they were found, for `Dataset.source`: `"idx"`, `"binary"` or `"tfds <version>"`.
        x: uint8 `[n, H, W, C]`, training images.
        y: int `[n]`, training labels.
        x_test: uint8 `[n_test, H, W, C]`, test images.
        y_test: int `[n_test]`, test labels.
    """

    route: str
    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def find_images(
    name: str,
    directory: pathlib.Path,
    canonical: Callable[[pathlib.Path], Images | None],
    files: str,
    *,
    numbered: bool = False,
) -> Images:
    """Read an image dataset from the first place that holds it.

    Args:
        name: Name of the dataset, here and in TFDS; also that of its folder in the data directory.
        directory: The data directory.
        canonical: Reads the canonical files found under a data directory; `None` if there are none.
        files: What the canonical files are called, for the error: "Put ... into <folder>."
        numbered: Whether TFDS stores each image's number as its `id`; the images are then put back in that order.

    Returns:
        The images.

    Raises:
        FileNotFoundError: If they are in no place, with the places and the two ways to get them.
        ValueError: If files are damaged.
    """
    images = canonical(directory)
    if images is not None:
        return images
    prepared = prepared_directory(name, directory)
    if prepared is None:
        raise missing_dataset(
            name,
            [directory / name, directory],
            [
                f"Put {files} into {directory / name}.",
                f'Prepare it with TensorFlow Datasets: pip install "jaxafl[tfds]", then '
                f"jaxafl.data.prepare_tfds({name!r}, data_dir=...); the reading needs no TensorFlow.",
            ],
        )
    x, y = _prepared_half(prepared, "train", numbered)
    x_test, y_test = _prepared_half(prepared, "test", numbered)
    return Images(f"tfds {prepared.name}", x, y, x_test, y_test)


def partial_dataset(folder: pathlib.Path, name: str, absent: str) -> FileNotFoundError:
    """The error for a folder with only some of the files of a dataset.

    Args:
        folder: The folder.
        name: Name of the dataset.
        absent: The missing files, for the error: "... is missing".

    Returns:
        The error, to be raised by the caller.
    """
    return FileNotFoundError(
        f"{folder} holds only part of {name}: {absent} is missing. Add what is missing, or remove the rest to let "
        "another source be used."
    )


def _prepared_half(prepared: pathlib.Path, split: str, numbered: bool) -> tuple[np.ndarray, np.ndarray]:
    if not numbered:
        x, y = read_prepared(prepared, split, "image", "label")
        return x, y
    x, y, number = read_prepared(prepared, split, "image", "label", "id")
    order = np.argsort(number)
    return x[order], y[order]
