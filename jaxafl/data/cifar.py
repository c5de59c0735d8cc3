"""CIFAR-10 and CIFAR-100, from the canonical binary files, their archive, or TensorFlow Datasets."""

from __future__ import annotations

import os
import pathlib
from typing import NamedTuple

import numpy as np

from jaxafl.data.dataset import Dataset
from jaxafl.data.images import Images, images_of
from jaxafl.data.preprocessing import crop_and_flip, normalise
from jaxafl.options import check_flag, named
from jaxafl.readers.archive import SHA256, check_sha256, damaged, partial_dataset, read_members
from jaxafl.readers.directory import data_directory
from jaxafl.readers.download import downloadable


@named
@downloadable
def cifar10(
    data_dir: str | os.PathLike[str] | None = None, *, augment: bool = False, download: bool = False
) -> Dataset:
    """Loads CIFAR-10: 50,000 training and 10,000 test colour images of objects, 10 classes.

    The places are searched in this order; every one gives the same images in the same order:

    1. in `<data_dir>/cifar10`, then in `<data_dir>`: the folder `cifar-10-batches-bin` (`data_batch_1.bin` to
       `data_batch_5.bin`, `test_batch.bin`), or the archive `cifar-10-binary.tar.gz`. The archive is read in memory. It
       is also used if the folder next to it lacks files;
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
def cifar100(
    data_dir: str | os.PathLike[str] | None = None, *, augment: bool = False, download: bool = False
) -> Dataset:
    """Loads CIFAR-100: 50,000 training and 10,000 test colour images of objects, 100 (fine) classes.

    The search follows `cifar10`: the folder `cifar-100-binary` (`train.bin`, `test.bin`) or the archive
    `cifar-100-binary.tar.gz`, in `<data_dir>/cifar100`, then in `<data_dir>`; then TensorFlow Datasets.

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
    """Format of one of the two datasets.

    A record has one label byte per entry of `labels`, and 3072 pixel bytes (planes R, G, B). The last file holds the
    10,000 test images, the others the 50,000 training images.
    """

    name: str
    folder: str
    archive: str
    labels: tuple[int, ...]  # number of classes of each label; the last is the label to learn
    files: tuple[str, ...]


_CIFAR10 = _Source(
    "cifar10",
    "cifar-10-batches-bin",
    "cifar-10-binary.tar.gz",
    (10,),
    (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"),
)

_CIFAR100 = _Source(
    "cifar100",
    "cifar-100-binary",
    "cifar-100-binary.tar.gz",
    (20, 100),
    ("train.bin", "test.bin"),
)

_PIXELS = 3 * 32 * 32


def _load(source: _Source, data_dir: str | os.PathLike[str] | None, augment: bool) -> Dataset:
    check_flag(source.name, "augment", augment)
    directory = data_directory(data_dir)
    augmentation = crop_and_flip() if augment else None
    canonical = _read_binary(source, directory)
    files = f"the canonical archive {source.archive}, or its folder {source.folder},"
    route, (x, y, x_test, y_test) = images_of(source.name, directory, canonical, files, numbered=True)
    scale = normalise(255.0, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010), augment=augmentation)
    classes = source.labels[-1]
    said: dict[str, str | int | float] = {"source": route}
    return Dataset(source.name, x, y, x_test, y_test, classes, scale, None, said, ("krizhevsky2009",))


def _read_binary(source: _Source, directory: pathlib.Path) -> Images | None:
    """Reads the first canonical folder or archive that exists; `None` if none does."""
    for place in (directory / source.name, directory):
        folder, archive = place / source.folder, place / source.archive
        absent = [file for file in source.files if not (folder / file).is_file()]
        if not absent:
            contents = [(folder / file).read_bytes() for file in source.files]
            origin = folder
        elif archive.is_file():
            check_sha256(archive, archive.read_bytes(), SHA256.get(f"{source.name}/{archive.name}"))
            contents = read_members(archive, [f"{source.folder}/{file}" for file in source.files])
            origin = archive
        elif len(absent) < len(source.files):
            raise partial_dataset(folder, source.name, ", ".join(absent))
        else:
            continue
        parts = [_decode(source, origin / file, content) for file, content in zip(source.files, contents, strict=True)]
        x, y = (np.concatenate(columns) for columns in zip(*parts[:-1], strict=True))
        return "binary", [x, y, *parts[-1]]
    return None


def _decode(source: _Source, path: pathlib.Path, content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Decodes one file to images uint8 `[n, 32, 32, 3]` and labels uint8 `[n]`."""
    header = len(source.labels)
    record = header + _PIXELS
    images = 10_000 if path.name.startswith("test") else 50_000 // (len(source.files) - 1)
    if len(content) != images * record:
        raise damaged(path, f"expected {images * record} bytes ({images} records of {record}); it has {len(content)}")
    records = np.frombuffer(content, np.uint8).reshape(images, record)
    for column, classes in enumerate(source.labels):
        if (largest := records[:, column].max()) >= classes:
            expected = f"expected labels 0..{classes - 1} in byte {column} of each record"
            raise damaged(path, f"{expected}; found {largest}")
    check_sha256(path, content, SHA256.get(f"{source.name}/{path.name}"))
    planes = records[:, header:].reshape(images, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), records[:, header - 1]
