"""Where a pooled image dataset comes from: its canonical files, else TensorFlow Datasets, else one clear error."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from jaxafl.data.dataset import Dataset
from jaxafl.data.preprocessing import Preprocessing
from jaxafl.readers.directory import data_directory, missing_dataset
from jaxafl.readers.tfds_source import how_to_prepare, prepared_directory, read_prepared


class Images(NamedTuple):
    """Raw images with their labels.

    Attributes:
        route: how they were found, for `Dataset.source`: `"idx"`, `"binary"` or `"tfds <version>"`.
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


def image_dataset(
    name: str,
    data_dir: str | os.PathLike[str] | None,
    canonical: Callable[[pathlib.Path], Images | None],
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
        data_dir: data directory, see `data_directory`.
        canonical: reads the canonical files found under a data directory; `None` if there are none.
        files: what the canonical files are called, for the error: "Put ... into <folder>."
        num_classes: number of classes.
        preprocessing: what happens to raw images inside the training step.
        reference: what a run on it should cite.
        numbered: whether TFDS stores each image's number as its `id`; the images are then put back in that order.

    Raises:
        FileNotFoundError: the images are in no place, with the places and the two ways to get them.
        ValueError: files are damaged.
    """
    directory = data_directory(data_dir)
    images = canonical(directory) or _prepared(name, directory, numbered)
    if images is None:
        ways = [f"Put {files} into {directory / name}.", how_to_prepare(name)]
        raise missing_dataset(name, [directory / name, directory], ways)
    route, x, y, x_test, y_test = images
    source, references = {"source": route}, (reference,)
    return Dataset(name, x, y, x_test, y_test, num_classes, preprocessing, None, source, references)


def _prepared(name: str, directory: pathlib.Path, numbered: bool) -> Images | None:
    """The images as TFDS has prepared them, if it has."""
    prepared = prepared_directory(name, directory)
    if prepared is None:
        return None
    arrays: list[np.ndarray] = []
    for split in ("train", "test"):
        x, y, *ids = read_prepared(prepared, split, "image", "label", *(["id"] if numbered else []))
        order = np.argsort(ids[0]) if ids else slice(None)
        arrays += [x[order], y[order]]
    return Images(f"tfds {prepared.name}", *arrays)
