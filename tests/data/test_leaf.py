"""LEAF's json files: what is read, and what is said of files that are not LEAF's."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxafl.readers.leaf import collect_users, leaf_files, read_leaf

GOOD = {
    "users": ["b", "a"],
    "num_samples": [2, 1],
    "user_data": {"a": {"x": ["to be"], "y": ["!"]}, "b": {"x": ["or no", "r not"], "y": ["t", " "]}},
}


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = (content if isinstance(content, str) else json.dumps(content)).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def test_users_come_in_the_order_of_the_file_with_their_samples(tmp_path):
    plain, zipped = write(tmp_path / "a.json", GOOD), write(tmp_path / "b.json.gz", GOOD)
    expected = [("b", ["or no", "r not"], ["t", " "]), ("a", ["to be"], ["!"])]
    assert list(read_leaf([plain])) == expected
    assert list(read_leaf([plain, zipped])) == expected * 2


def test_stale_num_samples_are_ignored(tmp_path):
    """LEAF removes test samples that overlap training samples without correcting this number."""
    for stale in ([9, 9], [], None):
        path = write(tmp_path / "a.json", GOOD | {"num_samples": stale})
        assert [len(x) for _, x, _ in read_leaf([path])] == [2, 1]


def test_users_without_samples_are_not_hidden(tmp_path):
    path = write(tmp_path / "a.json", {"users": ["a"], "num_samples": [0], "user_data": {"a": {"x": [], "y": []}}})
    assert list(read_leaf([path])) == [("a", [], [])]


numbers = st.floats(allow_nan=False, allow_infinity=False)


@given(st.dictionaries(st.text(), st.lists(st.tuples(st.lists(numbers), st.integers())), max_size=5))
@settings(max_examples=50, deadline=None)
def test_numbers_survive_exactly(tmp_path_factory, samples):
    data = {user: {"x": [x for x, _ in own], "y": [y for _, y in own]} for user, own in samples.items()}
    content = {"users": list(data), "num_samples": [len(own) for own in samples.values()], "user_data": data}
    path = write(tmp_path_factory.mktemp("leaf") / "a.json", content)
    assert list(read_leaf([path])) == [(user, own["x"], own["y"]) for user, own in data.items()]


def test_a_user_in_several_files_is_put_together(tmp_path):
    def one(path, values):
        user_data = {user: {"x": [[v] for v in own], "y": own} for user, own in values.items()}
        return write(path, {"users": list(values), "num_samples": [], "user_data": user_data})

    files = [one(tmp_path / "a.json", {"u": [1, 2], "v": [7]}), one(tmp_path / "b.json", {"w": [8], "u": [3]})]
    users = collect_users(files, lambda x, y: (np.array(x), np.array(y)))
    assert list(users) == ["u", "v", "w"]
    np.testing.assert_array_equal(users["u"][0], [[1], [2], [3]])
    np.testing.assert_array_equal(users["u"][1], [1, 2, 3])
    np.testing.assert_array_equal(users["w"][1], [8])


def test_what_a_conversion_refuses_names_file_and_user(tmp_path):
    def refuse(x, y):
        raise ValueError("too long")

    path = write(tmp_path / "a.json", GOOD)
    with pytest.raises(ValueError, match=r"a\.json is damaged: user 'b': too long\."):
        collect_users([path], refuse)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "expected json; Expecting property name"),
        ("", "expected json; Expecting value"),
        ("[" * 100_000, "expected json; maximum recursion depth"),
        ("[]", "it lacks 'users', 'user_data'"),
        ({"users": []}, "it lacks 'user_data'"),
        (GOOD | {"users": "ab"}, "expected 'users' to be a list"),
        (GOOD | {"user_data": []}, "expected 'user_data' to be an object"),
        (GOOD | {"users": ["a", "b", "a"]}, "lists 1 users more than once"),
        (GOOD | {"users": ["a", "b", "c"]}, "1 of 3 users have no entry in 'user_data': c"),
        (GOOD | {"users": ["a"]}, "holds 1 users that 'users' does not list: b"),
        (GOOD | {"users": [["a"]]}, "expected 'users' to be a list of names"),
        ({"users": ["a"], "user_data": {"a": {"x": []}}}, "user 'a' lacks 'y'"),
        ({"users": ["a"], "user_data": {"a": None}}, "user 'a' lacks 'x', 'y'"),
        ({"users": ["a"], "user_data": {"a": {"x": [1], "y": []}}}, "user 'a' .* got 1 entries and 0 entries"),
        ({"users": ["a"], "user_data": {"a": {"x": {}, "y": []}}}, "user 'a' .* got a dict and 0 entries"),
    ],
)
def test_files_that_are_not_leaf_are_named_with_what_is_wrong(tmp_path, content, message):
    path = write(tmp_path / "some.json", content)
    with pytest.raises(ValueError, match=message) as raised:
        list(read_leaf([path]))
    assert f"{path} is damaged" in str(raised.value)


def test_a_truncated_gzip_file_is_named(tmp_path):
    path = write(tmp_path / "a.json.gz", GOOD)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"a\.json\.gz is damaged: expected a complete gzip file"):
        list(read_leaf([path]))


def test_the_files_of_a_folder_are_sorted_and_not_read_twice(tmp_path):
    for name in ("b.json", "a.json.gz", "c.txt", "d.json.bak"):
        write(tmp_path / name, GOOD)
    assert [path.name for path in leaf_files(tmp_path)] == ["a.json.gz", "b.json"]
    assert leaf_files(tmp_path / "nowhere") == []
    write(tmp_path / "a.json", GOOD)
    with pytest.raises(ValueError, match=r"holds a\.json and a\.json\.gz, the same samples twice"):
        leaf_files(tmp_path)


@pytest.mark.data
def test_genuine_leaf_output(data_dir):
    """Ten roles; `num_samples` of the test file is stale."""
    files = [data_dir / "shakespeare" / f"leaf_niid_023_keep_64_{part}_9.json.gz" for part in ("train", "test")]
    counts = []
    for path in files:
        users = list(read_leaf([path]))
        assert len({user for user, _, _ in users}) == 10
        assert all(len(window) == 80 for _, x, _ in users for window in x)
        assert all(len(character) == 1 for _, _, y in users for character in y)
        counts.append(sum(len(y) for _, _, y in users))
    assert counts == [41990, 3881]
