"""`from_leaf`: files in the shape of LEAF become clients, whatever the samples are."""

from __future__ import annotations

import gzip
import json
import pathlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxafl as afl
from jaxafl.readers.leaf import collect_users

numbers = st.floats(allow_nan=False, allow_infinity=False)


def write(path: pathlib.Path, users: dict[str, tuple[list[Any], list[Any]]]) -> None:
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    content = {"users": list(data), "num_samples": [len(one["y"]) for one in data.values()], "user_data": data}
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


TRAIN = {"eve": ([[1.0, 2.0], [3.0, 4.0]], [0, 2]), "ann": ([[5.0, 6.0]], [1])}


def test_users_are_clients_with_their_samples_and_test_samples(tmp_path):
    write(tmp_path / "train" / "a.json", TRAIN)
    write(tmp_path / "train" / "b.json.gz", {"bob": ([[7.0, 8.0], [9.0, 9.5]], [1, 1])})
    write(tmp_path / "test" / "a.json", {"eve": ([[0.5, 0.5]], [2]), "ann": ([[0.25, 0.0], [1.5, 1.5]], [0, 1])})
    data = afl.data.from_leaf(tmp_path, name="mine")
    assert data.client_names.tolist() == ["ann", "bob", "eve"] and data.counts.tolist() == [1, 2, 2]
    assert (data.name, data.num_classes) == ("mine", 3)
    assert (data.description["split"], data.description["files"]) == ("sample", 3)
    x, y = data.gather(data.arrays, 2, np.arange(2))
    np.testing.assert_array_equal(x, TRAIN["eve"][0])
    assert np.asarray(y).tolist() == [0, 2]
    assert data.x_test.dtype == np.float32
    owned = {name: data.x_test[data.test_clients == i].tolist() for i, name in enumerate(data.client_names)}
    assert owned == {"ann": [[0.25, 0.0], [1.5, 1.5]], "bob": [], "eve": [[0.5, 0.5]]}


def test_classes_may_be_written_as_floats_and_files_lie_in_one_folder(tmp_path):
    write(tmp_path / "mytrain.json", {"a": ([[1.0]], [3.0])})
    write(tmp_path / "mytest.json", {"a": ([[1.0]], [4.0])})
    data = afl.data.from_leaf(tmp_path)
    assert data.num_classes == 5 and data.y_test.tolist() == [4] and data.name == tmp_path.name


def test_targets_are_real_if_one_of_them_is_no_whole_number(tmp_path):
    write(tmp_path / "train" / "a.json", {"eve": ([[1.0], [2.0]], [1.5, 2.0]), "ann": ([[3.0]], [4.0])})
    write(tmp_path / "test" / "a.json", {"eve": ([[1.0]], [3.0])})
    data = afl.data.from_leaf(tmp_path)
    assert data.num_classes is None and data.y_test.dtype == np.float32


def test_users_who_are_held_out_own_no_client(tmp_path):
    write(tmp_path / "train" / "a.json", TRAIN)
    write(tmp_path / "test" / "a.json", {"zoe": ([[0.5, 0.5]], [2])})
    data = afl.data.from_leaf(tmp_path)
    assert data.description["split"] == "user" and data.test_clients is None and len(data.y_test) == 1


def test_convert_makes_arrays_of_texts(tmp_path):
    texts = {"ann": (["to be", "or no"], ["yes", "no"])}
    write(tmp_path / "train" / "a.json", texts)
    write(tmp_path / "test" / "a.json", texts)

    def convert(x: list[str], y: list[str]) -> tuple[np.ndarray, np.ndarray]:
        letters = np.array([[ord(letter) for letter in text] for text in x], np.int32)
        return letters, np.array([word == "yes" for word in y], int)

    data = afl.data.from_leaf(tmp_path, convert=convert, num_classes=2)
    assert data.x_test.tolist() == [[ord(letter) for letter in text] for text in texts["ann"][0]]
    assert data.y_test.tolist() == [1, 0]
    with pytest.raises(ValueError, match=r"a\.json is damaged: user 'ann': .*expected numbers; convert="):
        afl.data.from_leaf(tmp_path)
    with pytest.raises(ValueError, match="2 samples x and 1 labels y"):
        afl.data.from_leaf(tmp_path, convert=lambda x, y: (np.ones((2, 3)), np.ones(1, int)))


@given(st.dictionaries(st.text(), st.lists(st.tuples(st.lists(numbers), st.integers())), max_size=5))
@settings(max_examples=20, deadline=None)
def test_numbers_survive_exactly(tmp_path_factory, samples):
    path = tmp_path_factory.mktemp("leaf") / "a.json"
    write(path, {user: ([x for x, _ in own], [y for _, y in own]) for user, own in samples.items()})
    found: dict[str, Any] = {}
    collect_users([path], lambda x, y: found.setdefault(str(len(found)), (x, y)))
    assert [*found.values()] == [([x for x, _ in own], [y for _, y in own]) for own in samples.values()]


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[" * 100_000,
        "[]",
        '{"users": ["a"]}',
        '{"users": ["a", "a"], "user_data": {"a": {"x": [[1.0]], "y": [0]}}}',
        '{"users": ["a"], "user_data": {"a": {"x": [[1.0]]}}}',
        '{"users": ["a"], "user_data": {"a": {"x": [[1.0]], "y": []}}}',
        '{"users": ["a"], "user_data": {"a": {"x": [[1.0], [1.0, 2.0]], "y": [0, 1]}}}',
    ],
    ids=range(8),
)
def test_damaged_files_are_named(tmp_path, content):
    write(tmp_path / "test" / "a.json", TRAIN)
    path = tmp_path / "train" / "a.json"
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(ValueError, match="is damaged") as raised:
        afl.data.from_leaf(tmp_path)
    assert str(path) in str(raised.value)


def test_missing_halves_and_samples_of_several_shapes_raise(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"was not found"):
        afl.data.from_leaf(tmp_path / "nowhere")
    write(tmp_path / "train" / "a.json", TRAIN | {"zoe": ([[1.0]], [0])})
    with pytest.raises(FileNotFoundError, match=r"holds only part of .*: no json file in test\."):
        afl.data.from_leaf(tmp_path)
    write(tmp_path / "test" / "a.json", TRAIN)
    with pytest.raises(ValueError, match=r"dimensions|shape"):
        afl.data.from_leaf(tmp_path)
    write(tmp_path / "test" / "a.json", {})
    with pytest.raises(ValueError, match="no sample in the 1 json files"):
        afl.data.from_leaf(tmp_path)
