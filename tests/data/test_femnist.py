"""FEMNIST: ten writers without any files, more from LEAF's json or an npz file in the data directory."""

from __future__ import annotations

import gzip
import importlib.resources
import io
import json

import numpy as np
import pytest

import jaxafl.data as data

SHIPPED = [320, 284, 164, 164, 163, 163, 162, 161, 160, 160]  # training samples of the shipped writers
RNG = np.random.default_rng(0)


def writer(count: int) -> tuple[np.ndarray, np.ndarray]:
    return RNG.integers(0, 256, (count, 784), np.uint8), RNG.integers(0, 62, count)


TRAIN = {"ann": writer(3), "bob": writer(5), "cid": writer(4), "dan": writer(4)} | {
    f"e{i}": writer(1) for i in range(9)
}
TEST = {user: writer(1) for user in TRAIN}


def leaf_json(samples) -> str:
    users = {user: {"x": (x / 255.0).tolist(), "y": y.tolist()} for user, (x, y) in samples.items()}
    return json.dumps({"users": list(samples), "num_samples": [], "user_data": users})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXAFL_DATA_DIR", str(tmp_path))
    return tmp_path / "femnist"


def write(folder, train=TRAIN, test=TEST):
    for half, samples in (("train", train), ("test", test)):
        (folder / half).mkdir(parents=True, exist_ok=True)
        (folder / half / f"all_data_0_{half}_9.json").write_text(leaf_json(samples))


def by_client(federated):
    x, y = federated.arrays["x"], federated.arrays["y"]
    for offset, count in zip(federated.arrays["offset"], federated.counts, strict=True):
        rows = federated.arrays["index"][offset : offset + count]
        yield x[rows].reshape(count, 784), y[rows]


def assert_equal_clients(one, other):
    for (x, y), (x_other, y_other) in zip(by_client(one), by_client(other), strict=False):
        np.testing.assert_array_equal(x, x_other)
        np.testing.assert_array_equal(y, y_other)


def test_ten_writers_ship_with_the_package(folder):
    federated = data.femnist()
    assert federated.counts.tolist() == SHIPPED and len(set(federated.client_names.tolist())) == 10
    assert federated.x_test.shape == (217, 28, 28, 1) and federated.arrays["x"].shape == (1901, 28, 28, 1)
    assert federated.arrays["x"].dtype == federated.x_test.dtype == np.uint8
    labels = np.concatenate([federated.arrays["y"], federated.y_test])
    assert (labels.min(), labels.max(), federated.num_classes) == (0, 61, 62)
    x, _ = federated.example  # paper is one and ink is dark
    assert x.dtype == np.float32 and x.max() == 1.0 and x.min() >= 0.0
    assert np.median(np.asarray(federated.preprocess(federated.x_test))[:, 0, 0, 0]) == 1.0
    few = data.femnist(3)
    assert few.counts.tolist() == SHIPPED[:3]
    assert_equal_clients(few, federated)
    np.testing.assert_array_equal(few.x_test, federated.x_test[: len(few.y_test)])
    file = importlib.resources.files("jaxafl.data").joinpath("files", "femnist_10writers.npz")
    assert len(file.read_bytes()) < 2**20


def test_pixels_and_labels_are_exact_and_the_largest_writers_come_first(folder):
    grey = np.tile(np.arange(256, dtype=np.uint8), 4)[:784][None], np.array([61])
    write(folder, TRAIN | {"fay": grey}, TEST | {"fay": grey})
    federated = data.femnist(None)
    order = ["bob", "cid", "dan", "ann", *(f"e{i}" for i in range(9)), "fay"]
    assert federated.client_names.tolist() == order
    for user, (x, y) in zip(order, by_client(federated), strict=True):
        np.testing.assert_array_equal(x, (TRAIN | {"fay": grey})[user][0])
        np.testing.assert_array_equal(y, (TRAIN | {"fay": grey})[user][1])
    expected = np.concatenate([(TEST | {"fay": grey})[user][0] for user in sorted(order)])
    np.testing.assert_array_equal(federated.x_test.reshape(-1, 784), expected)
    assert (federated.description["source"], federated.description["split"]) == ("LEAF json", "sample")
    some = data.femnist(11)
    assert len(some.y_test) == 11
    assert_equal_clients(some, federated)
    with pytest.raises(ValueError, match=r"15 clients asked for.*holds 14 writers"):
        data.femnist(15)
    assert data.femnist(10).description["source"] == "femnist_10writers.npz"


def test_shipped_writers_come_first_where_the_files_hold_them(folder):
    file = importlib.resources.files("jaxafl.data").joinpath("files", "femnist_10writers.npz")
    with np.load(io.BytesIO(file.read_bytes())) as shipped:
        last = str(shipped["users"][9])
    empty = np.zeros((0, 784), np.uint8), np.zeros(0, int)
    write(folder, TRAIN | {last: writer(2), "zoe": empty}, TEST | {"zoe": empty})
    assert data.femnist(None).counts.tolist()[:2] == [2, 5]


def test_json_wins_over_the_npz_file_and_may_be_gzipped_and_in_pieces(folder):
    """A writer cut in two by the boundary of files is one client."""
    write(folder)
    (folder / "femnist_207writers.npz").write_bytes(b"not read")
    whole = data.femnist(None)
    (folder / "train" / "all_data_0_train_9.json").unlink()
    x, y = TRAIN["bob"]
    rest = {user: samples for user, samples in TRAIN.items() if user != "bob"}
    for name, samples in (("a", {"bob": (x[:2], y[:2])}), ("b", rest), ("c", {"bob": (x[2:], y[2:])})):
        (folder / "train" / f"{name}.json.gz").write_bytes(gzip.compress(leaf_json(samples).encode()))
    pieces = data.femnist(None)
    assert (whole.description["files"], pieces.description["files"]) == (2, 4)
    assert_equal_clients(whole, pieces)


def test_writers_held_out_as_a_whole_are_the_test_set_of_any_number_of_clients(folder):
    write(folder, TRAIN, {"eve": writer(2), "fay": writer(6)})
    for clients in (11, None):
        federated = data.femnist(clients)
        assert len(federated.y_test) == 8 and federated.description["split"] == "user"
    assert federated.num_clients == len(TRAIN) and federated.test_clients is None


@pytest.mark.parametrize(
    ("train", "test", "named"),
    [
        ({}, {"eve": writer(1)}, r"1 of 14 users in .*test have no training sample.*'eve'"),
        ({"zoe": (np.zeros((1, 783)), np.zeros(1, int))}, {}, "user 'zoe'"),
        ({"zoe": (np.full((1, 784), 510), np.zeros(1, int))}, {}, "user 'zoe'.*pixels"),
        ({"zoe": (np.zeros((1, 784)), np.array([62]))}, {}, "user 'zoe'.*labels"),
        ({"zoe": (np.zeros((1, 784)), np.array([0.5]))}, {}, "user 'zoe'.*labels"),
    ],
)
def test_damaged_files_are_named(folder, train, test, named):
    write(folder, TRAIN | train, TEST | test)
    with pytest.raises(ValueError, match=named) as raised:
        data.femnist(None)
    assert str(folder) in str(raised.value)


def test_a_damaged_npz_file_is_named(folder):
    folder.mkdir()
    (folder / "femnist_207writers.npz").write_bytes(b"not an npz file")
    with pytest.raises(ValueError, match=r"femnist_207writers\.npz is damaged: expected SHA-256"):
        data.femnist(11)


@pytest.mark.data
def test_the_real_writers(data_dir, folder):
    shipped, every = data.femnist(10), data.femnist(None, data_dir=data_dir)
    assert every.num_clients == 207 and every.counts.sum() == 28237 and len(every.y_test) == 3245
    assert every.counts[:10].tolist() == SHIPPED and (np.diff(every.counts[10:]) <= 0).all()
    assert (np.bincount(every.arrays["y"], minlength=62) > 0).all()
    assert_equal_clients(shipped, every)
    with pytest.raises(ValueError, match="208 clients asked for"):
        data.femnist(208, data_dir=data_dir)
