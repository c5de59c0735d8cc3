"""Partitions: who gets which sample."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxafl import data
from jaxafl.data.partition import base
from jaxafl.options import UserError

QUICK = settings(max_examples=40, deadline=None)
LABELS = st.lists(st.integers(0, 6), min_size=1, max_size=150)
SEEDS = st.integers(0, 2**32)


def split(partition: data.Partition, labels: Any, seed: int = 0) -> Any:
    return partition.split(np.asarray(labels, np.int32), None, np.random.default_rng(seed))


def balanced(classes: int, per_class: int) -> np.ndarray:
    return np.random.default_rng(9).permutation(np.repeat(np.arange(classes, dtype=np.int32), per_class))


def pooled(labels: Any, users: Any = None) -> data.Dataset:
    x = np.arange(len(labels), dtype=np.float32)[:, None]
    return data.Dataset("toy", x, labels, x[:1], labels[:1], None, data.as_is(), users=users)


def histogram(parts: Any, labels: np.ndarray) -> np.ndarray:
    return np.stack([np.bincount(labels[rows], minlength=labels.max() + 1) for rows in parts])


def assert_each_sample_once(parts: Any, samples: int) -> None:
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(samples))


@QUICK
@given(
    labels=LABELS,
    clients=st.integers(1, 20),
    alpha=st.floats(1e-3, 1e4),
    sigma=st.floats(0, 50),
    least=st.integers(1, 4),
    seed=SEEDS,
)
def test_every_sample_goes_to_exactly_one_client(labels, clients, alpha, sigma, least, seed):
    dealt = split(data.dirichlet(alpha, clients), labels, seed)
    assert len(dealt) == clients
    assert_each_sample_once(dealt, len(labels))
    for partition, needed in (
        (data.iid(clients), 1),
        (data.dirichlet_equal(alpha, clients), 1),
        (data.lognormal_sizes(clients, sigma, least), least),
    ):
        if clients * needed > len(labels):
            with pytest.raises(UserError, match=f"{partition.name}.*"):
                split(partition, labels, seed)
            continue
        parts = split(partition, labels, seed)
        assert len(parts) == clients and min(map(len, parts)) >= needed
        assert_each_sample_once(parts, len(labels))
        assert partition.name == "lognormal_sizes" or max(map(len, parts)) - min(map(len, parts)) <= 1


@QUICK
@given(labels=LABELS, per_client=st.integers(1, 4), clients=st.integers(1, 20), seed=SEEDS)
def test_shards_are_runs_of_the_sorted_labels_dealt_once(labels, per_client, clients, seed):
    labels, amount = np.array(labels), per_client * clients
    if amount > len(labels):
        with pytest.raises(UserError, match="shards"):
            split(data.shards(per_client, clients), labels, seed)
        return
    parts = split(data.shards(per_client, clients), labels, seed)
    assert_each_sample_once(parts, len(labels))
    assert max(map(len, parts)) - min(map(len, parts)) <= per_client
    # A shard touches two classes at its ends, and others only if they are smaller than itself.
    smaller = sum(count < len(labels) // amount for count in np.bincount(labels))
    assert all(len(np.unique(labels[rows])) <= 2 * per_client + smaller for rows in parts)


@QUICK
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    k=st.integers(1, 12),
    clients=st.integers(1, 25),
    seed=SEEDS,
)
def test_classes_per_client_gives_exactly_k_classes_or_raises(sizes, k, clients, seed):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    if not k <= len(sizes) <= k * clients <= np.minimum(sizes, clients).sum():
        with pytest.raises(UserError, match="classes_per_client"):
            split(data.classes_per_client(k, clients), labels, seed)
        return
    parts = split(data.classes_per_client(k, clients), labels, seed)
    assert [len(np.unique(labels[rows])) for rows in parts] == [k] * clients
    assert_each_sample_once(parts, len(labels))
    holders = np.bincount(np.concatenate([np.unique(labels[rows]) for rows in parts]))
    assert (holders.max() - holders <= 1 + (holders == sizes)).all() or min(sizes) < clients


@QUICK
@given(
    wanted=st.lists(st.integers(4, 30), min_size=1, max_size=8),
    unused=st.integers(0, 50),
    alpha=st.none() | st.floats(1e-6, 1e4),
    classes=st.integers(1, 4),
    seed=SEEDS,
)
def test_sizes_are_met_exactly_and_no_sample_is_used_twice(wanted, unused, alpha, classes, seed):
    labels = np.random.default_rng(seed).integers(0, 5, sum(wanted) + unused)
    by_class = balanced(10, 60)
    for partition, held in ((data.sizes(wanted, alpha=alpha), labels), (data.sizes(wanted, classes), by_class)):
        parts = split(partition, held, seed)
        assert [len(rows) for rows in parts] == wanted
        assert len(np.unique(np.concatenate(parts))) == sum(wanted)
    assert ((histogram(parts, by_class) > 0).sum(1) == classes).all()


@QUICK
@given(samples=st.integers(1, 100), clients=st.integers(1, 12), part=st.floats(0.01, 1), seed=SEEDS)
def test_iid_shared_gives_everyone_the_same_pool(samples, clients, part, seed):
    pool = max(1, int(part * samples))
    parts = split(data.iid_shared(clients, pool), np.zeros(samples), seed)
    assert len(parts) == clients and all(rows is parts[0] for rows in parts)
    assert len(np.unique(parts[0])) == len(parts[0]) == pool and set(parts[0].tolist()) <= set(range(samples))


PARTITIONS = [
    data.iid(7),
    data.dirichlet(0.5, 7),
    data.classes_per_client(2, 7),
    data.iid_shared(7, 40),
    data.shards(2, 7),
    data.dirichlet_equal(0.5, 7),
    data.sizes([50, 20]),
    data.sizes([50, 20], classes=2),
    data.sizes([50, 20], alpha=1.0),
    data.lognormal_sizes(7),
]


@pytest.mark.parametrize("partition", PARTITIONS, ids=repr)
def test_the_seed_decides_the_partition(partition):
    first, again, other = (split(partition, balanced(10, 60), seed) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_dirichlet_shares_have_the_moments_of_the_distribution():
    """Each class's share of one client has mean 1/N and variance (1/N)(1 - 1/N) / (N alpha + 1)."""
    alpha, clients, classes, per_class = 0.5, 8, 400, 200
    labels = balanced(classes, per_class)
    shares = histogram(split(data.dirichlet(alpha, clients), labels), labels).T / per_class
    expected = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    assert np.var(shares[:, :-1]) == pytest.approx(expected, rel=0.1)
    np.testing.assert_allclose(shares.mean(0), 1 / clients, atol=0.02)


def test_dirichlet_leaves_the_remainder_of_floors_with_the_last_client_and_shuffles():
    """With a huge alpha all shares are 1/3, so floors give 3, 3 and the rest, 4, of ten samples of each class."""
    labels = balanced(5, 10)
    assert (np.bincount(labels[split(data.dirichlet(1e9, 3), labels)[2]]) == 4).all()
    rows = split(data.dirichlet(100.0, 4), np.zeros(1000))[0]
    assert rows.max() - rows.min() > 900 and (np.diff(rows) < 0).any()


def test_dirichlet_min_size_draws_again_until_it_is_reached():
    labels = balanced(10, 50)
    assert min(map(len, split(data.dirichlet(0.1, 20), labels))) < 5
    parts = split(data.dirichlet(0.1, 20, min_size=5), labels)
    assert min(map(len, parts)) >= 5
    assert_each_sample_once(parts, len(labels))
    for clients, alpha, least in ((20, 0.01, 4), (20, 1.0, 6)):
        with pytest.raises(UserError, match=r"dirichlet: .*20 clients"):
            split(data.dirichlet(alpha, clients, min_size=least), balanced(2, 50))


@pytest.mark.parametrize("alpha", [0.3, 2.0, 50.0])
def test_the_concentration_of_equal_and_given_sizes(alpha):
    """Class shares of s samples vary by p (1 - p) (s + alpha) / (s (1 + alpha)), and more for the last clients of
    `dirichlet_equal`, who get what is left."""
    labels = balanced(10, 2000)
    shares = histogram(split(data.dirichlet_equal(alpha, 200), labels), labels) / 100
    np.testing.assert_allclose(shares.mean(0), 0.1)
    assert shares.var() == pytest.approx(0.1 * 0.9 * (100 + alpha) / (100 * (1 + alpha)), rel=0.25)
    labels = balanced(5, 20_000)
    shares = histogram(split(data.sizes([50] * 500, alpha=alpha), labels), labels) / 50
    assert shares.var() == pytest.approx(0.2 * 0.8 * (50 + alpha) / (50 * (1 + alpha)), rel=0.1)


def test_classes_of_many_clients_are_drawn_as_one_after_another():
    """More clients than are drawn together, and classes that run out on the way, against a loop over the clients."""
    rng = np.random.default_rng(4)
    labels = rng.choice(5, 12_000, p=[0.5, 0.3, 0.15, 0.04, 0.01]).astype(np.int32)
    sizes, rng, remaining = np.full(3000, 4), np.random.default_rng(1), np.bincount(labels)
    mixes = rng.dirichlet(1.5 * remaining / len(labels), size=3000)
    expected = np.zeros((3000, 5), int)
    for client in rng.permutation(3000):
        left = 4
        while left:
            weights = np.where(remaining > 0, mixes[client], 0.0)
            weights = remaining * 1.0 if weights.sum() == 0 else weights
            drawn = np.minimum(rng.multinomial(left, weights / weights.sum()), remaining)
            expected[client], remaining, left = expected[client] + drawn, remaining - drawn, left - drawn.sum()
    dealt = base.deal(labels, np.bincount(labels), sizes, 1.5, np.random.default_rng(1))
    np.testing.assert_array_equal(histogram(dealt, labels), expected)
    assert_each_sample_once(dealt, 12_000)


def test_two_shards_of_a_sorted_balanced_set_are_at_most_two_classes():
    labels = balanced(10, 600)
    parts = split(data.shards(2, 100), labels)
    assert [len(rows) for rows in parts] == [60] * 100
    assert set((histogram(parts, labels) > 0).sum(1)) == {1, 2}  # some clients are dealt two shards of one class
    assert np.diff(np.sort(parts[0])).max() > 60  # samples of a class were shuffled before they were cut


def test_sizes_take_equal_parts_of_classes_that_are_large_enough():
    labels = balanced(10, 100)
    for counts in histogram(split(data.sizes([31, 30, 7], classes=3), labels), labels):
        assert np.ptp(counts[counts > 0]) <= 1
    labels = np.repeat(np.arange(2), [3, 20])
    assert np.bincount(labels[split(data.sizes([15], classes=2), labels)[0]]).tolist() == [3, 12]


def test_lognormal_sizes_have_the_spread_asked_for():
    counts = np.array([len(rows) for rows in split(data.lognormal_sizes(400, 1.5), np.zeros(2_000_000))])
    assert np.std(np.log(counts)) == pytest.approx(1.5, rel=0.1)
    assert {len(rows) for rows in split(data.lognormal_sizes(7, 0.0), np.zeros(100))} <= {14, 15}


def test_by_user_keeps_users_apart_and_samples_in_order():
    toy = pooled(np.zeros(6, int), np.array([7, 3, 7, 11, 3, 7]))
    federated = toy.partition(data.by_user())
    assert federated.counts.tolist() == [2, 3, 1] and federated.arrays["index"].tolist() == [1, 4, 0, 2, 5, 3]
    assert toy.partition(data.by_user(2)).counts.tolist() == [2, 3]


def test_a_shared_pool_is_stored_once_and_counted_for_every_client():
    """Four clients with one pool of half the samples, as in the tables on AUDG and PSURDG."""
    dataset = pooled(balanced(5, 20))
    federated = dataset.partition(data.iid_shared(4, samples=50))
    assert federated.counts.tolist() == [50] * 4 and federated.arrays["x"] is dataset.x
    statistics = federated.statistics()
    assert (statistics.histogram == statistics.histogram[0]).all() and statistics.histogram[0].sum() == 50
    assert statistics.heterogeneity == 0.0


def test_descriptions_say_partition_options_and_seed_in_json():
    described = pooled(balanced(10, 60)).partition(data.sizes([10, 5, 5, 5], classes=2), seed=11).description
    said = {key: value for key, value in json.loads(json.dumps(described)).items() if key.startswith("partition")}
    assert said == {
        "partition": "sizes",
        "partition_clients": 4,
        "partition_samples": 25,
        "partition_sizes": "10+5×3",
        "partition_labels": "classes",
        "partition_classes": 2,
        "partition_seed": 11,
    }


@pytest.mark.parametrize(
    "partition",
    [
        data.by_user(4),
        data.iid_shared(4, 101),
        data.sizes([60, 41]),
        data.sizes([50, 50], classes=1),
        data.sizes([5, 5], classes=4),
        data.dirichlet(0.01, 30),
    ],
)
def test_impossible_splits_of_a_hundred_samples(partition):
    with pytest.raises(UserError, match=f"{partition.name}|clients have no training sample"):
        pooled(np.repeat(np.arange(3), [40, 40, 20]), np.arange(100) % 3).partition(partition)
    with pytest.raises(UserError, match=r"by_user: .*users"):
        pooled(np.zeros(6, int)).partition(data.by_user())


@pytest.mark.parametrize(
    "rows",
    [
        lambda: [np.arange(12) < 6, np.arange(12) >= 6],
        lambda: [np.arange(6), np.arange(6.0, 12.0)],
        lambda: np.arange(12) % 2,
        lambda: [np.arange(6), np.arange(6, 13)],
        lambda: [np.arange(4), []],
        lambda: np.array_split(np.random.permutation(12), 2),
    ],
)
def test_a_custom_split_gives_a_list_of_rows_and_follows_the_seed(rows):
    class mine(data.Partition):
        def split(self, labels, users, rng):
            return rows()

    with pytest.raises(UserError, match=r"gave|training sample|numpy.random"):
        pooled(np.arange(12) % 3).partition(mine())


def test_a_custom_partition_may_be_any_object_and_give_a_generator_of_lists():
    class Rest:
        description = {"partition": "rest"}

        def split(self, labels, users, rng):
            return (list(range(start, start + 4)) for start in (0, 4, 8))

    federated = pooled(np.arange(12) % 3).partition(Rest(), seed=4)
    assert federated.counts.tolist() == [4, 4, 4]
    assert (federated.description["partition"], federated.description["partition_seed"]) == ("rest", 4)
