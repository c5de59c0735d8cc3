"""Partitioners: who gets which sample."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxafl.data as data
from jaxafl.data.partition import Partition

QUICK = settings(max_examples=40, deadline=None)


def split(partitioner: Partition, labels: np.ndarray, seed: int = 0, users: np.ndarray | None = None):
    return partitioner.split(labels, users, np.random.default_rng(seed))


def balanced(classes: int, per_class: int) -> np.ndarray:
    return np.random.default_rng(9).permutation(np.repeat(np.arange(classes, dtype=np.int32), per_class))


def toy(labels: np.ndarray, users: np.ndarray | None = None) -> data.Dataset:
    x = np.arange(len(labels), dtype=np.float32)[:, None]
    return data.Dataset("toy", x, labels, x[:1], labels[:1], int(labels.max()) + 1, data.as_is(), users=users)


def assert_each_sample_once(clients: list[np.ndarray], samples: int) -> None:
    np.testing.assert_array_equal(np.sort(np.concatenate(clients)), np.arange(samples))


@QUICK
@given(
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=120),
    clients=st.integers(1, 20),
    alpha=st.floats(1e-3, 100),
    seed=st.integers(0, 2**32),
)
def test_dirichlet_gives_every_sample_to_exactly_one_client(labels, clients, alpha, seed):
    labels = np.array(labels, np.int32)
    parts = split(data.dirichlet(alpha, clients), labels, seed)
    assert len(parts) == clients
    assert_each_sample_once(parts, len(labels))


@QUICK
@given(samples=st.integers(1, 200), clients=st.integers(1, 30), seed=st.integers(0, 2**32))
def test_iid_deals_every_sample_once_in_equal_parts(samples, clients, seed):
    labels = np.zeros(samples, np.int32)
    if clients > samples:
        with pytest.raises(ValueError, match=f"at most {samples} clients"):
            split(data.iid(clients), labels, seed)
        return
    parts = split(data.iid(clients), labels, seed)
    assert len(parts) == clients
    assert_each_sample_once(parts, samples)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@QUICK
@given(classes=st.integers(1, 12), k=st.integers(1, 12), clients=st.integers(1, 25), seed=st.integers(0, 2**32))
def test_classes_per_client_gives_exactly_k_classes(classes, k, clients, seed):
    k = min(k, classes)
    clients = max(clients, -(-classes // k))
    labels = balanced(classes, per_class=30)
    parts = split(data.classes_per_client(k, clients), labels, seed)
    assert [len(np.unique(labels[rows])) for rows in parts] == [k] * clients
    assert_each_sample_once(parts, len(labels))
    holders = np.bincount(np.concatenate([np.unique(labels[rows]) for rows in parts]))
    assert holders.max() - holders.min() <= 1


@QUICK
@given(
    sizes=st.lists(st.integers(1, 9), min_size=3, max_size=8),
    k=st.integers(1, 3),
    clients=st.integers(3, 9),
    seed=st.integers(0, 99),
)
def test_classes_per_client_copes_with_rare_classes_or_says_why_not(sizes, k, clients, seed):
    labels = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    clients = max(clients, -(-len(sizes) // k))
    if np.minimum(sizes, clients).sum() < k * clients:
        with pytest.raises(ValueError, match="too few"):
            split(data.classes_per_client(k, clients), labels, seed)
        return
    parts = split(data.classes_per_client(k, clients), labels, seed)
    assert [len(np.unique(labels[rows])) for rows in parts] == [k] * clients
    assert_each_sample_once(parts, len(labels))


@pytest.mark.parametrize("partitioner", [data.iid(7), data.dirichlet(0.5, 7), data.classes_per_client(2, 7)])
def test_the_seed_decides_the_partition(partitioner):
    labels = balanced(10, 60)
    first, again, other = (split(partitioner, labels, seed) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_dirichlet_shares_have_the_moments_of_the_distribution():
    """Each class's share of one client has mean 1/N and variance (1/N)(1 - 1/N) / (N alpha + 1)."""
    alpha, clients, classes, per_class = 0.5, 8, 400, 200
    labels = balanced(classes, per_class)
    parts = split(data.dirichlet(alpha, clients), labels)
    shares = np.stack([np.bincount(labels[rows], minlength=classes) for rows in parts], 1) / per_class
    expected = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    assert np.var(shares[:, :-1]) == pytest.approx(expected, rel=0.1)
    np.testing.assert_allclose(shares.mean(0), 1 / clients, atol=0.02)


def test_dirichlet_leaves_what_flooring_drops_with_the_last_client():
    """With a huge alpha all shares are 1/3, so floors give 3, 3 and the rest, 4, of ten samples of each class."""
    parts = split(data.dirichlet(1e9, 3), balanced(5, 10))
    assert sum(map(len, parts)) == 50
    assert len(parts[2]) >= max(len(parts[0]), len(parts[1]))
    labels = balanced(5, 10)
    assert (np.bincount(labels[parts[2]]) == 4).all()


def test_dirichlet_shuffles_within_a_class():
    """Without shuffling, each client would hold a contiguous run of every class."""
    labels = np.zeros(1000, np.int32)
    rows = split(data.dirichlet(100.0, 4), labels)[0]
    assert rows.max() - rows.min() > 900
    assert (np.diff(rows) < 0).any()


def test_dirichlet_min_size_draws_again_until_it_holds():
    labels = balanced(10, 50)
    assert min(map(len, split(data.dirichlet(0.1, 20), labels))) < 5
    parts = split(data.dirichlet(0.1, 20, min_size=5), labels)
    assert min(map(len, parts)) >= 5
    assert_each_sample_once(parts, len(labels))


def test_dirichlet_min_size_out_of_reach_is_an_error():
    labels = balanced(2, 50)
    with pytest.raises(ValueError, match=r"in 1000 draws .* smaller min_size"):
        split(data.dirichlet(0.01, 20, min_size=4), labels)
    with pytest.raises(ValueError, match="100 samples cannot give 20 clients min_size=6"):
        split(data.dirichlet(1.0, 20, min_size=6), labels)


def test_clients_left_empty_are_an_error_that_says_how_many():
    with pytest.raises(ValueError, match=r"\d+ of 30 clients have no training sample.*min_size=1"):
        toy(balanced(3, 20)).partition(data.dirichlet(0.01, 30))
    alone = type("alone", (), {"split": lambda self, labels, users, rng: [np.arange(4), []], "description": {}})()
    with pytest.raises(ValueError, match=r"1 of 2 clients have no training sample. Use fewer clients"):
        toy(balanced(3, 20)).partition(alone)


@pytest.mark.parametrize(
    ("partition", "seed"),
    [
        (data.dirichlet(0.01, 100), 0),
        (data.dirichlet(1e-300, 30), 1),
        (data.dirichlet(0.001, 50, min_size=1), 2),
        (data.dirichlet(0.3, 20, min_size=20), 3),
        (data.dirichlet(0.02, 8), 4),
    ],
)
def test_the_advice_about_empty_clients_helps(partition, seed):
    labels = balanced(10, 50)
    with pytest.raises(ValueError, match=r"Use .*dirichlet_equal") as caught:
        toy(labels).partition(partition, seed=seed)
    advice = re.findall(r"dirichlet\w*\([^)]*\)", str(caught.value).split("Use ", 1)[1])
    least = max(1, partition.min_size)
    for written in advice:
        made = eval(written, {name: getattr(data, name) for name in data.__all__})
        assert toy(labels).partition(made, seed=seed).counts.min() >= least
    assert len(advice) == 2


def test_by_user_keeps_users_apart_and_samples_in_order():
    users = np.array([7, 3, 7, 11, 3, 7])
    federated = toy(np.zeros(6, np.int32), users).partition(data.by_user())
    assert federated.counts.tolist() == [2, 3, 1]
    assert federated.arrays["index"].tolist() == [1, 4, 0, 2, 5, 3]
    assert toy(np.zeros(6, np.int32), users).partition(data.by_user(2)).counts.tolist() == [2, 3]


def test_by_user_needs_enough_users():
    with pytest.raises(ValueError, match="no natural users"):
        toy(np.zeros(6, np.int32)).partition(data.by_user())
    with pytest.raises(ValueError, match="4 clients asked for, but the dataset has 3 users"):
        toy(np.zeros(6, np.int32), np.array([7, 3, 7, 11, 3, 7])).partition(data.by_user(4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: data.dirichlet(0.0, 5), "dirichlet: alpha must be > 0, got 0.0"),
        (lambda: data.dirichlet(-1.0, 5), "alpha must be > 0"),
        (lambda: data.dirichlet(float("nan"), 5), "alpha must be a finite number, got nan"),
        (lambda: data.dirichlet(1.0, 5, min_size=-1), "min_size"),
        (lambda: data.dirichlet([0.1, 0.2], 5), "alpha must be one number, got an array of shape"),
        (lambda: data.dirichlet(1.0, 0), "clients must be at least 1"),
        (lambda: data.iid(0), "clients must be at least 1"),
        (lambda: data.classes_per_client(0, 5), "k must be at least 1"),
        (lambda: data.by_user(0), "clients must be at least 1"),
    ],
)
def test_impossible_options_are_refused_at_once(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: data.iid(2.5), r"iid: clients must be a whole number, got 2\.5"),
        (lambda: data.iid(True), "clients must be a whole number, got True"),
        (lambda: data.dirichlet("a", 10), "dirichlet: alpha must be a number, got 'a'"),
        (lambda: data.dirichlet(None, 10), "dirichlet: alpha must be a number, got None"),
        (lambda: data.dirichlet(0.3, 10, min_size="a"), "dirichlet: min_size must be a whole number, got 'a'"),
        (lambda: data.dirichlet(0.3, 10, min_size=1.5), r"dirichlet: min_size must be a whole number, got 1\.5"),
    ],
)
def test_options_of_another_kind_are_refused_at_once(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_more_classes_per_client_than_classes_is_refused():
    with pytest.raises(ValueError, match="k=11, but the data has 10 classes; use k=10 or less"):
        split(data.classes_per_client(11, 5), balanced(10, 20))
    with pytest.raises(ValueError, match="use at least 5 clients"):
        split(data.classes_per_client(2, 4), balanced(10, 20))


def test_a_user_can_write_a_partitioner():
    class FirstAndRest:
        @property
        def description(self):
            return {"partition": "first_and_rest"}

        def split(self, labels, users, rng):
            return [np.array([0]), np.arange(1, len(labels))]

    federated = toy(balanced(2, 5)).partition(FirstAndRest(), seed=4)
    assert federated.counts.tolist() == [1, 9]
    assert federated.description["partition"] == "first_and_rest"
    assert federated.description["partition_seed"] == 4


@pytest.mark.parametrize(
    ("split", "error", "message"),
    [
        (
            lambda rng: [np.arange(12) < 6, np.arange(12) >= 6],
            TypeError,
            r"the partition mine: .*client 0 got bool\[12\]",
        ),
        (lambda rng: [np.arange(6), np.arange(6.0, 12.0)], TypeError, r"integers as in .*; client 1 got float64\[6\]"),
        (lambda rng: np.arange(12) % 2, TypeError, r"a list with the rows of each client, .*got array\(\[0, 1, 0"),
        (lambda rng: None, TypeError, "client 0 got None"),
        (lambda rng: {0: np.arange(12)}, TypeError, r"client 0 got {0: array"),
        (lambda rng: [np.arange(6), np.arange(6, 13)], ValueError, r"client 1 rows 6..12 of 12 samples"),
        (
            lambda rng: np.array_split(np.random.permutation(12), 2),
            ValueError,
            r"mine draws from numpy\.random, which `s",
        ),
        (
            lambda rng: np.array_split(OTHER.permutation(12), 2),
            ValueError,
            r"mine draws from a random number generator \(",
        ),
    ],
)
def test_a_split_of_ones_own_gives_a_list_of_rows_and_follows_the_seed(split, error, message):
    class mine(data.Partition):
        def split(self, labels, users, rng):
            return split(rng)

    x, y = np.ones((12, 2), np.float32), np.arange(12) % 3
    dataset = data.Dataset("points", x, y, x[:3].copy(), y[:3].copy(), 3, data.cast())
    with pytest.raises(error, match=message):
        dataset.partition(mine())


OTHER = np.random.default_rng(0)


def test_a_split_may_be_of_lists_arrays_or_a_generator():
    class mine(data.Partition):
        def split(self, labels, users, rng):
            return (list(range(start, start + 4)) for start in (0, 4, 8))

    x, y = np.ones((12, 2), np.float32), np.arange(12) % 3
    dataset = data.Dataset("points", x, y, x[:3].copy(), y[:3].copy(), 3, data.cast())
    assert dataset.partition(mine()).counts.tolist() == [4, 4, 4]


def test_an_option_that_is_not_declared_is_kept_as_given():
    class cut(data.Partition):
        clients: int = 5
        order: str = "label"

        def split(self, labels, users, rng):
            assert self.order == "label"
            return [np.arange(len(labels))[client :: self.clients] for client in range(self.clients)]

    x = np.zeros((10, 2))
    pooled = data.Dataset("d", x, np.arange(10) % 2, x, np.arange(10) % 2, 2, data.cast())
    assert pooled.partition(cut()).counts.tolist() == [2] * 5
