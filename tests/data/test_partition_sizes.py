"""Partitions by size: `sizes`, `lognormal_sizes`."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import jaxafl.data as data
from jaxafl.cli.catalogue import offered
from jaxafl.data.partition import Partition, lognormal_sizes, sizes

QUICK = settings(max_examples=40, deadline=None)


def split(partitioner: Partition, labels: np.ndarray, seed: int = 0) -> list[np.ndarray]:
    return partitioner.split(labels, None, np.random.default_rng(seed))


def balanced(classes: int, per_class: int) -> np.ndarray:
    return np.random.default_rng(9).permutation(np.repeat(np.arange(classes, dtype=np.int32), per_class))


def assert_no_sample_twice(clients: list[np.ndarray]) -> None:
    rows = np.concatenate(clients)
    assert len(np.unique(rows)) == len(rows)


@QUICK
@given(
    wanted=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    unused=st.integers(0, 50),
    alpha=st.none() | st.floats(1e-6, 1e4),
    seed=st.integers(0, 2**32),
)
def test_sizes_are_met_exactly_and_no_sample_is_used_twice(wanted, unused, alpha, seed):
    labels = np.random.default_rng(seed).integers(0, 5, sum(wanted) + unused)
    parts = split(sizes(wanted, alpha=alpha), labels, seed)
    assert [len(rows) for rows in parts] == wanted
    assert_no_sample_twice(parts)


@QUICK
@given(
    wanted=st.lists(st.integers(4, 30), min_size=1, max_size=8),
    classes=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
def test_sizes_with_classes_gives_exactly_that_many(wanted, classes, seed):
    labels = balanced(10, 60)
    parts = split(sizes(wanted, classes=classes), labels, seed)
    assert [len(rows) for rows in parts] == wanted
    assert_no_sample_twice(parts)
    for rows in parts:
        counts = np.bincount(labels[rows])
        assert np.count_nonzero(counts) == classes


def test_samples_spread_equally_over_the_classes_where_these_are_large_enough():
    labels = balanced(10, 100)
    for rows in split(sizes([31, 30, 7], classes=3), labels):
        counts = np.bincount(labels[rows])
        held = counts[counts > 0]
        assert held.max() - held.min() <= 1


def test_a_class_too_small_for_an_equal_part_gives_what_it_has():
    labels = np.repeat(np.arange(2), [3, 20])
    counts = np.bincount(labels[split(sizes([15], classes=2), labels)[0]])
    assert counts.tolist() == [3, 12]


def test_sizes_without_skew_have_the_labels_of_the_data():
    labels = balanced(10, 2000)
    shares = np.bincount(labels[split(sizes([10_000, 5000]), labels)[0]]) / 10_000
    np.testing.assert_allclose(shares, 0.1, atol=0.01)


@pytest.mark.parametrize("alpha", [0.2, 4.0])
def test_alpha_is_the_concentration_of_the_mixes(alpha):
    """Few samples of many: class shares of s samples vary by p (1 - p) (s + alpha) / (s (1 + alpha))."""
    labels = balanced(5, 20_000)
    parts = split(sizes([50] * 500, alpha=alpha), labels)
    shares = np.stack([np.bincount(labels[rows], minlength=5) for rows in parts]) / 50
    assert shares.var() == pytest.approx(0.2 * 0.8 * (50 + alpha) / (50 * (1 + alpha)), rel=0.1)


def test_the_description_says_sizes_and_skew_in_few_words():
    described = sizes([10_000, 5000, 5000, 5000], classes=2).description
    assert json.loads(json.dumps(described)) == {
        "partition": "sizes",
        "partition_clients": 4,
        "partition_samples": 25_000,
        "partition_sizes": "10000+5000×3",
        "partition_labels": "classes",
        "partition_classes": 2,
    }
    assert sizes([6250] * 4).description["partition_sizes"] == "6250×4"
    assert sizes([7, 9], alpha=0.5).description["partition_alpha"] == 0.5
    assert sizes(range(1, 301)).description["partition_sizes"] == "300 sizes from 1 to 300"


@QUICK
@given(
    samples=st.integers(1, 300),
    clients=st.integers(1, 20),
    sigma=st.floats(0, 50),
    min_size=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
def test_lognormal_sizes_deal_every_sample_once(samples, clients, sigma, min_size, seed):
    labels = np.zeros(samples, np.int32)
    partitioner = lognormal_sizes(clients, sigma, min_size)
    if clients * min_size > samples:
        with pytest.raises(ValueError, match=f"cannot give {clients} clients min_size={min_size}"):
            split(partitioner, labels, seed)
        return
    parts = split(partitioner, labels, seed)
    assert len(parts) == clients
    assert min(map(len, parts)) >= min_size
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(samples))


def test_lognormal_sizes_have_the_spread_asked_for():
    counts = np.array([len(rows) for rows in split(lognormal_sizes(400, 1.5), np.zeros(2_000_000, np.int32))])
    assert np.std(np.log(counts)) == pytest.approx(1.5, rel=0.1)
    equal = [len(rows) for rows in split(lognormal_sizes(7, 0.0), np.zeros(100, np.int32))]
    assert set(equal) <= {14, 15}


@QUICK
@given(seed=st.integers(0, 2**32))
def test_the_seed_decides_the_partition(seed):
    assume(seed != 3)
    labels = balanced(10, 60)
    for partitioner in (sizes([50, 20]), sizes([50, 20], classes=2), sizes([50, 20], alpha=1.0), lognormal_sizes(7)):
        first, again, other = (split(partitioner, labels, each) for each in (seed, seed, 3))
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
        assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: sizes([]), ValueError, "clients must be at least 1, got 0"),
        (lambda: sizes(5), TypeError, "a list of one size per client"),
        (lambda: sizes([5, 0]), ValueError, "each size must be at least 1, got 0"),
        (lambda: sizes([5, 2.5]), TypeError, r"each size must be a whole number, got 2\.5"),
        (lambda: sizes([5, 5], classes=2, alpha=1.0), ValueError, "classes or alpha, not both"),
        (lambda: sizes([5, 2], classes=3), ValueError, "a client of 2 samples cannot hold 3 classes"),
        (lambda: sizes([5], classes=0), ValueError, "classes must be at least 1"),
        (lambda: sizes([5], alpha=0), ValueError, "sizes: alpha must be > 0"),
        (lambda: lognormal_sizes(0), ValueError, "clients must be at least 1"),
        (lambda: lognormal_sizes(3, -1.0), ValueError, "sigma must be >= 0"),
        (lambda: lognormal_sizes(3, min_size=0), ValueError, "min_size must be at least 1"),
    ],
)
def test_impossible_options_are_refused_at_once(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("partitioner", "message"),
    [
        (sizes([600, 401]), "1001 samples asked for together, but the data has 1000"),
        (sizes([20, 20], classes=11), "classes=11, but the data has 10 classes; use classes=10 or less"),
        (sizes([201, 20], classes=2), r"sizes of 201\+20 .* hold 100 to 100.*Use more classes"),
    ],
)
def test_what_the_data_cannot_give_is_refused(partitioner, message):
    with pytest.raises(ValueError, match=message):
        split(partitioner, balanced(10, 100))


def test_every_partition_can_be_named_on_the_command_line():
    assert set(offered("partitions")) == {
        name for name in data.partition.__all__ if name.islower() and callable(getattr(data.partition, name))
    }
