"""MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100, from their canonical files."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import NamedTuple

import numpy as np

from jaxafl.data.dataset import Dataset, Source
from jaxafl.data.preprocessing import crop_and_flip, normalise
from jaxafl.options import check_choice, check_flag, named
from jaxafl.readers.archive import SHA256, check_sha256, damaged, read_content, read_idx
from jaxafl.readers.directory import Directory, MissingDataset, data_directory, find_files, missing_dataset
from jaxafl.readers.download import downloadable


@named
@downloadable
def mnist(data_dir: Directory = None, *, by: str | None = None, download: bool = False) -> Dataset:
    """Loads MNIST: 60,000 training and 10,000 test images of handwritten digits, 10 classes.

    The four canonical idx files (`train-images-idx3-ubyte` and so on, gzipped or not) are read from `<data_dir>/mnist`,
    else from `<data_dir>`.

    Args:
        data_dir: data directory; by default `$JAXAFL_DATA_DIR`, else TFDS's default.
        by: `"writer"` adds the writer of each training image, for `partition(by_user())`: 539 clients of 19 to 131
            images (median 116). It needs the file `qmnist-train-labels-idx2-int` of QMNIST (gzipped or not) next to
            the idx files.
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
    dataset = _load(_MNIST, data_dir)
    if by is None:
        return dataset
    directory = data_directory(data_dir)
    files = find_files("mnist(by='writer')", [(place, [_WRITERS]) for place in (directory / "mnist", directory)])
    if not files:
        raise MissingDataset(
            f"mnist(by='writer') needs {_WRITERS} (or *.gz) of the QMNIST project in {directory / 'mnist'}"
        )
    users = read_idx(files[0], SHA256[f"mnist/{_WRITERS}"])[:, _WRITER_COLUMN]
    source = {**dataset.source, "users": "QMNIST writers"}
    return dataclasses.replace(dataset, users=users, source=source, references=(*dataset.references, "yadav2019"))


@named
@downloadable
def fashion_mnist(data_dir: Directory = None, *, download: bool = False) -> Dataset:
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
    return _load(_FASHION_MNIST, data_dir)


@named
@downloadable
def cifar10(data_dir: Directory = None, *, augment: bool = False, download: bool = False) -> Dataset:
    """Loads CIFAR-10: 50,000 training and 10,000 test colour images of objects, 10 classes.

    The folder `cifar-10-batches-bin` (`data_batch_1.bin` to `data_batch_5.bin`, `test_batch.bin`), as the published
    archive `cifar-10-binary.tar.gz` unpacks it, is read from `<data_dir>/cifar10`, else from `<data_dir>`.

    Args:
        data_dir: data directory; by default `$JAXAFL_DATA_DIR`, else TFDS's default.
        augment: if True, crop and flip training images at random in the step, see `crop_and_flip`.
        download: if True, missing files are downloaded first, see `jaxafl.data.download`.

    Returns:
        The dataset: x uint8 `[50000, 32, 32, 3]` (RGB), normalised in the step per channel by mean (0.4914, 0.4822,
        0.4465), std (0.2023, 0.1994, 0.2010). Classes: airplane, automobile, bird, cat, deer, dog, frog, horse, ship,
        truck.

    Raises:
        FileNotFoundError: no place has the dataset, or one has only some of the files.
        ValueError: a file is damaged (the SHA-256 of its content is checked).

    References:
        Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", technical report, 2009.
    """
    return _load(_CIFAR10, data_dir, augment)


@named
@downloadable
def cifar100(data_dir: Directory = None, *, augment: bool = False, download: bool = False) -> Dataset:
    """Loads CIFAR-100: 50,000 training and 10,000 test colour images of objects, 100 (fine) classes.

    The search follows `cifar10`, with the folder `cifar-100-binary` (`train.bin`, `test.bin`) of the archive
    `cifar-100-binary.tar.gz`, in `<data_dir>/cifar100`, else in `<data_dir>`.

    Args:
        data_dir: data directory; by default `$JAXAFL_DATA_DIR`, else TFDS's default.
        augment: if True, crop and flip training images at random in the step, see `crop_and_flip`.
        download: if True, missing files are downloaded first, see `jaxafl.data.download`.

    Returns:
        The dataset: x uint8 `[50000, 32, 32, 3]` (RGB), normalised in the step by the constants of CIFAR-10, as usual
        in the federated literature.

    Raises:
        FileNotFoundError: no place has the dataset, or one has only some of the files.
        ValueError: a file is damaged (it is checked by size and labels).

    References:
        Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", technical report, 2009.
    """
    return _load(_CIFAR100, data_dir, augment)


class _Source(NamedTuple):
    """A dataset and its canonical files; the last files hold the test images."""

    name: str
    classes: int
    mean: float | tuple[float, ...]
    std: float | tuple[float, ...]
    reference: str
    files: tuple[str, ...]
    folder: str = ""  # of the unpacked archive


_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_WRITERS = "qmnist-train-labels-idx2-int"
_WRITER_COLUMN = 2  # of class, HSF series, writer, index of the digit for this writer, ...
_RGB = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010), "krizhevsky2009"
_BATCHES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
_MNIST = _Source("mnist", 10, 0.1307, 0.3081, "lecun1998", _IDX)
_FASHION_MNIST = _Source("fashion_mnist", 10, 0.2860, 0.3530, "xiao2017", _IDX)
_CIFAR10 = _Source("cifar10", 10, *_RGB, _BATCHES, "cifar-10-batches-bin")
_CIFAR100 = _Source("cifar100", 100, *_RGB, ("train.bin", "test.bin"), "cifar-100-binary")


def _load(source: _Source, data_dir: Directory, augment: bool = False) -> Dataset:
    """Returns the dataset from its canonical files."""
    name, directory = source.name, data_directory(data_dir)
    check_flag(name, "augment", augment)
    places = [directory / name / source.folder, directory / source.folder]
    paths = find_files(name, [(place, source.files) for place in places])
    if not paths:
        raise missing_dataset(
            name, places, [f"Put {', '.join(source.files)} (gzipped as *.gz or not) into {places[0]}."]
        )
    if source.folder:
        parts = [_decode(source, path) for path in paths]
        x, y = (np.concatenate(columns) for columns in zip(*parts[:-1], strict=True))
        x_test, y_test = parts[-1]
    else:
        sums = [SHA256[f"{name}/{file}"] for file in source.files]
        x, y, x_test, y_test = (read_idx(path, known) for path, known in zip(paths, sums, strict=True))
        x, x_test = x[..., None], x_test[..., None]
    scale = normalise(255.0, source.mean, source.std, augment=crop_and_flip() if augment else None)
    said: Source = {"source": "binary" if source.folder else "idx"}
    return Dataset(name, x, y, x_test, y_test, source.classes, scale, None, said, (source.reference,))


def _decode(source: _Source, path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """Decodes one file to images uint8 `[n, 32, 32, 3]` and labels uint8 `[n]`.

    A record is the label to learn, after a coarse label in CIFAR-100, and 3072 pixel bytes (planes R, G, B).
    """
    content, name = read_content(path), path.name.removesuffix(".gz")
    check_sha256(path, content, SHA256.get(f"{source.name}/{name}"))
    header = 1 if source.classes == 10 else 2
    images = 10_000 if name.startswith("test") else 50_000 // (len(source.files) - 1)
    if len(content) != images * (header + 3072):
        raise damaged(path, f"expected {images} records of {header + 3072} bytes; it has {len(content)} bytes")
    records = np.frombuffer(content, np.uint8).reshape(images, -1)
    planes = records[:, header:].reshape(images, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), records[:, header - 1]
