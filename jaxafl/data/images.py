"""Pooled image datasets from their canonical files, or from TensorFlow Datasets."""

from __future__ import annotations

import pathlib
from typing import TypeAlias

import numpy as np

from jaxafl.readers.directory import missing_dataset
from jaxafl.readers.tfds_source import how_to_prepare, prepared_directory, read_prepared

Images: TypeAlias = tuple[str, list[np.ndarray]]
"""The source (`"idx"`, `"binary"`, `"tfds <version>"`); and x uint8 `[n, H, W, C]`, y, x_test, y_test."""


def images_of(
    name: str, directory: pathlib.Path, canonical: Images | None, files: str, *, numbered: bool = False
) -> Images:
    """Returns images from the canonical files, else from TFDS.

    Args:
        name: name of the dataset, in TFDS too, and of its folder in the data directory.
        directory: the data directory.
        canonical: images from the canonical files; `None` if these do not exist.
        files: names of the canonical files, for the error: "Put ... into <folder>."
        numbered: True if TFDS stores the number of each image as its `id`; the images are then sorted by it.

    Raises:
        FileNotFoundError: no place has the images. The message lists the places and two ways to get the images.
        ValueError: files are damaged.
    """
    if canonical is not None:
        return canonical
    prepared = prepared_directory(name, directory)
    if prepared is None:
        ways = [f"Put {files} into {directory / name}.", how_to_prepare(name)]
        raise missing_dataset(name, [directory / name, directory], ways)
    arrays: list[np.ndarray] = []
    for split in ("train", "test"):
        x, y, *ids = read_prepared(prepared, split, "image", "label", *(["id"] if numbered else []))
        order = np.argsort(ids[0]) if ids else slice(None)
        arrays += [x[order], y[order]]
    return f"tfds {prepared.name}", arrays
