"""Federated data from a user's arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxafl.data as data

X = np.arange(20, dtype=np.float64).reshape(10, 2)
Y = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])
IDS = np.array(["b", "a", "b", "a", "b", "a", "b", "a", "b", "c"])


def test_clients_follow_sorted_ids_and_floats_become_float32():
    federated = data.from_arrays(X, Y, IDS, x_test=X[:3], y_test=Y[:3])
    assert federated.counts.tolist() == [4, 5, 1]
    assert federated.num_classes == 3
    x, y = federated.fetch(federated.arrays, 1, jnp.arange(5), jax.random.key(0))
    assert x.dtype == jnp.float32
    np.testing.assert_array_equal(x, X[IDS == "b"])
    np.testing.assert_array_equal(y, Y[IDS == "b"])


def test_held_out_samples_are_a_share_of_each_client_and_not_trained_on():
    ids = np.repeat([0, 1], [10, 20])
    x = np.arange(30, dtype=np.float32)[:, None]
    y = np.zeros(30, int)
    federated = data.from_arrays(x, y, ids, test_fraction=0.3, seed=5)
    assert federated.counts.tolist() == [7, 14]
    assert sorted(np.concatenate([federated.arrays["x"], federated.x_test])[:, 0]) == list(range(30))
    assert (federated.x_test < 10).sum() == 3
    again = data.from_arrays(x, y, ids, test_fraction=0.3, seed=5)
    np.testing.assert_array_equal(federated.x_test, again.x_test)
    assert not np.array_equal(federated.x_test, data.from_arrays(x, y, ids, test_fraction=0.3, seed=6).x_test)


def test_bytes_are_cast_and_tokens_are_left_alone():
    def preprocessed(dtype):
        x = np.full((10, 2), 7, dtype)
        return data.from_arrays(x, Y, IDS, x_test=x, y_test=Y).example[0]

    assert preprocessed(np.uint8).dtype == np.float32 and preprocessed(np.uint8)[0, 0] == 7.0
    assert preprocessed(np.int32).dtype == np.int32


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((X, Y, IDS), {}, ValueError, "either x_test and y_test, or test_fraction"),
        ((X, Y, IDS), {"x_test": X}, ValueError, "either x_test and y_test, or test_fraction"),
        ((X, Y, IDS), {"x_test": X, "y_test": Y, "test_fraction": 0.1}, ValueError, "either x_test"),
        ((X, Y, IDS[:9]), {"test_fraction": 0.3}, ValueError, "one entry per sample"),
        ((X, Y, IDS), {"test_fraction": 1.5}, ValueError, r"must lie in \(0, 1\); got 1.5"),
        ((X, Y, IDS), {"test_fraction": 0.01}, ValueError, "holds out no sample"),
        ((X / 0.5 + np.nan, Y, IDS), {"test_fraction": 0.3}, ValueError, "NaN"),
        ((X, Y + 0.5, IDS), {"test_fraction": 0.3}, TypeError, "integer classes"),
        ((X.astype(str), Y, IDS), {"test_fraction": 0.3}, TypeError, "numeric"),
        ((X, Y, IDS), {"test_fraction": 0.3, "num_classes": 2}, ValueError, "outside 0..1"),
    ],
)
def test_mistakes_are_explained(arguments, options, error, message):
    with pytest.raises(error, match=message):
        data.from_arrays(*arguments, **options)
