"""MNIST and Fashion-MNIST, from the canonical idx files or from TensorFlow Datasets."""

from __future__ import annotations

import dataclasses
import os
import pathlib

import numpy as np

from jaxafl.data.dataset import Dataset
from jaxafl.data.images import images_of
from jaxafl.data.preprocessing import Preprocessing, normalise
from jaxafl.options import check_choice, named
from jaxafl.readers.archive import SHA256, find_files, read_idx
from jaxafl.readers.directory import data_directory, find_file
from jaxafl.readers.download import downloadable
from jaxafl.readers.tfds_source import prepared_directory


@named
@downloadable
def mnist(data_dir: str | os.PathLike[str] | None = None, *, by: str | None = None, download: bool = False) -> Dataset:
    """Loads MNIST: 60,000 training and 10,000 test images of handwritten digits, 10 classes.

    The places are searched in this order:

    1. the four canonical idx files (`train-images-idx3-ubyte` and so on, gzipped or not) in `<data_dir>/mnist`, then in
       `<data_dir>`;
    2. `<data_dir>/mnist/<version>`, prepared by TensorFlow Datasets (see `prepare_tfds`) and read without TensorFlow.

    TFDS stores the images in another order, so the two sources give different (equally valid) partitions.
    `description` records the source.

    Args:
        data_dir: data directory; by default `$JAXAFL_DATA_DIR`, else TFDS's default.
        by: `"writer"` adds the writer of each training image, for `partition(by_user())`: 539 clients of 19 to 131
            images (median 116). It needs the file `qmnist-train-labels-idx2-int` of QMNIST (gzipped or not) next to
            the idx files, and does not work with TFDS, because QMNIST numbers the images in the order of the idx files.
        download: if True, missing files are downloaded first, see `jaxafl.data.download`.

    Returns:
        The dataset: x uint8 `[60000, 28, 28, 1]` (ink bright on 0), normalised in the step by mean 0.1307, std 0.3081.

    Raises:
        FileNotFoundError: no place has the dataset, or one has only some of the files.
        ValueError: a file is damaged (the SHA-256 of its content is checked), or `by` has another value.

    References:
        LeCun, Bottou, Bengio and Haffner, "Gradient-based learning applied to document recognition", Proc. IEEE 1998.
        Writers: Yadav and Bottou, "Cold Case: The Lost MNIST Digits", NeurIPS 2019.
    """
    check_choice("mnist", "by", by, (None, "writer"))
    users = None if by is None else _writers(data_directory(data_dir))
    dataset = _load("mnist", data_dir, normalise(255.0, 0.1307, 0.3081), "lecun1998")
    if users is None:
        return dataset
    source = {**dataset.source, "users": "QMNIST writers"}
    return dataclasses.replace(dataset, users=users, source=source, references=(*dataset.references, "yadav2019"))


@named
@downloadable
def fashion_mnist(data_dir: str | os.PathLike[str] | None = None, *, download: bool = False) -> Dataset:
    """Loads Fashion-MNIST: 60,000 training and 10,000 test images of clothing, 10 classes.

    The search follows `mnist`, with the folder `<data_dir>/fashion_mnist`.

    Args:
        data_dir: data directory; by default `$JAXAFL_DATA_DIR`, else TFDS's default.
        download: if True, missing files are downloaded first, see `jaxafl.data.download`.

    Returns:
        The dataset: x uint8 `[60000, 28, 28, 1]`, normalised in the step by mean 0.2860, std 0.3530. Classes: T-shirt,
        trouser, pullover, dress, coat, sandal, shirt, sneaker, bag, ankle boot.

    Raises:
        FileNotFoundError: no place has the dataset, or one has only some of the four files.
        ValueError: a file is damaged (the SHA-256 of its content is checked).

    References:
        Xiao, Rasul and Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms",
        arXiv:1708.07747, 2017.
    """
    return _load("fashion_mnist", data_dir, normalise(255.0, 0.2860, 0.3530), "xiao2017")


_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

_WRITERS = "qmnist-train-labels-idx2-int"
_WRITER_COLUMN = 2  # of class, HSF series, writer, index of the digit for this writer, ...


def _load(name: str, data_dir: str | os.PathLike[str] | None, scale: Preprocessing, reference: str) -> Dataset:
    directory = data_directory(data_dir)
    images = None
    if paths := _idx_files(name, directory):
        x, y, x_test, y_test = map(read_idx, paths, [SHA256[f"{name}/{file}"] for file in _FILES])
        images = "idx", [x[..., None], y, x_test[..., None], y_test]
    files = f"the four canonical files ({', '.join(_FILES)}; gzipped as *.gz or not)"
    route, (x, y, x_test, y_test) = images_of(name, directory, images, files)
    source = {"source": route}
    return Dataset(name, x, y, x_test, y_test, 10, scale, source=source, references=(reference,))


def _idx_files(name: str, directory: pathlib.Path) -> list[pathlib.Path]:
    return find_files(name, [(directory / name, _FILES), (directory, _FILES)])


def _writers(directory: pathlib.Path) -> np.ndarray:
    """Reads NIST's number of the writer of each training image, int32 `[60000]`, in the order of the idx files."""
    folder = directory / "mnist"
    if not _idx_files("mnist", directory) and prepared_directory("mnist", directory):
        raise FileNotFoundError(
            "mnist(by='writer') needs the four canonical idx files: TensorFlow Datasets stores the images in another "
            f"order than QMNIST numbers them. Put {', '.join(_FILES)} and {_WRITERS} (gzipped as *.gz or not) into "
            f"{folder}."
        )
    paths = [place / file for place in (folder, directory) for file in (f"{_WRITERS}.gz", _WRITERS)]
    ways = [
        f"Put {_WRITERS}.gz of the QMNIST project (github.com/facebookresearch/qmnist) into {folder}, beside "
        "MNIST's own idx files.",
        "Use mnist() without writers and split it by iid, dirichlet or classes_per_client.",
    ]
    return read_idx(find_file("mnist(by='writer')", paths, ways), SHA256[f"mnist/{_WRITERS}"])[:, _WRITER_COLUMN]
