"""FEMNIST from LEAF's own json files."""

from __future__ import annotations

import gzip
import importlib.resources
import io
import json

import numpy as np
import pytest

import jaxafl.data as data

RNG = np.random.default_rng(0)


def writer(count: int) -> tuple[np.ndarray, np.ndarray]:
    return RNG.integers(0, 256, (count, 784), np.uint8), RNG.integers(0, 62, count)


TRAIN = {"ann": writer(3), "bob": writer(5), "cid": writer(4), "dan": writer(4)} | {
    f"e{i}": writer(1) for i in range(9)
}
TEST = {user: writer(1) for user in TRAIN}


def leaf_json(samples) -> dict:
    return {
        "users": list(samples),
        "num_samples": [len(y) for _, y in samples.values()],
        "user_data": {user: {"x": (x / 255.0).tolist(), "y": y.tolist()} for user, (x, y) in samples.items()},
    }


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXAFL_DATA_DIR", str(tmp_path))
    return tmp_path / "femnist"


def write(folder, train=TRAIN, test=TEST):
    for half, samples in (("train", train), ("test", test)):
        (folder / half).mkdir(parents=True, exist_ok=True)
        content = samples if "users" in samples else leaf_json(samples)
        (folder / half / f"all_data_0_{half}_9.json").write_text(json.dumps(content))


def by_client(federated):
    x, y = federated.arrays["x"], federated.arrays["y"]
    for offset, count in zip(federated.arrays["offset"], federated.counts, strict=True):
        rows = federated.arrays["index"][offset : offset + count]
        yield x[rows].reshape(count, 784), y[rows]


def test_pixels_and_labels_are_exact_and_the_largest_writers_come_first(folder):
    write(folder)
    federated = data.femnist(None)
    order = ["bob", "cid", "dan", "ann"] + [f"e{i}" for i in range(9)]
    assert federated.counts.tolist() == [len(TRAIN[user][1]) for user in order]
    for user, (x, y) in zip(order, by_client(federated), strict=True):
        np.testing.assert_array_equal(x, TRAIN[user][0])
        np.testing.assert_array_equal(y, TRAIN[user][1])
    assert federated.arrays["x"].dtype == np.uint8 and federated.arrays["x"].shape == (25, 28, 28, 1)
    np.testing.assert_array_equal(federated.x_test.reshape(-1, 784), np.concatenate([TEST[u][0] for u in sorted(TEST)]))
    assert (federated.description["source"], federated.description["split"]) == ("LEAF json", "sample")


def test_every_grey_level_survives(folder):
    x = np.tile(np.arange(256, dtype=np.uint8), 4)[:784][None]
    write(folder, {"ann": (x, np.array([61]))}, {"ann": (255 - x, np.array([0]))})
    federated = data.femnist(None)
    np.testing.assert_array_equal(federated.arrays["x"].reshape(1, 784), x)
    np.testing.assert_array_equal(federated.x_test.reshape(1, 784), 255 - x)
    example = np.asarray(federated.preprocess(federated.arrays["x"])).reshape(784)
    np.testing.assert_allclose(example, x[0] / 255.0, rtol=1e-6)


def test_fewer_clients_are_the_first_of_more_with_their_own_test_samples(folder):
    write(folder)
    some, every = data.femnist(11), data.femnist(None)
    assert some.counts.tolist() == every.counts[:11].tolist()
    assert len(some.y_test) == 11 and len(every.y_test) == 13
    for (x, _), (x_of_every, _) in zip(by_client(some), by_client(every), strict=False):
        np.testing.assert_array_equal(x, x_of_every)
    with pytest.raises(ValueError, match=r"14 clients asked for, but .*femnist \(LEAF json\) holds 13 writers"):
        data.femnist(14)


def test_up_to_ten_writers_are_always_those_of_the_package(folder):
    write(folder)
    assert data.femnist(10).description["source"] == "femnist_10writers.npz"


def test_shipped_writers_come_first_where_the_files_hold_them(folder):
    file = importlib.resources.files("jaxafl.data").joinpath("files", "femnist_10writers.npz")
    with np.load(io.BytesIO(file.read_bytes())) as shipped:
        last = str(shipped["users"][9])
    write(folder, TRAIN | {last: writer(2)}, TEST)
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
        (folder / "train" / f"{name}.json.gz").write_bytes(gzip.compress(json.dumps(leaf_json(samples)).encode()))
    pieces = data.femnist(None)
    assert (whole.description["files"], pieces.description["files"]) == (2, 4)
    for (x_whole, y_whole), (x_piece, y_piece) in zip(by_client(whole), by_client(pieces), strict=True):
        np.testing.assert_array_equal(x_whole, x_piece)
        np.testing.assert_array_equal(y_whole, y_piece)


def test_writers_held_out_as_a_whole_are_the_test_set_of_any_number_of_clients(folder):
    write(folder, TRAIN, {"eve": writer(2), "fay": writer(6)})
    for clients in (11, None):
        federated = data.femnist(clients)
        assert len(federated.y_test) == 8 and federated.description["split"] == "user"
    assert federated.num_clients == len(TRAIN)


def test_writers_without_samples_are_no_clients(folder):
    empty = np.zeros((0, 784), np.uint8), np.zeros(0, int)
    write(folder, TRAIN | {"zoe": empty}, TEST | {"zoe": empty})
    assert data.femnist(None).num_clients == len(TRAIN)


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (
            TRAIN,
            TEST | {"eve": writer(1)},
            r"1 of 14 writers in .*test have no training sample .*'eve'.*one run of LEAF",
        ),
        ({}, TEST, "no sample in the 1 json files of .*train"),
        (TRAIN, {}, "no sample in the 1 json files of .*test"),
        (TRAIN | {"zoe": (np.zeros((1, 783)), np.zeros(1, int))}, TEST, "user 'zoe': an image needs 784 .* 783 values"),
        (TRAIN | {"zoe": (np.zeros(1), np.zeros(1, int))}, TEST, "user 'zoe': an image needs 784 pixels; got a float"),
        (TRAIN | {"zoe": (np.full((1, 784), 510), np.zeros(1, int))}, TEST, r"must lie in \[0, 1\].* from 2.0 to 2.0"),
        (TRAIN | {"zoe": (np.full((1, 784), -1), np.zeros(1, int))}, TEST, r"must lie in \[0, 1\]"),
        (TRAIN | {"zoe": (np.full((1, 784), np.nan), np.zeros(1, int))}, TEST, r"must lie in \[0, 1\]"),
        (TRAIN | {"zoe": (np.zeros((1, 784)), np.array([62]))}, TEST, r"labels run from 62 to 62, outside 0\.\.61"),
        (TRAIN | {"zoe": (np.zeros((1, 784)), np.array([-1]))}, TEST, "labels run from -1"),
        (TRAIN | {"zoe": (np.zeros((1, 784)), np.array(["a"]))}, TEST, "labels must be whole numbers"),
        (TRAIN | {"zoe": (np.zeros((1, 784)), np.array([0.5]))}, TEST, "labels must be whole numbers"),
        ({"users": []}, TEST, "train_9.json is damaged: .* lacks 'user_data'"),
    ],
)
def test_bad_files_are_named_with_what_is_wrong(folder, train, test, message):
    write(folder, train, test)
    with pytest.raises(ValueError, match=message) as raised:
        data.femnist(None)
    assert str(folder) in str(raised.value)


def test_half_of_a_dataset_says_which_half_is_missing(folder):
    write(folder)
    (folder / "test" / "all_data_0_test_9.json").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"holds only part of femnist: no json file in test\. Add .*, or remove"
    ):
        data.femnist(None)


@pytest.mark.data
def test_the_json_of_the_same_writers_gives_the_same_clients_as_the_npz_file(data_dir, folder):
    with np.load(data_dir / "femnist" / "femnist_207writers.npz") as arrays:
        halves = [
            {
                str(user): (
                    arrays[f"x_{half}"][arrays[f"user_{half}"] == index].reshape(-1, 784),
                    arrays[f"y_{half}"][arrays[f"user_{half}"] == index],
                )
                for index, user in enumerate(arrays["users"])
            }
            for half in ("train", "test")
        ]
    write(folder, *halves)
    from_json, from_npz = data.femnist(50), data.femnist(50, data_dir=data_dir)
    assert len(from_json.y_test) == len(from_npz.y_test)
    for (x, y), (x_npz, y_npz) in zip(by_client(from_json), by_client(from_npz), strict=True):
        np.testing.assert_array_equal(x, x_npz)
        np.testing.assert_array_equal(y, y_npz)
