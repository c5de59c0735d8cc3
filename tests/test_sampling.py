"""Mini-batch indices: permutations for every size, uniform draws, and each tied to its key alone."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxafl.client import batches
from jaxafl.device.keys import seed_key
from tests.problems import drawn

MOST = 512
compiled_shuffle = jax.jit(batches.shuffled)
epochs_of = jax.jit(jax.vmap(batches.shuffled, in_axes=(None, 0, None, None)))


@settings(max_examples=100, deadline=None)
@given(count=st.integers(1, MOST), epoch=st.integers(0, 2**31 - 1), seed=st.integers(0, 2**64 - 1))
@example(count=1, epoch=0, seed=0)
@example(count=2, epoch=0, seed=0)
def test_a_shuffle_is_a_permutation(count: int, epoch: int, seed: int) -> None:
    ranks = jnp.arange(MOST, dtype=jnp.int32)
    order = np.asarray(compiled_shuffle(seed_key(seed), jnp.int32(epoch), ranks, jnp.int32(count)))
    np.testing.assert_array_equal(np.sort(order[:count]), np.arange(count))
    assert (order[count:] == order[0]).all()


@pytest.mark.slow
@pytest.mark.parametrize("count", [2**16 + 1, 1_000_003])
def test_large_shuffles_are_permutations(count: int) -> None:
    order = np.asarray(
        batches.shuffled(seed_key(5), jnp.int32(3), jnp.arange(count, dtype=jnp.int32), jnp.int32(count))
    )
    np.testing.assert_array_equal(np.sort(order), np.arange(count))


def test_a_shuffle_may_be_entered_anywhere() -> None:
    whole = np.asarray(batches.shuffled(seed_key(1), jnp.int32(2), jnp.arange(50, dtype=jnp.int32), jnp.int32(50)))
    part = np.asarray(batches.shuffled(seed_key(1), jnp.int32(2), jnp.asarray([7, 49, 0], jnp.int32), jnp.int32(50)))
    np.testing.assert_array_equal(part, whole[[7, 49, 0]])


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3, 5, 10, 31])
def test_every_sample_stands_at_every_rank_equally_often(count: int) -> None:
    """Chi-square of (rank, sample) pairs over epochs: (n-1)² degrees of freedom, mean and five standard deviations."""
    epochs = 4000
    orders = np.asarray(
        epochs_of(
            seed_key(11), jnp.arange(epochs, dtype=jnp.int32), jnp.arange(count, dtype=jnp.int32), jnp.int32(count)
        )
    )
    table = np.stack([np.bincount(orders[:, rank], minlength=count) for rank in range(count)])
    expected = epochs / count
    freedom = (count - 1) ** 2
    assert ((table - expected) ** 2 / expected).sum() < freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.slow
def test_all_orders_of_four_samples_are_equally_frequent() -> None:
    epochs = 24_000
    orders = np.asarray(
        epochs_of(seed_key(2), jnp.arange(epochs, dtype=jnp.int32), jnp.arange(4, dtype=jnp.int32), jnp.int32(4))
    )
    codes = orders @ np.asarray([64, 16, 4, 1])
    counts = np.asarray(
        [np.sum(codes == np.asarray(order) @ [64, 16, 4, 1]) for order in itertools.permutations(range(4))]
    )
    assert counts.sum() == epochs
    assert ((counts - 1000) ** 2 / 1000).sum() < 49.7  # 23 degrees of freedom, 99.9 %


@pytest.mark.slow
def test_neighbours_are_not_kept_together() -> None:
    """How often samples 0 and 1 end up next to each other: 2/n of the epochs."""
    epochs, count = 4000, 20
    orders = np.asarray(
        epochs_of(
            seed_key(4), jnp.arange(epochs, dtype=jnp.int32), jnp.arange(count, dtype=jnp.int32), jnp.int32(count)
        )
    )
    where = np.argsort(orders, axis=1)
    together = (np.abs(where[:, 0] - where[:, 1]) == 1).mean()
    assert abs(together - 2 / count) < 4 * np.sqrt(2 / count / epochs)


@pytest.mark.parametrize("count", [1, 3, 7, 100])
def test_draws_with_replacement_are_uniform(count: int) -> None:
    draws = jax.vmap(lambda step: drawn(seed_key(9), step, 50, jnp.int32(count)))
    values = np.asarray(draws(jnp.arange(2000, dtype=jnp.int32)))
    assert values.min() >= 0 and values.max() < count
    expected = values.size / count
    statistic = ((np.bincount(values.ravel(), minlength=count) - expected) ** 2 / expected).sum()
    assert statistic < count - 1 + 5 * np.sqrt(2 * max(count - 1, 1))
    if count > 1:
        flat = values.ravel().astype(float)
        assert abs(np.corrcoef(flat[1:], flat[:-1])[0, 1]) < 4 / np.sqrt(flat.size)


def test_draws_do_not_depend_on_the_batch_size() -> None:
    few = drawn(seed_key(9), jnp.int32(3), 4, jnp.int32(100))
    many = drawn(seed_key(9), jnp.int32(3), 64, jnp.int32(100))
    np.testing.assert_array_equal(few, many[:4])
