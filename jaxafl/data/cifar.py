"""CIFAR-10 and CIFAR-100, from the canonical binary files, their archive, or TensorFlow Datasets."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib

import numpy as np

from jaxafl.checks import check_flag
from jaxafl.data.archive import damaged, read_members
from jaxafl.data.augmentation import crop_and_flip
from jaxafl.data.dataset import Dataset
from jaxafl.data.directory import data_directory
from jaxafl.data.image_source import Images, find_images, partial_dataset
from jaxafl.data.preprocessing import normalise


def cifar10(data_dir: str | os.PathLike[str] | None = None, *, augment: bool = False) -> Dataset:
    """CIFAR-10: 50,000 training and 10,000 test colour images of objects, 10 classes.

    Looked for in this order in the data directory: in `<data_dir>/cifar10`, then in `<data_dir>` itself, the folder
    `cifar-10-batches-bin` (`data_batch_1.bin` to `data_batch_5.bin`, `test_batch.bin`) or the archive
    `cifar-10-binary.tar.gz`, which is read in memory and not unpacked (and is used too where the folder beside it lacks
    files); then `<data_dir>/cifar10/<version>` as prepared by TensorFlow Datasets (see `prepare_tfds`), which is read
    without TensorFlow. Every route gives the same images in the same order.

    Args:
        data_dir: Data directory; by default `$JAXAFL_DATA_DIR`, else TFDS's own default.
        augment: Crop and flip training images at random in the step, see `crop_and_flip`.

    Returns:
        The dataset: x uint8 `[50000, 32, 32, 3]` (RGB), normalised in the step per channel by mean (0.4914, 0.4822,
        0.4465), std (0.2023, 0.1994, 0.2010). Classes: airplane, automobile, bird, cat, deer, dog, frog, horse, ship,
        truck.

    Raises:
        FileNotFoundError: If it is in none of these places, or only some of the files are there.
        ValueError: If a file is damaged (its content is checked against the SHA-256 of the canonical one).

    References:
        Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", technical report, 2009.
    """
    return _load(_CIFAR10, data_dir, augment)


def cifar100(data_dir: str | os.PathLike[str] | None = None, *, augment: bool = False) -> Dataset:
    """CIFAR-100: 50,000 training and 10,000 test colour images of objects, 100 (fine) classes.

    Found as `cifar10` is: the folder `cifar-100-binary` (`train.bin`, `test.bin`) or the archive
    `cifar-100-binary.tar.gz`, in `<data_dir>/cifar100`, then in `<data_dir>`; then TensorFlow Datasets.

    Args:
        data_dir: Data directory; by default `$JAXAFL_DATA_DIR`, else TFDS's own default.
        augment: Crop and flip training images at random in the step, see `crop_and_flip`.

    Returns:
        The dataset: x uint8 `[50000, 32, 32, 3]` (RGB), normalised in the step by the constants of CIFAR-10, as is
        usual in the federated literature.

    Raises:
        FileNotFoundError: If it is in none of these places, or only some of the files are there.
        ValueError: If a file is damaged (the archive is checked against the SHA-256 of the canonical one, unpacked
            files by their size and labels).

    References:
        Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", technical report, 2009.
    """
    return _load(_CIFAR100, data_dir, augment)


@dataclasses.dataclass(frozen=True)
class _File:
    """One canonical file: `images` records of label bytes and 3072 pixel bytes (planes R, G, B)."""

    name: str
    images: int
    sha256: str | None = None


@dataclasses.dataclass(frozen=True)
class _Source:
    """What tells CIFAR-100 from CIFAR-10; each record begins with one label byte per entry of `labels`."""

    name: str
    folder: str
    archive: str
    archive_sha256: str | None
    labels: tuple[int, ...]  # number of classes of each label; the last is the label to learn
    train: tuple[_File, ...]
    test: _File


_CIFAR10 = _Source(
    "cifar10",
    "cifar-10-batches-bin",
    "cifar-10-binary.tar.gz",
    None,  # its members are checked one by one
    (10,),
    (
        _File("data_batch_1.bin", 10_000, "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
        _File("data_batch_2.bin", 10_000, "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
        _File("data_batch_3.bin", 10_000, "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
        _File("data_batch_4.bin", 10_000, "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
        _File("data_batch_5.bin", 10_000, "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
    ),
    _File("test_batch.bin", 10_000, "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
)

_CIFAR100 = _Source(
    "cifar100",
    "cifar-100-binary",
    "cifar-100-binary.tar.gz",
    "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    (20, 100),
    (_File("train.bin", 50_000),),
    _File("test.bin", 10_000),
)

_PIXELS = 3 * 32 * 32


def _load(source: _Source, data_dir: str | os.PathLike[str] | None, augment: bool) -> Dataset:
    check_flag(source.name, "augment", augment)
    images = find_images(
        source.name,
        data_directory(data_dir),
        lambda directory: _read_binary(source, directory),
        f"the canonical archive {source.archive}, or its folder {source.folder},",
        numbered=True,
    )
    augmentation = crop_and_flip() if augment else None
    preprocessing = normalise(255.0, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010), augment=augmentation)
    return Dataset(
        source.name,
        images.x,
        images.y,
        images.x_test,
        images.y_test,
        source.labels[-1],
        preprocessing,
        source={"source": images.route},
        references=("krizhevsky2009",),
    )


def _read_binary(source: _Source, directory: pathlib.Path) -> Images | None:
    """The first of the canonical folders and archives that is there."""
    files = (*source.train, source.test)
    for place in (directory / source.name, directory):
        folder, archive = place / source.folder, place / source.archive
        absent = [file.name for file in files if not (folder / file.name).is_file()]
        if not absent:
            contents, origin = [(folder / file.name).read_bytes() for file in files], folder
        elif archive.is_file():
            contents, origin = _unpack(source, archive), archive
        elif len(absent) < len(files):
            raise partial_dataset(folder, source.name, ", ".join(absent))
        else:
            continue
        parts = [_decode(source, file, content, origin) for file, content in zip(files, contents, strict=True)]
        x, y = (np.concatenate(columns) for columns in zip(*parts[:-1], strict=True))
        return Images("binary", x, y, *parts[-1])
    return None


def _unpack(source: _Source, archive: pathlib.Path) -> list[bytes]:
    if source.archive_sha256 is not None:
        with archive.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != source.archive_sha256:
            raise damaged(
                archive,
                f"expected SHA-256 {source.archive_sha256}; found {found} ({archive.stat().st_size} bytes)",
            )
    return read_members(archive, [f"{source.folder}/{file.name}" for file in (*source.train, source.test)])


def _decode(source: _Source, file: _File, content: bytes, origin: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 `[n, 32, 32, 3]` and labels uint8 `[n]` of one file."""
    path = origin / file.name
    header = len(source.labels)
    expected = file.images * (header + _PIXELS)
    if len(content) != expected:
        raise damaged(
            path, f"expected {expected} bytes ({file.images} records of {header + _PIXELS}); it has {len(content)}"
        )
    records = np.frombuffer(content, np.uint8).reshape(file.images, header + _PIXELS)
    for column, classes in enumerate(source.labels):
        if records[:, column].max() >= classes:
            raise damaged(
                path,
                f"expected labels 0..{classes - 1} in byte {column} of each record; found {records[:, column].max()}",
            )
    if file.sha256 is not None and (found := hashlib.sha256(content).hexdigest()) != file.sha256:
        raise damaged(path, f"expected SHA-256 {file.sha256}; found {found}")
    planes = records[:, header:].reshape(file.images, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), records[:, header - 1]
