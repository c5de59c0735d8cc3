"""Federated data from a user's arrays: samples, targets, clients, and what is refused."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import jaxafl as afl
from jaxafl import data
from jaxafl.options import UserError

X = np.arange(20, dtype=np.float64).reshape(10, 2)
Y = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])
IDS = np.array(["b", "a", "b", "a", "b", "a", "b", "a", "b", "c"])
TAGS = np.array([[1, 0, -1], [0, 1, 1]] * 5)


def fetched(federated: data.FederatedData, client: int) -> Any:
    positions = np.arange(federated.counts[client])
    return jax.device_get(federated.fetch(federated.arrays, client, positions, jax.random.key(0)))


def pooled(x: Any, y: Any = Y, **options: Any) -> data.Dataset:
    given = {"x_test": x, "y_test": y, "num_classes": None, "preprocessing": data.cast()} | options
    return data.Dataset("toy", x, y, **given)


def test_clients_follow_sorted_ids_and_floats_become_float32():
    federated = data.from_arrays(X, Y, IDS, x_test=X[:3], y_test=Y[:3])
    assert federated.counts.tolist() == [4, 5, 1] and federated.num_classes == 3
    x, y = fetched(federated, 1)
    assert x.dtype == federated.arrays["x"].dtype == np.float32
    np.testing.assert_array_equal(x, X[IDS == "b"])
    np.testing.assert_array_equal(y, Y[IDS == "b"])


def test_held_out_samples_are_a_share_of_each_client_and_not_trained_on():
    ids = np.repeat([0, 1], [10, 20])
    x = np.arange(30, dtype=np.float32)[:, None]

    def made(seed: int) -> data.FederatedData:
        return data.from_arrays(x, np.zeros(30, int), ids, test_fraction=0.3, seed=seed)

    federated = made(5)
    assert federated.counts.tolist() == [7, 14] and federated.test_clients.tolist() == [0] * 3 + [1] * 6
    assert sorted(np.concatenate([federated.arrays["x"], federated.x_test])[:, 0]) == list(range(30))
    assert (federated.x_test < 10).sum() == 3
    np.testing.assert_array_equal(federated.x_test, made(5).x_test)
    assert not np.array_equal(federated.x_test, made(6).x_test)


def test_samples_may_be_several_arrays():
    tokens = {"input_ids": np.arange(20).reshape(10, 2), "attention_mask": np.ones((10, 2), np.uint8)}
    federated = data.from_arrays(tokens, Y, IDS, test_fraction=0.5, seed=1)
    found = np.concatenate([federated.arrays["x"]["input_ids"], federated.x_test["input_ids"]])
    np.testing.assert_array_equal(np.sort(found[:, 0]), np.arange(0, 20, 2))
    x, y = fetched(federated, 1)
    rows = x["input_ids"][:, 0] // 2
    np.testing.assert_array_equal(y, Y[rows])
    assert set(IDS[rows]) == {"b"} and x["attention_mask"].dtype == np.uint8


def test_bytes_are_cast_and_tokens_are_left_alone():
    for dtype, expected in ((np.uint8, np.float32), (np.int32, np.int32), (np.float16, np.float32)):
        x = np.full((10, 2), 7, dtype)
        example = data.from_arrays(x, Y, IDS, x_test=x, y_test=Y).example[0]
        assert example.dtype == expected and example[0, 0] == 7


@pytest.mark.parametrize(
    ("y", "kind", "classes"),
    [
        (Y / 3, "float32[]", None),
        (np.stack([Y, -Y, Y**2], 1) / 3, "float32[3]", None),
        (Y[:, None] / 3, "float32[1]", None),
        (TAGS, "int32[3]", 2),
        (TAGS > 0, "int32[3]", 2),
        (7 * TAGS, "int32[3]", 8),
    ],
)
def test_targets_reach_their_clients(y: np.ndarray, kind: str, classes: int | None):
    federated = data.from_arrays(X, y, IDS, x_test=X[:7], y_test=y[:7])
    np.testing.assert_array_equal(fetched(federated, 1)[1], y[IDS == "b"].astype(federated.y_test.dtype))
    np.testing.assert_array_equal(federated.y_test, y[:7].astype(federated.y_test.dtype))
    summary = federated.summary()
    assert (summary["target"], summary.get("classes"), federated.num_classes) == (kind, classes, classes)


def test_with_x64_doubles_stay_doubles():
    with jax.enable_x64(True):
        federated = data.from_arrays(X / 3 * 1e60, Y / 3, IDS, x_test=X[:3] / 3, y_test=Y[:3] / 3)
        x, y = fetched(federated, 1)
    assert federated.x_test.dtype == x.dtype == y.dtype == np.float64
    np.testing.assert_array_equal(x, (X / 3 * 1e60)[IDS == "b"])
    assert federated.description["preprocessing"] == "float64"


@pytest.mark.parametrize(
    ("ids", "names"),
    [
        (["mercy", "st. mary", "mercy", "charité", "charité", "mercy"], ["charité", "mercy", "st. mary"]),
        (np.array(["b", "a", "b", "a", "b", "b"], object), ["a", "b"]),
        (pd.Series(["b", "a", "b", "a", "b", "b"]), ["a", "b"]),
        (np.array([b"z", b"a", b"a", b"z", b"a", b"a"]), ["a", "z"]),
        ([30, 7, 7, 30, 100, 7], ["7", "30", "100"]),
    ],
)
def test_numpy_unique_numbers_clients_and_their_ids_are_names(ids: Any, names: list[str]):
    federated = data.from_arrays(X[:6], Y[:6], ids, x_test=X[:2], y_test=Y[:2])
    assert federated.client_names.tolist() == names
    assert federated.counts.tolist() == np.unique(np.asarray(ids), return_counts=True)[1].tolist()
    assert federated.owned_test(np.array([0, -1], np.int32)).client_names.tolist() == names
    assert federated.statistics().names is federated.client_names


def test_users_of_a_dataset_name_its_clients():
    def clients(partition: Any, users: Any) -> Any:
        names = pooled(X[:6], Y[:6], users=users).partition(partition).client_names
        return None if names is None else names.tolist()

    people = ["eve", "bob", "eve", "bob", "ann", "ann"]
    assert clients(data.by_user(), people) == ["ann", "bob", "eve"]
    assert clients(data.by_user(2), people) == ["ann", "bob"]
    assert clients(data.by_user(), np.array([40, 40, 5, 5, 9, 9])) == ["5", "9", "40"]
    assert [clients(partition, people) for partition in (data.iid(2), data.iid_shared(2))] == [None, None]


def test_changes_of_a_users_arrays_reach_neither_data_nor_parts():
    def made() -> Any:
        x, y, rates, seconds = X.astype(np.float32), Y * 0.5, np.ones(3), np.ones((3, 2))
        given = data.from_arrays(x, y, IDS, x_test=x, y_test=y).with_test_sets({"other": (x, y)})
        split = pooled(x, y).partition(data.iid(3))
        client = afl.Client(learning_rate=rates, steps=1, proximal=rates)
        clock = afl.clock.free_running(concurrency=3, durations=afl.clock.constant(rates), weights=rates)
        parts = client, clock, afl.clock.recorded(seconds)
        return (x, y, rates, seconds), [given.arrays, given.test_sets, split.arrays, split.test_sets, parts]

    (_, expected), (arrays, found) = made(), made()
    for array in arrays:
        array[:] = 7
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_arrays_of_clients_and_of_their_dataset_are_read_only():
    x = X.astype(np.float32)
    dataset = pooled(x)
    federated = dataset.partition(data.iid(3)).with_validation(0.3).with_test_sets({"moved": (x + 1, Y)})
    held = federated.counts, federated.arrays, federated.x_test, federated.y_test, federated.validation
    for array in jax.tree.leaves((held, [*federated.test_sets.values()], dataset.x, dataset.y, dataset.x_test)):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    assert x.flags.writeable and Y.flags.writeable


def test_tables_are_combined_by_position_unless_their_index_has_another_order():
    table, shuffled = pd.DataFrame(X), np.random.default_rng(0).permutation(10)
    for y in (pd.Series(Y, table.index), pd.Series(Y, np.arange(10, 20))):
        assert data.from_arrays(table, y, IDS, x_test=X, y_test=Y).counts.tolist() == [4, 5, 1]
    found = data.from_arrays(table.loc[shuffled], pd.Series(Y).loc[shuffled], IDS, x_test=X, y_test=Y)
    assert found.arrays["y"].tolist() == Y[shuffled].tolist()
    with pytest.raises(UserError, match=r"y\.loc\[x\.index\]"):
        data.from_arrays(table, pd.Series(Y)[::-1], IDS, test_fraction=0.3)


@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        ({"test_fraction": None}, ValueError, "test_fraction"),
        ({"x_test": X, "y_test": Y}, ValueError, "test_fraction"),
        ({"test": {"a": (X, Y)}}, ValueError, "test_fraction"),
        ({"test_fraction": 1.5}, ValueError, "test_fraction"),
        ({"seed": "a"}, TypeError, "seed"),
        ({"num_classes": 2}, ValueError, r"outside 0\.\.1"),
        ({"num_classes": 3, "y": Y * 1.0}, TypeError, "num_classes"),
        ({"client_ids": IDS[:9]}, ValueError, "client_ids"),
        ({"x": X[:0], "y": Y[:0], "client_ids": IDS[:0]}, ValueError, "client_ids"),
        ({"x": {"a": X, "b": X[:9]}}, ValueError, "x has"),
        ({"x": X + np.nan}, ValueError, "samples .*NaN"),
        ({"x": X * 1e300}, ValueError, "beyond float32"),
        ({"x": np.ma.masked_array(X, np.eye(*X.shape))}, ValueError, "masked"),
        ({"x": np.full((10, 2), np.int64(-(2**40)))}, ValueError, "beyond int32"),
        ({"x": X.astype(str)}, TypeError, "samples are"),
        ({"y": np.where(np.arange(10) == 4, np.inf, Y)}, ValueError, "labels .*the first at 4"),
        ({"y": [*Y[:8] * 0.5, None, 1]}, TypeError, "labels"),
        ({"y": ["cat", None, "dog", "cat", "cat"] * 2}, TypeError, "labels"),
        ({"y": None}, TypeError, "labels"),
        ({"client_ids": np.where(Y == 2, np.nan, Y)}, ValueError, "client_ids"),
        ({"client_ids": [*IDS[:9], None]}, ValueError, "client_ids"),
        ({"y": Y[:, None]}, ValueError, r"y\[:, 0\]"),
        ({"y": Y - 1}, ValueError, "from -1 to 1"),
        ({"y": Y * 10**12}, ValueError, "beyond int32"),
        ({"y": np.where(np.arange(10)[:, None] % 4 == 3, -1, TAGS)}, ValueError, "padding, the first is sample 3"),
        ({"test_fraction": None, "x_test": X, "y_test": Y * 0.5}, ValueError, "y_test"),
        ({"test_fraction": None, "x_test": X[:, :1], "y_test": Y}, ValueError, "x_test"),
    ],
)
def test_invalid_input(change: dict[str, Any], error: type[Exception], named: str):
    given = {"x": X, "y": Y, "client_ids": IDS, "test_fraction": 0.3} | change
    with pytest.raises(error, match=named):
        data.from_arrays(**given)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"y": np.zeros(9, int)}, "x has"),
        ({"users": np.zeros(9, int)}, "users has shape"),
        ({"x_test": X[:0], "y_test": Y[:0]}, "at least one"),
        ({"x": np.where(X == 4, 1e39, X)}, "training set: samples .*the first at 2"),
        ({"y_test": Y + 7, "num_classes": 3}, "test set"),
    ],
)
def test_inconsistent_arrays_of_a_dataset(change: dict[str, Any], named: str):
    with pytest.raises(UserError, match=named):
        pooled(**{"x": X, "x_test": X, "y_test": Y} | change)


def test_a_dataset_takes_lists_and_tables_and_federated_data_is_checked_again():
    for one in (X.tolist(), pd.DataFrame(X), jnp.asarray(X)):
        split = pooled(one).partition(data.iid(2))
        np.testing.assert_array_equal(split.arrays["x"], X)
    for change, named in (
        ({"x_test": split.x_test[:1]}, "x_test has"),
        ({"client_names": ["a"]}, "client_names"),
        ({"client_names": ["a", "a"]}, "client_names"),
        ({"counts": np.array([10, 0])}, "no training sample"),
    ):
        with pytest.raises(UserError, match=named):
            dataclasses.replace(split, **change)


@pytest.mark.parametrize(
    "partition",
    [
        data.dirichlet(0.5, 4),
        data.dirichlet_equal(0.5, 4),
        data.classes_per_client(2, 4),
        data.sizes([10, 20], classes=2),
        data.sizes([10, 20], alpha=0.5),
    ],
    ids=repr,
)
def test_quantiles_of_targets_are_classes_of_partitions(partition: Any):
    y, x = np.random.default_rng(0).normal(size=40), np.zeros((40, 1))
    for labels in (y, np.tile(TAGS, (4, 1))):
        with pytest.raises(UserError, match=r"expected one class per sample.*quantiles=4"):
            pooled(x, labels).partition(partition)
    ranks = np.argsort(np.argsort(y))
    by_quantile = pooled(x, y).partition(partition, seed=3, quantiles=4)
    by_class = pooled(x, ranks // 10).partition(partition, seed=3)  # 40 distinct numbers: 10 in each quarter
    np.testing.assert_array_equal(by_quantile.arrays["index"], by_class.arrays["index"])
    np.testing.assert_array_equal(by_quantile.arrays["y"], y.astype(np.float32))
    assert by_quantile.description["partition_quantiles"] == 4


def test_shards_sort_real_targets_and_quantiles_divide_the_test_set():
    y = np.random.default_rng(0).normal(size=40).astype(np.float32)
    toy = pooled(np.zeros((40, 1)), y)
    held = sorted((fetched(toy.partition(data.shards(1, 4)), client)[1] for client in range(4)), key=np.min)
    assert all(low.max() < high.min() for low, high in itertools.pairwise(held))
    federated = toy.partition(data.classes_per_client(1, 4), quantiles=4, test="per_client")
    edges = np.quantile(y, [0.25, 0.5, 0.75])
    for client in range(4):
        tested = y[federated.test_clients == client]
        both = np.concatenate([tested, fetched(federated, client)[1]])
        assert len(tested) == 10 and np.unique(np.searchsorted(edges, both, side="right")).size == 1
    for options in ({"quantiles": 1}, {"test": "per_client"}, {"test": "own"}):
        with pytest.raises(ValueError, match=r"quantiles|expected one class|test must be"):
            toy.partition(data.iid(2), **options)
