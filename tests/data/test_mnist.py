"""MNIST and Fashion-MNIST from idx files: what is read, and what is said when it cannot be."""

from __future__ import annotations

import gzip
import json
import shutil
import struct

import numpy as np
import pytest

import jaxafl.data as data
from jaxafl.readers.archive import read_idx

FILES = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]


def idx_bytes(array: np.ndarray, kind: int = 8) -> bytes:
    return bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def test_idx_arrays_come_back_in_native_byte_order(tmp_path):
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    (tmp_path / "pixels.gz").write_bytes(gzip.compress(idx_bytes(pixels)))
    np.testing.assert_array_equal(read_idx(tmp_path / "pixels.gz"), pixels)
    numbers = np.array([[1, -2], [70000, 4]], ">i4")
    (tmp_path / "numbers").write_bytes(idx_bytes(numbers, 0x0C))
    read = read_idx(tmp_path / "numbers")
    assert read.dtype == np.int32 and read.tolist() == [[1, -2], [70000, 4]]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("cut.gz", gzip.compress(idx_bytes(np.arange(99, dtype=np.uint8)))[:-20], "complete gzip file"),
        ("text.gz", b"<html>not found</html>", "complete gzip file"),
        ("text", b"<html>not found</html>", "idx header"),
        ("short", idx_bytes(np.arange(99, dtype=np.uint8))[:-1], "expected 107 bytes .* has 106"),
        ("long", idx_bytes(np.arange(99, dtype=np.uint8)) + b"x", "expected 107 bytes .* has 108"),
        ("head", b"\0\0\x08\x03\0\0", "header of 16 bytes"),
        ("empty", b"", "idx header"),
    ],
)
def test_a_damaged_file_is_named_with_what_was_expected(tmp_path, file, content, message):
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ValueError, match=message) as raised:
        read_idx(tmp_path / file)
    assert str(tmp_path / file) in str(raised.value)


def test_content_that_is_not_the_canonical_one_is_refused(tmp_path):
    """Well-formed idx files of the right shape, but other pixels."""
    (tmp_path / "mnist").mkdir()
    for file, shape in zip(FILES, [(60000, 28, 28), (60000,), (10000, 28, 28), (10000,)], strict=True):
        (tmp_path / "mnist" / file).write_bytes(idx_bytes(np.zeros(shape, np.uint8)))
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte is damaged: expected SHA-256 ba8910"):
        data.mnist(tmp_path)


@pytest.mark.parametrize("load", [data.mnist, data.fashion_mnist])
def test_a_missing_dataset_is_one_clear_error(load, tmp_path, monkeypatch):
    monkeypatch.setenv("JAXAFL_DATA_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError) as raised:
        load()
    message = str(raised.value)
    assert repr(load.__name__) in message
    assert f"{tmp_path / 'nowhere' / load.__name__} (does not exist)" in message
    assert "train-images-idx3-ubyte" in message and "prepare_tfds" in message and "JAXAFL_DATA_DIR" in message


def test_a_dataset_in_parts_says_what_is_missing(tmp_path):
    (tmp_path / FILES[0]).write_bytes(b"")
    (tmp_path / f"{FILES[2]}.gz").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=rf"only part of mnist: {FILES[1]}, {FILES[3]} .*\. Add .*, or remove"):
        data.mnist(tmp_path)


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
def test_the_real_sets(data_dir, load, mean, std, histogram):
    dataset = load(data_dir)
    assert dataset.x.shape == (60000, 28, 28, 1) and dataset.x_test.shape == (10000, 28, 28, 1)
    assert dataset.x.dtype == np.uint8
    assert np.bincount(dataset.y).tolist() == histogram
    assert (dataset.x / 255.0).mean() == pytest.approx(mean, abs=5e-5)
    assert (dataset.x / 255.0).std() == pytest.approx(std, abs=5e-5)
    normalised = np.asarray(dataset.preprocessing.transform(dataset.x[:20000]))
    assert abs(normalised.mean()) < 0.02 and abs(normalised.std() - 1) < 0.02
    if load is data.mnist:
        assert np.bincount(dataset.y_test).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert dataset.partition(data.iid(100)).counts.tolist() == [600] * 100


WRITERS = "qmnist-train-labels-idx2-int"


def test_writers_that_are_not_there_say_where_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXAFL_DATA_DIR", str(tmp_path))
    with pytest.raises(FileNotFoundError) as raised:
        data.mnist(by="writer")
    message = str(raised.value)
    assert f"{tmp_path / 'mnist' / WRITERS}.gz (does not exist)" in message
    assert "QMNIST" in message and "mnist() without writers" in message


def test_writers_cannot_be_told_in_the_order_of_tfds(tmp_path):
    prepared = tmp_path / "mnist" / "3.0.1"
    prepared.mkdir(parents=True)
    (prepared / "dataset_info.json").write_text(json.dumps({"name": "mnist", "fileFormat": "array_record"}))
    (tmp_path / "mnist" / f"{WRITERS}.gz").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=r"in another order than QMNIST numbers them\. Put train-images"):
        data.mnist(tmp_path, by="writer")


def test_damaged_writers_are_refused(tmp_path):
    (tmp_path / WRITERS).write_bytes(idx_bytes(np.zeros((60000, 8), ">i4"), 0x0C))
    with pytest.raises(ValueError, match=rf"{WRITERS} is damaged: expected SHA-256 bb1b6e1e"):
        data.mnist(tmp_path, by="writer")


def test_by_is_writer_or_nothing(tmp_path):
    with pytest.raises(ValueError, match="mnist: by must be one of None, 'writer', got 'user'"):
        data.mnist(tmp_path, by="user")


@pytest.mark.data
def test_the_real_writers(data_dir):
    dataset, plain = data.mnist(data_dir, by="writer"), data.mnist(data_dir)
    federated = dataset.partition(data.by_user())
    assert federated.num_clients == 539
    assert (federated.counts.min(), federated.counts.max(), np.median(federated.counts)) == (19, 131, 116)
    assert federated.counts.sum() == 60_000
    np.testing.assert_array_equal(dataset.x, plain.x)
    # The first column of the same table is the class: row i of QMNIST is image i of MNIST.
    np.testing.assert_array_equal(read_idx(data_dir / "mnist" / f"{WRITERS}.gz")[:, 0], plain.y)
    assert federated.description["users"] == "QMNIST writers" and "users" not in plain.source
    first = federated.arrays["index"][: federated.counts[0]]
    assert len(set(dataset.users[first])) == 1 and (np.diff(first) > 0).all()


@pytest.mark.data
def test_unzipped_files_directly_in_the_data_directory(data_dir, tmp_path):
    for file in FILES:
        (tmp_path / file).write_bytes(gzip.decompress((data_dir / "mnist" / f"{file}.gz").read_bytes()))
    found, expected = data.mnist(tmp_path), data.mnist(data_dir)
    np.testing.assert_array_equal(found.x, expected.x)
    np.testing.assert_array_equal(found.y_test, expected.y_test)


@pytest.mark.data
def test_the_files_of_another_dataset_are_refused(data_dir, tmp_path):
    shutil.copytree(data_dir / "fashion_mnist", tmp_path / "mnist")
    with pytest.raises(ValueError, match="expected SHA-256"):
        data.mnist(tmp_path)
