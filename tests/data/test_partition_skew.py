"""Partitions that share, cut or mix: `iid_shared`, `shards`, `dirichlet_equal`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxafl.data as data
from jaxafl.data.partition import Partition, base, dirichlet_equal, iid_shared, shards

QUICK = settings(max_examples=40, deadline=None)


def split(partitioner: Partition, labels: np.ndarray, seed: int = 0) -> list[np.ndarray]:
    return partitioner.split(labels, None, np.random.default_rng(seed))


def balanced(classes: int, per_class: int) -> np.ndarray:
    return np.random.default_rng(9).permutation(np.repeat(np.arange(classes, dtype=np.int32), per_class))


def histogram(clients: list[np.ndarray], labels: np.ndarray) -> np.ndarray:
    return np.stack([np.bincount(labels[rows], minlength=labels.max() + 1) for rows in clients])


def assert_each_sample_once(clients: list[np.ndarray], samples: int) -> None:
    np.testing.assert_array_equal(np.sort(np.concatenate(clients)), np.arange(samples))


def toy(labels: np.ndarray) -> data.Dataset:
    x = np.arange(len(labels), dtype=np.float32)[:, None]
    return data.Dataset("toy", x, labels, x[:1], labels[:1], int(labels.max()) + 1, data.as_is())


@QUICK
@given(samples=st.integers(1, 80), clients=st.integers(1, 9), part=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_iid_shared_gives_everyone_the_same_pool(samples, clients, part, seed):
    pool = max(1, int(part * samples))
    parts = split(iid_shared(clients, pool), np.zeros(samples, np.int32), seed)
    assert len(parts) == clients
    assert all(set(rows.tolist()) == set(parts[0].tolist()) for rows in parts)
    assert len(np.unique(parts[0])) == len(parts[0]) == pool
    assert set(parts[0].tolist()) <= set(range(samples))


def test_a_shared_pool_is_stored_once_and_counted_for_every_client():
    """Four clients with one pool of half the samples, as in the tables on AUDG and PSURDG."""
    dataset = toy(balanced(5, 20))
    federated = dataset.partition(iid_shared(4, samples=50))
    assert federated.counts.tolist() == [50] * 4
    assert federated.arrays["x"] is dataset.x
    statistics = federated.statistics()
    assert (statistics.histogram == statistics.histogram[0]).all() and statistics.histogram[0].sum() == 50
    assert statistics.heterogeneity == 0.0
    assert federated.description["partition_samples"] == 50
    assert toy(balanced(5, 20)).partition(iid_shared(2)).description["partition_samples"] == "all"


def test_a_pool_of_more_samples_than_there_are_is_refused():
    with pytest.raises(ValueError, match="samples=101 asked for, but the data has 100"):
        split(iid_shared(4, 101), balanced(5, 20))


@QUICK
@given(
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=120),
    per_client=st.integers(1, 4),
    clients=st.integers(1, 20),
    seed=st.integers(0, 2**32),
)
def test_shards_are_runs_of_the_sorted_labels_dealt_once(labels, per_client, clients, seed):
    labels = np.array(labels, np.int32)
    if per_client * clients > len(labels):
        with pytest.raises(ValueError, match="fewer clients or fewer shards"):
            split(shards(per_client, clients), labels, seed)
        return
    parts = split(shards(per_client, clients), labels, seed)
    assert_each_sample_once(parts, len(labels))
    assert max(map(len, parts)) - min(map(len, parts)) <= per_client
    # A shard touches two classes at its ends, and others only if they are smaller than itself.
    smaller = sum(count < len(labels) // (per_client * clients) for count in np.bincount(labels))
    assert all(len(np.unique(labels[rows])) <= 2 * per_client + smaller for rows in parts)


def test_two_shards_of_a_sorted_balanced_set_are_at_most_two_classes():
    labels = balanced(10, 600)
    parts = split(shards(2, 100), labels)
    classes = (histogram(parts, labels) > 0).sum(1)
    assert [len(rows) for rows in parts] == [60] * 100
    assert set(classes) == {1, 2}  # some clients are dealt two shards of one class
    assert np.diff(np.sort(parts[0])).max() > 60  # samples of a class were shuffled before they were cut


@QUICK
@given(
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=150),
    clients=st.integers(1, 20),
    alpha=st.floats(1e-6, 1e4),
    seed=st.integers(0, 2**32),
)
def test_dirichlet_equal_gives_every_sample_once_in_equal_parts(labels, clients, alpha, seed):
    labels = np.array(labels, np.int32)
    if clients > len(labels):
        with pytest.raises(ValueError, match=f"at most {len(labels)} clients"):
            split(dirichlet_equal(alpha, clients), labels, seed)
        return
    parts = split(dirichlet_equal(alpha, clients), labels, seed)
    assert len(parts) == clients
    assert_each_sample_once(parts, len(labels))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_mixes_have_the_moments_of_the_distribution():
    """An entry of Dir(alpha · p) has mean p_c and variance p_c (1 - p_c) / (alpha + 1)."""
    counts, alpha = np.array([700, 200, 100]), 3.0
    mixes = base.dirichlet_mixes(alpha, counts, 20_000, np.random.default_rng(0))
    prior = counts / counts.sum()
    np.testing.assert_allclose(mixes.mean(0), prior, atol=0.01)
    np.testing.assert_allclose(mixes.var(0), prior * (1 - prior) / (alpha + 1), rtol=0.05)


@pytest.mark.parametrize("alpha", [0.3, 2.0, 50.0])
def test_dirichlet_equal_has_the_concentration_asked_for(alpha):
    """Class shares of s samples vary by p (1 - p) (s + alpha) / (s (1 + alpha)), and more for the last clients served,
    who get what is left."""
    labels, clients = balanced(10, 2000), 200
    shares = histogram(split(dirichlet_equal(alpha, clients), labels), labels) / 100
    np.testing.assert_allclose(shares.mean(0), 0.1)
    assert shares.var() == pytest.approx(0.1 * 0.9 * (100 + alpha) / (100 * (1 + alpha)), rel=0.25)


def test_a_tiny_concentration_gives_most_clients_one_class():
    labels = balanced(10, 100)
    classes = (histogram(split(dirichlet_equal(1e-6, 20), labels), labels) > 0).sum(1)
    assert np.mean(classes == 1) > 0.5


@pytest.mark.slow
def test_a_class_that_runs_out_is_left_out_of_the_mix():
    """Means of the class counts against draws one by one, where classes 0 and 1 run out."""
    mix, counts, size, repeats = np.array([0.5, 0.3, 0.2]), np.array([2, 2, 10]), 6, 4000
    rng = np.random.default_rng(0)

    def one_by_one() -> np.ndarray:
        left = counts.copy()
        for _ in range(size):
            weights = np.where(left > 0, mix, 0)
            left[rng.choice(3, p=weights / weights.sum())] -= 1
        return counts - left

    labels = np.repeat(np.arange(3), counts)
    expected = np.mean([one_by_one() for _ in range(repeats)], axis=0)
    dealt = [base.deal(labels, counts, np.array([size]), mix[None].copy(), rng)[0] for _ in range(repeats)]
    actual = histogram(dealt, labels).mean(0)
    np.testing.assert_allclose(actual, expected, atol=0.06)


def test_where_nothing_of_a_mix_is_left_the_samples_left_are_taken():
    labels = np.repeat(np.arange(3), [2, 5, 5])
    parts = base.deal(
        labels, np.bincount(labels), np.array([12]), np.array([[1.0, 0.0, 0.0]]), np.random.default_rng(0)
    )
    assert_each_sample_once(parts, 12)


def test_classes_of_many_clients_are_drawn_as_one_after_another():
    """More clients than are drawn together, and classes that run out on the way, against a loop over the clients."""
    rng = np.random.default_rng(4)
    labels = rng.choice(5, 12_000, p=[0.5, 0.3, 0.15, 0.04, 0.01]).astype(np.int32)
    mixes, sizes, seeds = rng.dirichlet(np.full(5, 0.3), size=3000), np.full(3000, 4), (1, 2)
    for seed in seeds:
        rng, remaining = np.random.default_rng(seed), np.bincount(labels)
        expected = np.zeros((3000, 5), int)
        for client in rng.permutation(3000):
            left = 4
            while left:
                weights = np.where(remaining > 0, mixes[client], 0.0)
                weights = remaining * 1.0 if weights.sum() == 0 else weights
                drawn = np.minimum(rng.multinomial(left, weights / weights.sum()), remaining)
                expected[client], remaining, left = expected[client] + drawn, remaining - drawn, left - drawn.sum()
        dealt = base.deal(labels, np.bincount(labels), sizes, mixes.copy(), np.random.default_rng(seed))
        np.testing.assert_array_equal(histogram(dealt, labels), expected)
        assert_each_sample_once(dealt, 12_000)


@pytest.mark.parametrize("partitioner", [iid_shared(7, 40), shards(2, 7), dirichlet_equal(0.5, 7)])
def test_the_seed_decides_the_partition(partitioner):
    labels = balanced(10, 60)
    first, again, other = (split(partitioner, labels, seed) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dirichlet_equal(0.0, 5), "dirichlet_equal: alpha must be > 0"),
        (lambda: dirichlet_equal(float("inf"), 5), "alpha must be a finite number, got inf"),
        (lambda: dirichlet_equal(1.0, 0), "clients must be at least 1"),
        (lambda: iid_shared(0), "clients must be at least 1"),
        (lambda: iid_shared(3, 0), "iid_shared: samples must be at least 1"),
        (lambda: shards(0, 5), "shards: per_client must be at least 1"),
        (lambda: shards(2, 0), "clients must be at least 1"),
    ],
)
def test_impossible_options_are_refused_at_once(make, message):
    with pytest.raises(ValueError, match=message):
        make()
