"""Where a pooled image dataset comes from: its canonical files, else TensorFlow Datasets, else one clear error."""

from __future__ import annotations

import pathlib
from typing import TypeAlias

import numpy as np

from jaxafl.data.dataset import Dataset
from jaxafl.data.preprocessing import Preprocessing
from jaxafl.readers.directory import missing_dataset
from jaxafl.readers.tfds_source import how_to_prepare, prepared_directory, read_prepared

Images: TypeAlias = tuple[str, list[np.ndarray]]
"""How they were found (`"idx"`, `"binary"`, `"tfds <version>"`); and x uint8 `[n, H, W, C]`, y, x_test, y_test."""


def image_dataset(
    name: str,
    directory: pathlib.Path,
    canonical: Images | None,
    files: str,
    num_classes: int,
    preprocessing: Preprocessing,
    reference: str,
    *,
    numbered: bool = False,
) -> Dataset:
    """An image dataset from the first place that holds it.

    Args:
        name: name of the dataset, here and in TFDS; also that of its folder in the data directory.
        directory: the data directory.
        canonical: what its canonical files hold; `None` if there are none.
        files: what the canonical files are called, for the error: "Put ... into <folder>."
        num_classes: number of classes.
        preprocessing: what happens to raw images inside the training step.
        reference: what a run on it should cite.
        numbered: whether TFDS stores each image's number as its `id`; the images are then put back in that order.

    Raises:
        FileNotFoundError: the images are in no place, with the places and the two ways to get them.
        ValueError: files are damaged.
    """
    route, (x, y, x_test, y_test) = canonical or _prepared(name, directory, files, numbered)
    return Dataset(
        name, x, y, x_test, y_test, num_classes, preprocessing, source={"source": route}, references=(reference,)
    )


def _prepared(name: str, directory: pathlib.Path, files: str, numbered: bool) -> Images:
    """The images as TFDS has prepared them."""
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
