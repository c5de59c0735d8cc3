"""What a simulation sees of the data: `fetch`, `preprocess`, the test set, `example`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxafl.data as data


def images(augment=None) -> data.Dataset:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (40, 4, 4, 1), np.uint8)
    y = np.arange(40) % 5
    return data.Dataset("images", x, y, x[:6], y[:6], 5, data.normalise(255.0, 0.25, 0.5, augment=augment))


def test_fetch_under_jit_and_vmap_gathers_and_normalises():
    dataset = images()
    federated = dataset.partition(data.dirichlet(1.0, 4, min_size=3), seed=2)
    clients, positions = jnp.array([3, 0, 2]), jnp.array([[0, 1], [2, 0], [1, 1]])
    keys = jax.random.split(jax.random.key(0), 3)
    fetch = jax.jit(jax.vmap(federated.fetch, in_axes=(None, 0, 0, 0)))
    x, y = fetch(jax.device_put(federated.arrays), clients, positions, keys)

    index, offset = federated.arrays["index"], federated.arrays["offset"]
    rows = np.stack([index[offset[c] + p] for c, p in zip(np.array(clients), np.array(positions), strict=True)])
    assert x.dtype == jnp.float32 and y.dtype == jnp.int32
    np.testing.assert_allclose(x, (dataset.x[rows] / 255.0 - 0.25) / 0.5, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(y, dataset.y[rows])


def test_pixels_stay_uint8_on_the_device_and_nothing_is_copied_per_client():
    dataset = images()
    federated = dataset.partition(data.iid(4))
    assert federated.arrays["x"] is dataset.x
    assert federated.arrays["x"].dtype == np.uint8
    assert federated.arrays["index"].dtype == federated.arrays["offset"].dtype == np.int32
    assert federated.counts.dtype == np.int64
    assert federated.num_clients == 4


@pytest.mark.slow
def test_augmentation_sees_raw_training_samples_and_a_key_and_spares_the_test_set():
    def brighten(x, key):
        assert x.dtype == jnp.uint8
        return jnp.clip(x.astype(jnp.int32) + jax.random.randint(key, (), 1, 100), 0, 255).astype(jnp.uint8)

    plain, augmented = images().partition(data.iid(1)), images(brighten).partition(data.iid(1))
    positions = jnp.arange(5)
    keys = [jax.random.split(jax.random.key(seed), 5) for seed in (1, 2)]
    first, second = (augmented.fetch(augmented.arrays, 0, positions, own)[0] for own in keys)
    untouched, _ = plain.fetch(plain.arrays, 0, positions, keys[0])
    assert (first >= untouched).all() and (first > untouched).any()
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(augmented.preprocess(augmented.x_test), plain.preprocess(plain.x_test))


def test_normalisation_per_channel_acts_on_the_last_axis():
    x = np.full((2, 3, 3, 3), 51, np.uint8)
    out = data.normalise(255.0, (0.0, 0.1, 0.2), (1.0, 0.5, 0.1)).transform(x)
    np.testing.assert_allclose(out[0, 0, 0], [0.2, 0.2, 0.0], atol=1e-6)
