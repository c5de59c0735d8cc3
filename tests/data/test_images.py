"""MNIST, Fashion-MNIST and CIFAR: what is read, and the errors for damaged and missing files."""

from __future__ import annotations

import gzip
import hashlib
import json
import pathlib
import struct
import subprocess
import sys

import numpy as np
import pytest

import jaxafl.data as data
from jaxafl.readers.archive import SHA256, read_idx
from tests.data.test_download import archive

CHECKOUT = pathlib.Path(data.__file__).resolve().parents[2]
FILES = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]
WRITERS = "qmnist-train-labels-idx2-int"
CIFAR10 = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
MEAN, STD = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2023, 0.1994, 0.2010])


def idx_bytes(array: np.ndarray, kind: int = 8) -> bytes:
    return bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def records(images: int, classes: tuple[int, ...]) -> bytes:
    """Records of label bytes, then planes R, G, B; every byte differs from its neighbours."""
    number = np.arange(images)
    plane, row, column = np.unravel_index(np.arange(3072), (3, 32, 32))
    pattern = (91 * plane + 7 * row + column).astype(np.uint8)
    labels = [(number % kinds).astype(np.uint8)[:, None] for kinds in classes]
    return np.concatenate([*labels, number.astype(np.uint8)[:, None] + pattern], axis=1).tobytes()


@pytest.fixture(scope="module")
def cifar100_folder(tmp_path_factory):
    """A folder `cifar-100-binary` with files of CIFAR-100's shape."""
    folder = tmp_path_factory.mktemp("cifar100") / "cifar100" / "cifar-100-binary"
    folder.mkdir(parents=True)
    for name, images in [("train.bin", 50_000), ("test.bin", 10_000)]:
        (folder / name).write_bytes(records(images, (20, 100)))
    return folder


def test_idx_arrays_come_back_in_native_byte_order(tmp_path):
    for array, kind in ((np.arange(24, dtype=np.uint8).reshape(2, 3, 4), 8), (np.array([[1, -2], [7, 4]], ">i4"), 12)):
        content = idx_bytes(array, kind)
        (tmp_path / "file.gz").write_bytes(gzip.compress(content))
        found = read_idx(tmp_path / "file.gz", hashlib.sha256(content).hexdigest())
        assert found.dtype == array.dtype.newbyteorder("=") and found.tolist() == array.tolist()


def test_cifar100_takes_the_fine_label_and_orders_pixels_by_row_column_channel(cifar100_folder):
    dataset = data.cifar100(cifar100_folder.parent.parent, augment=True)
    assert dataset.x.shape == (50_000, 32, 32, 3) and dataset.x_test.shape == (10_000, 32, 32, 3)
    assert dataset.x.dtype == np.uint8 and dataset.num_classes == 100 and dataset.source["source"] == "binary"
    for x, y in ((dataset.x, dataset.y), (dataset.x_test, dataset.y_test)):
        np.testing.assert_array_equal(y, np.arange(len(y)) % 100)
        for image, row, column, channel in [(0, 0, 0, 0), (3, 31, 2, 1), (9_999, 5, 30, 2)]:
            assert x[image, row, column, channel] == (image + 91 * channel + 7 * row + column) % 256
    assert dataset.preprocessing.augment == data.crop_and_flip()
    found = np.asarray(dataset.preprocessing.transform(dataset.x_test[:50]))
    np.testing.assert_allclose(found, (dataset.x_test[:50] / 255 - MEAN) / STD, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_the_archive_of_cifar_is_read_as_its_folder(cifar100_folder, tmp_path, monkeypatch):
    path = tmp_path / "cifar-100-binary.tar.gz"
    members = {f"cifar-100-binary/{name}": (cifar100_folder / name).read_bytes() for name in SHAPES}
    path.write_bytes(archive("gz", members, compresslevel=1))
    monkeypatch.setitem(SHA256, f"cifar100/{path.name}", hashlib.sha256(path.read_bytes()).hexdigest())
    np.testing.assert_array_equal(data.cifar100(tmp_path).y, np.arange(50_000) % 100)
    assert data.cifar100(cifar100_folder.parent).num_classes == 100  # directly in the data directory


SHAPES = {"train.bin": 50_000, "test.bin": 10_000}


@pytest.mark.parametrize(
    ("load", "files"),
    [
        (data.mnist, {f"mnist/{file}": idx_bytes(np.zeros(5, np.uint8)) for file in FILES}),
        (data.mnist, {f"{file}.gz": gzip.compress(bytes(90))[:-9] for file in FILES}),
        (data.cifar10, {f"cifar-10-batches-bin/{file}": bytes(30_730_000) for file in CIFAR10}),
        (data.cifar10, {"cifar10/cifar-10-binary.tar.gz": b"<html>not found</html>"}),
        (data.cifar100, {"cifar-100-binary.tar.gz": b"x"}),
        (data.cifar100, {f"cifar-100-binary/{file}": bytes(30_739_999) for file in SHAPES}),
    ],
)
def test_damaged_files_are_named(load, files, tmp_path):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    with pytest.raises((ValueError, FileNotFoundError), match=pathlib.Path(next(iter(files))).name + " is damaged"):
        load(tmp_path)


def test_a_dataset_in_parts_names_the_absent_files(tmp_path):
    (tmp_path / FILES[0]).write_bytes(b"")
    (tmp_path / f"{FILES[2]}.gz").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=rf"only part of mnist: {FILES[1]}, {FILES[3]} "):
        data.mnist(tmp_path)
    (tmp_path / "cifar-10-batches-bin").mkdir()
    for name in CIFAR10[2:]:
        (tmp_path / "cifar-10-batches-bin" / name).write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=r"only part of cifar10: data_batch_1\.bin, data_batch_2\.bin "):
        data.cifar10(tmp_path)


def test_the_data_directory_is_the_argument_else_the_environment_else_the_default_of_tfds(tmp_path, monkeypatch):
    def looked_in(argument):
        with pytest.raises(FileNotFoundError) as raised:
            data.mnist(argument)
        return str(raised.value)

    monkeypatch.setenv("JAXAFL_DATA_DIR", str(tmp_path / "environment"))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert str(tmp_path / "argument" / "mnist") in looked_in(tmp_path / "argument")
    assert str(tmp_path / "environment" / "mnist") in looked_in(None)
    monkeypatch.delenv("JAXAFL_DATA_DIR")
    assert str(tmp_path / "tfds" / "mnist") in looked_in(None)
    monkeypatch.delenv("TFDS_DATA_DIR")
    assert str(tmp_path / "home" / "tensorflow_datasets" / "mnist") in looked_in(None)


@pytest.mark.data
@pytest.mark.parametrize(
    ("load", "mean", "std", "histogram"),
    [
        (data.mnist, 0.1307, 0.3081, [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]),
        (data.fashion_mnist, 0.2860, 0.3530, [6000] * 10),
    ],
)
def test_the_real_mnist_and_fashion_mnist(data_dir, tmp_path, load, mean, std, histogram):
    dataset = load(data_dir)
    assert dataset.x.shape == (60000, 28, 28, 1) and dataset.x_test.shape == (10000, 28, 28, 1)
    assert dataset.x.dtype == np.uint8 and np.bincount(dataset.y).tolist() == histogram
    assert (dataset.x / 255.0).mean() == pytest.approx(mean, abs=5e-5)
    assert (dataset.x / 255.0).std() == pytest.approx(std, abs=5e-5)
    normalised = np.asarray(dataset.preprocessing.transform(dataset.x[:20000]))
    assert abs(normalised.mean()) < 0.02 and abs(normalised.std() - 1) < 0.02
    for file in FILES:  # unzipped, directly in the data directory
        (tmp_path / file).write_bytes(gzip.decompress((data_dir / load.__name__ / f"{file}.gz").read_bytes()))
    np.testing.assert_array_equal(load(tmp_path).x, dataset.x)
    other = data.fashion_mnist if load is data.mnist else data.mnist
    with pytest.raises(ValueError, match="expected SHA-256"):
        other(tmp_path)


@pytest.mark.data
def test_the_real_writers_of_mnist(data_dir, tmp_path):
    dataset, plain = data.mnist(data_dir, by="writer"), data.mnist(data_dir)
    federated = dataset.partition(data.by_user())
    assert federated.num_clients == 539 and federated.counts.sum() == 60_000
    assert (federated.counts.min(), federated.counts.max(), np.median(federated.counts)) == (19, 131, 116)
    np.testing.assert_array_equal(dataset.x, plain.x)
    # The first column of the same table is the class: row i of QMNIST is image i of MNIST.
    table = read_idx(data_dir / "mnist" / f"{WRITERS}.gz", SHA256[f"mnist/{WRITERS}"])
    np.testing.assert_array_equal(table[:, 0], plain.y)
    assert federated.description["users"] == "QMNIST writers" and "users" not in plain.source
    for file in FILES:
        (tmp_path / f"{file}.gz").symlink_to(data_dir / "mnist" / f"{file}.gz")
    with pytest.raises(FileNotFoundError, match=f"{WRITERS}.* of the QMNIST"):
        data.mnist(tmp_path, by="writer")


@pytest.fixture(scope="session")
def cifar10_dir(data_dir, tmp_path_factory) -> pathlib.Path:
    """A data directory with the canonical binary files of CIFAR-10."""
    if (data_dir / "cifar10" / "cifar-10-batches-bin").is_dir() or (data_dir / "cifar-10-batches-bin").is_dir():
        return data_dir
    tool = CHECKOUT.parent / "shared" / "tools" / "decode_cifar10.py"
    if not tool.is_file():
        pytest.skip(f"no CIFAR-10: {data_dir} holds no cifar-10-batches-bin")
    root = tmp_path_factory.mktemp("cifar10")
    subprocess.run([sys.executable, tool, root], check=True, capture_output=True)
    return root


@pytest.mark.data
@pytest.mark.slow
def test_the_real_cifar10(cifar10_dir, tmp_path, monkeypatch):
    dataset = data.cifar10(cifar10_dir)
    assert np.bincount(dataset.y).tolist() == [5_000] * 10 and np.bincount(dataset.y_test).tolist() == [1_000] * 10
    # The first images: a frog, a truck, a truck; of the test set: a cat, a ship, a ship.
    assert dataset.y[:3].tolist() == [6, 9, 9] and dataset.y_test[:3].tolist() == [3, 8, 8]
    mean, std = (getattr(np, name)(dataset.x, axis=(0, 1, 2), dtype=np.float64) / 255 for name in ("mean", "std"))
    np.testing.assert_allclose(mean, [0.49139968, 0.48215841, 0.44653091], atol=1e-8)
    np.testing.assert_allclose(std, [0.24703223, 0.24348513, 0.26158784], atol=1e-8)
    files = next(cifar10_dir.glob("**/cifar-10-batches-bin"))
    path = tmp_path / "cifar-10-binary.tar.gz"
    members = {f"cifar-10-batches-bin/{name}": (files / name).read_bytes() for name in reversed(CIFAR10)}
    path.write_bytes(archive("gz", members, compresslevel=1))
    monkeypatch.setitem(SHA256, f"cifar10/{path.name}", hashlib.sha256(path.read_bytes()).hexdigest())
    np.testing.assert_array_equal(data.cifar10(tmp_path).x, dataset.x)


def test_writers_need_the_order_of_the_canonical_files(tmp_path, monkeypatch):
    prepared = tmp_path / "mnist" / "3.0.1"
    prepared.mkdir(parents=True)
    (prepared / "dataset_info.json").write_text(json.dumps({"name": "mnist", "fileFormat": "array_record"}))
    (tmp_path / "mnist" / f"{WRITERS}.gz").write_bytes(b"")
    images, labels = np.zeros((2, 28, 28, 1), np.uint8), np.zeros(2, int)
    monkeypatch.setattr("jaxafl.data.sources.images.read_prepared", lambda *_: (images, labels))
    assert data.mnist(tmp_path).source["source"] == "tfds 3.0.1"
    with pytest.raises(FileNotFoundError, match="another order"):
        data.mnist(tmp_path, by="writer")
