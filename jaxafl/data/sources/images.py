"""MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100, from their canonical files or from TensorFlow Datasets."""

from __future__ import annotations

import dataclasses
import pathlib
import tarfile
from typing import IO, NamedTuple, cast

import numpy as np

from jaxafl.data.dataset import Dataset
from jaxafl.data.preprocessing import crop_and_flip, normalise
from jaxafl.options import check_choice, check_flag, named
from jaxafl.readers.archive import SHA256, check_sha256, damaged, read_idx
from jaxafl.readers.directory import Directory, MissingDataset, data_directory, find_files, missing_dataset
from jaxafl.readers.download import downloadable
from jaxafl.readers.tfds_source import how_to_prepare, prepared_directory, read_prepared


@named
@downloadable
def mnist(data_dir: Directory = None, *, by: str | None = None, download: bool = False) -> Dataset:
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
    dataset = _load(_MNIST, data_dir)
    if by is None:
        return dataset
    directory = data_directory(data_dir)
    files = find_files("mnist(by='writer')", [(place, [_WRITERS]) for place in (directory / "mnist", directory)])
    if not files or dataset.source["source"] != "idx":
        raise MissingDataset(
            f"mnist(by='writer') needs {_WRITERS} (or *.gz) of the QMNIST project in {directory / 'mnist'}, beside the "
            "canonical idx files. TensorFlow Datasets stores the images in another order"
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

    The places are searched in this order; every one gives the same images in the same order:

    1. in `<data_dir>/cifar10`, then in `<data_dir>`: the archive `cifar-10-binary.tar.gz`, which is read in memory, or
       the folder `cifar-10-batches-bin` (`data_batch_1.bin` to `data_batch_5.bin`, `test_batch.bin`);
    2. `<data_dir>/cifar10/<version>`, prepared by TensorFlow Datasets (see `prepare_tfds`) and read without TensorFlow.

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

    The search follows `cifar10`: the archive `cifar-100-binary.tar.gz` or the folder `cifar-100-binary` (`train.bin`,
    `test.bin`), in `<data_dir>/cifar100`, then in `<data_dir>`; then TensorFlow Datasets.

    Args:
        data_dir: data directory; by default `$JAXAFL_DATA_DIR`, else TFDS's default.
        augment: if True, crop and flip training images at random in the step, see `crop_and_flip`.
        download: if True, missing files are downloaded first, see `jaxafl.data.download`.

    Returns:
        The dataset: x uint8 `[50000, 32, 32, 3]` (RGB), normalised in the step by the constants of CIFAR-10, as usual
        in the federated literature.

    Raises:
        FileNotFoundError: no place has the dataset, or one has only some of the files.
        ValueError: a file is damaged (an archive is checked by its SHA-256, unpacked files by size and labels).

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
    folder: str = ""  # in the archive `<archive>.tar.gz`, or beside it
    archive: str = ""


_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_WRITERS = "qmnist-train-labels-idx2-int"
_WRITER_COLUMN = 2  # of class, HSF series, writer, index of the digit for this writer, ...
_RGB = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010), "krizhevsky2009"
_BATCHES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
_MNIST = _Source("mnist", 10, 0.1307, 0.3081, "lecun1998", _IDX)
_FASHION_MNIST = _Source("fashion_mnist", 10, 0.2860, 0.3530, "xiao2017", _IDX)
_CIFAR10 = _Source("cifar10", 10, *_RGB, _BATCHES, "cifar-10-batches-bin", "cifar-10-binary.tar.gz")
_CIFAR100 = _Source("cifar100", 100, *_RGB, ("train.bin", "test.bin"), "cifar-100-binary", "cifar-100-binary.tar.gz")

Arrays = list[np.ndarray]
"""x uint8 `[n, H, W, C]`, y, x_test, y_test; empty if no files exist."""


def _load(source: _Source, data_dir: Directory, augment: bool = False) -> Dataset:
    """Returns the dataset from the canonical files, else from TFDS."""
    name, directory = source.name, data_directory(data_dir)
    check_flag(name, "augment", augment)
    route, read = ("binary", _read_binary) if source.archive else ("idx", _read_idx)
    arrays = read(source, directory)
    if not arrays:
        prepared = prepared_directory(name, directory)
        if prepared is None:
            files = source.archive or f"the four canonical files ({', '.join(_IDX)}; gzipped as *.gz or not)"
            ways = [f"Put {files} into {directory / name}.", how_to_prepare(name)]
            raise missing_dataset(name, [directory / name, directory], ways)
        route = f"tfds {prepared.name}"
        for split in ("train", "test"):
            x, y, *ids = read_prepared(prepared, split, "image", "label", *(["id"] if source.archive else []))
            order = np.argsort(ids[0]) if ids else slice(None)  # TFDS numbers the images of CIFAR by `id`
            arrays += [x[order], y[order]]
    scale = normalise(255.0, source.mean, source.std, augment=crop_and_flip() if augment else None)
    x, y, x_test, y_test = arrays
    return Dataset(name, x, y, x_test, y_test, source.classes, scale, None, {"source": route}, (source.reference,))


def _read_idx(source: _Source, directory: pathlib.Path) -> Arrays:
    paths = find_files(source.name, [(place, _IDX) for place in (directory / source.name, directory)])
    arrays = [read_idx(path, SHA256[f"{source.name}/{file}"]) for path, file in zip(paths, _IDX, strict=False)]
    return [array[..., None] if array.ndim == 3 else array for array in arrays]


def _read_binary(source: _Source, directory: pathlib.Path) -> Arrays:
    """Reads the first archive or folder of CIFAR that exists."""
    for place in (directory / source.name, directory):
        path = place / source.archive
        if path.is_file():
            check_sha256(path, path.read_bytes(), SHA256.get(f"{source.name}/{path.name}"))
            with tarfile.open(path) as archive:
                members = {member.name.removeprefix("./"): member for member in archive}
                streams = [archive.extractfile(members[f"{source.folder}/{file}"]) for file in source.files]
                contents = [cast(IO[bytes], stream).read() for stream in streams]
        elif files := find_files(source.name, [(place / source.folder, source.files)]):
            contents = [file.read_bytes() for file in files]
        else:
            continue
        parts = [_decode(source, file, content) for file, content in zip(source.files, contents, strict=True)]
        x, y = (np.concatenate(columns) for columns in zip(*parts[:-1], strict=True))
        return [x, y, *parts[-1]]
    return []


def _decode(source: _Source, file: str, content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Decodes one file to images uint8 `[n, 32, 32, 3]` and labels uint8 `[n]`.

    A record is the label to learn, after a coarse label in CIFAR-100, and 3072 pixel bytes (planes R, G, B).
    """
    check_sha256(file, content, SHA256.get(f"{source.name}/{file}"))
    header = 1 if source.classes == 10 else 2
    images = 10_000 if file.startswith("test") else 50_000 // (len(source.files) - 1)
    if len(content) != images * (header + 3072):
        raise damaged(file, f"expected {images} records of {header + 3072} bytes; it has {len(content)} bytes")
    records = np.frombuffer(content, np.uint8).reshape(images, -1)
    planes = records[:, header:].reshape(images, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), records[:, header - 1]
