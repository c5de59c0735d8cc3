"""FEMNIST: ten writers without any files, more from the data directory."""

from __future__ import annotations

import importlib.resources

import numpy as np
import pytest

import jaxafl.data as data

# Samples of the ten shipped writers.
TRAIN = [320, 284, 164, 164, 163, 163, 162, 161, 160, 160]


@pytest.fixture
def no_data_dir(monkeypatch, tmp_path):
    monkeypatch.setenv("JAXAFL_DATA_DIR", str(tmp_path))
    return tmp_path


def test_ten_writers_ship_with_the_package(no_data_dir):
    federated = data.femnist()
    assert federated.counts.tolist() == TRAIN
    x_test, y_test = federated.test_arrays()
    assert x_test.shape == (217, 28, 28, 1) and x_test.dtype == np.uint8
    assert federated.arrays["x"].shape == (1901, 28, 28, 1) and federated.arrays["x"].dtype == np.uint8
    assert federated.num_classes == 62
    labels = np.concatenate([federated.arrays["y"], y_test])
    assert labels.min() == 0 and labels.max() == 61
    assert federated.description["source"] == "femnist_10writers.npz"


def test_paper_is_one_and_ink_is_dark(no_data_dir):
    federated = data.femnist()
    x, _ = federated.example
    assert x.dtype == np.float32 and x.shape == (1, 28, 28, 1)
    assert x.max() == 1.0 and x.min() >= 0.0
    corners = np.asarray(federated.preprocess(federated.x_test))[:, 0, 0, 0]
    assert np.median(corners) == 1.0


def test_fewer_clients_are_the_first_of_more(no_data_dir):
    few, ten = data.femnist(3), data.femnist(10)
    assert few.counts.tolist() == TRAIN[:3]
    np.testing.assert_array_equal(few.arrays["x"], ten.arrays["x"][: few.counts.sum()])
    assert len(few.y_test) < len(ten.y_test)
    np.testing.assert_array_equal(few.x_test, ten.x_test[: len(few.y_test)])


def test_the_shipped_file_is_small():
    file = importlib.resources.files("jaxafl.data").joinpath("files", "femnist_10writers.npz")
    assert len(file.read_bytes()) < 2**20


def test_more_writers_without_the_larger_file_is_one_clear_error(no_data_dir):
    with pytest.raises(FileNotFoundError) as raised:
        data.femnist(11)
    message = str(raised.value)
    assert "femnist with 11 writers" in message
    assert str(no_data_dir / "femnist" / "femnist_207writers.npz") in message
    assert "clients=10 or fewer" in message and "JAXAFL_DATA_DIR" in message


def test_all_writers_without_any_file_is_an_error_not_the_ten(no_data_dir):
    with pytest.raises(FileNotFoundError, match="femnist with all writers") as raised:
        data.femnist(None)
    assert str(no_data_dir / "femnist" / "train") in str(raised.value) and "preprocess.sh" in str(raised.value)


def test_a_damaged_larger_file_is_refused(no_data_dir):
    (no_data_dir / "femnist").mkdir()
    (no_data_dir / "femnist" / "femnist_207writers.npz").write_bytes(b"not an npz file")
    with pytest.raises(ValueError, match=r"femnist_207writers\.npz is damaged: expected SHA-256"):
        data.femnist(11)


@pytest.mark.data
def test_the_larger_file_gives_the_same_ten_writers_first(data_dir):
    shipped, more = data.femnist(10), data.femnist(207, data_dir=data_dir)
    assert more.num_clients == 207
    assert more.counts.sum() == 28237 and len(more.y_test) == 3245
    assert more.counts[:10].tolist() == TRAIN
    assert (np.diff(more.counts[10:]) <= 0).all()
    for client in range(10):
        rows, more_rows = (
            federated.arrays["index"][federated.arrays["offset"][client] :][: federated.counts[client]]
            for federated in (shipped, more)
        )
        np.testing.assert_array_equal(shipped.arrays["x"][rows], more.arrays["x"][more_rows])
        np.testing.assert_array_equal(shipped.arrays["y"][rows], more.arrays["y"][more_rows])


@pytest.mark.data
def test_more_writers_than_there_are(data_dir):
    with pytest.raises(ValueError, match="208 clients asked for"):
        data.femnist(208, data_dir=data_dir)


@pytest.mark.data
def test_all_writers_of_the_larger_file(data_dir):
    every = data.femnist(None, data_dir=data_dir)
    histogram = np.bincount(every.arrays["y"], minlength=62)
    assert every.num_clients == 207 and (every.counts.min(), every.counts.max()) == (2, 320)
    assert np.median(every.counts) == 150
    assert histogram.sum() == 28237 and (histogram > 0).all()
    assert every.description["source"] == "femnist_207writers.npz"
