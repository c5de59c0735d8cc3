"""Mini-batch indices: permutations for every size, uniform draws, and each tied to its key alone."""

from __future__ import annotations

import functools
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


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def orders(seed: int, count: int, epochs: int) -> jax.Array:
    """The order of so many samples in each epoch, [epochs, count]."""
    ranks = jnp.arange(count, dtype=jnp.int32)
    one = lambda epoch: batches.shuffled(seed_key(seed), epoch, ranks, jnp.int32(count))  # noqa: E731
    return jax.vmap(one)(jnp.arange(epochs, dtype=jnp.int32))


@settings(max_examples=100, deadline=None)
@given(count=st.integers(1, MOST), epoch=st.integers(0, 2**31 - 1), seed=st.integers(0, 2**64 - 1))
@example(count=1, epoch=0, seed=0)
@example(count=2, epoch=0, seed=0)
def test_a_shuffle_is_a_permutation(count: int, epoch: int, seed: int) -> None:
    ranks = jnp.arange(MOST, dtype=jnp.int32)
    order = np.asarray(compiled_shuffle(seed_key(seed), jnp.int32(epoch), ranks, jnp.int32(count)))
    np.testing.assert_array_equal(np.sort(order[:count]), np.arange(count))
    assert (order[count:] == order[0]).all()


def test_a_shuffle_may_be_entered_anywhere() -> None:
    whole = np.asarray(batches.shuffled(seed_key(1), jnp.int32(2), jnp.arange(50, dtype=jnp.int32), jnp.int32(50)))
    part = np.asarray(batches.shuffled(seed_key(1), jnp.int32(2), jnp.asarray([7, 49, 0], jnp.int32), jnp.int32(50)))
    np.testing.assert_array_equal(part, whole[[7, 49, 0]])


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3, 5, 10, 31])
def test_every_sample_stands_at_every_rank_equally_often(count: int) -> None:
    """Chi-square of (rank, sample) pairs over epochs: (n-1)² degrees of freedom, mean and five standard deviations."""
    epochs = 4000
    table = np.stack([np.bincount(samples, minlength=count) for samples in orders(11, count, epochs).T])
    expected = epochs / count
    freedom = (count - 1) ** 2
    assert ((table - expected) ** 2 / expected).sum() < freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.slow
def test_all_orders_of_four_samples_are_equally_frequent() -> None:
    found, counts = np.unique(orders(2, 4, 24_000), axis=0, return_counts=True)
    assert found.tolist() == [list(order) for order in itertools.permutations(range(4))]
    assert ((counts - 1000) ** 2 / 1000).sum() < 49.7  # 23 degrees of freedom, 99.9 %


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
