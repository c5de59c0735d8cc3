"""The synthetic(α, β) task, stored and lazy."""

from __future__ import annotations

import gzip
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxafl.data as data
from tests.variants import slow_but


def by_client(federated: data.FederatedData) -> list[np.ndarray]:
    x, offset = federated.arrays["x"], federated.arrays["offset"]
    return [x[start : start + count] for start, count in zip(offset, federated.counts, strict=True)]


def test_lazy_and_stored_hold_the_same_samples():
    stored = data.synthetic(0.5, 0.5, 8, seed=3, max_size=300)
    lazy = data.synthetic(0.5, 0.5, 8, seed=3, max_size=300, lazy=True)
    np.testing.assert_array_equal(lazy.counts, stored.counts)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(lazy.arrays)) < 100
    np.testing.assert_array_equal(lazy.x_test, stored.x_test)
    np.testing.assert_array_equal(lazy.y_test, stored.y_test)
    clients = jnp.arange(8)
    positions = jnp.stack([jnp.linspace(0, count - 1, 33).astype(jnp.int32) for count in stored.counts])
    for_stored, for_lazy = (
        jax.jit(jax.vmap(form.fetch, in_axes=(None, 0, 0, None)))(form.arrays, clients, positions, jax.random.key(0))
        for form in (stored, lazy)
    )
    np.testing.assert_allclose(for_lazy[0], for_stored[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(for_lazy[1], for_stored[1])


def test_seeds_and_clients_differ_and_seeds_reproduce():
    one, again, two = (data.synthetic(1.0, 1.0, 4, seed=seed, max_size=80) for seed in (0, 0, 2**40))
    np.testing.assert_array_equal(one.arrays["x"], again.arrays["x"])
    np.testing.assert_array_equal(one.arrays["y"], again.arrays["y"])
    assert not np.array_equal(one.x_test, two.x_test)
    first, second = by_client(one)[:2]
    assert not np.allclose(first[:40], second[:40])


def test_inputs_have_the_prescribed_covariance():
    """Around its client's mean, feature j has variance j^-1.2 and features are uncorrelated."""
    federated = data.synthetic(1.0, 1.0, 60, max_size=2000)
    centred = np.concatenate([x - x.mean(0) for x in by_client(federated)])
    covariance = centred.T @ centred / (len(centred) - federated.num_clients)
    expected = np.arange(1, 61) ** -1.2
    np.testing.assert_allclose(np.diag(covariance), expected, rtol=0.08)
    correlation = covariance / np.sqrt(np.outer(expected, expected))
    assert np.abs(correlation - np.eye(60)).max() < 5 / np.sqrt(len(centred))


@pytest.mark.parametrize("beta", slow_but([0.0, 1.0, 3.0], 1.0))
def test_beta_is_the_standard_deviation_of_client_centres(beta):
    """The mean over the 60 features of v_k is B_k plus noise of variance 1/60: variance beta² + 1/60 over clients."""
    federated = data.synthetic(1.0, beta, 800, max_size=50)
    centres = np.array([x.mean() for x in by_client(federated)])
    assert np.var(centres) == pytest.approx(beta**2 + 1 / 60, rel=0.2)


def test_alpha_cancels_in_the_labels_but_beta_does_not():
    """u_k adds the same number to the score of every class; B_k moves the inputs."""
    zero, shifted, moved = (data.synthetic(*options, 20, max_size=200) for options in [(0, 0), (3, 0), (0, 3)])
    np.testing.assert_array_equal(zero.x_test, shifted.x_test)
    assert (zero.y_test == shifted.y_test).mean() > 0.99
    assert not np.allclose(zero.x_test, moved.x_test, atol=0.5)


def test_sizes_are_lognormal_plus_fifty_with_a_tenth_for_testing():
    federated = data.synthetic(1.0, 1.0, 20_000, lazy=True)
    assert federated.counts.min() >= 45
    # n - 50 is the floor of lognormal(4, 2), whose median is e^4 = 54.6, and 9/10 of n are for training.
    assert np.median(federated.counts) == pytest.approx(0.9 * (50 + np.exp(4)), rel=0.05)
    above = np.mean(federated.counts > 0.9 * (50 + np.exp(4 + 2)))
    assert above == pytest.approx(0.1587, abs=0.01)
    small = data.synthetic(1.0, 1.0, 50, max_size=100)
    assert small.counts.max() == 90
    sizes = small.counts.sum() + len(small.y_test)
    assert len(small.y_test) == pytest.approx(0.1 * sizes, rel=0.1)


@pytest.mark.data
def test_the_reference_sample_has_the_same_distribution(data_dir):
    """The test half of FedProx's own synthetic(1,1): same centred variances, same spread of sizes and labels."""
    with gzip.open(data_dir / "synthetic_1_1" / "mytest.json.gz") as file:
        reference = json.load(file)
    xs = [np.array(reference["user_data"][user]["x"]) for user in reference["users"]]
    ys = [np.array(reference["user_data"][user]["y"]).astype(int) for user in reference["users"]]
    federated = data.synthetic(1.0, 1.0, 300, max_size=2000)
    ours = by_client(federated)

    def spread(groups):
        centred = np.concatenate([x - x.mean(0) for x in groups])
        return (centred**2).sum(0) / sum(len(x) - 1 for x in groups)

    np.testing.assert_allclose(spread(xs), spread(ours), rtol=0.3)
    assert np.std([x.mean() for x in xs]) == pytest.approx(np.std([x.mean() for x in ours]), rel=0.4)
    # Labels: the share of a client's most frequent class, which α and the sizes of W and v set.
    theirs = np.mean([np.bincount(y).max() / len(y) for y in ys])
    histogram = federated.statistics().histogram
    assert np.mean(histogram.max(1) / histogram.sum(1)) == pytest.approx(theirs, abs=0.12)
