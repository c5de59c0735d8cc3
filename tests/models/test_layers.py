from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from jaxafl.models.layers import Conv, conv2d, max_pool


def reference_conv(x, kernel, strides, padding):
    return lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


# image (height, width, channels), kernel (height, width), features, strides, padding
CONVOLUTIONS = {
    "few channels, even width": ((8, 10, 1), (5, 5), 4, (1, 1), "VALID"),
    "few channels, odd width": ((8, 9, 3), (3, 3), 4, (1, 1), "VALID"),
    "few channels, one column": ((6, 5, 1), (5, 5), 2, (1, 1), "VALID"),
    "many channels": ((8, 8, 12), (5, 5), 6, (1, 1), "VALID"),
    "many channels, same": ((6, 7, 16), (3, 3), 5, (1, 1), "SAME"),
    "few channels, same": ((6, 6, 2), (3, 3), 5, (1, 1), "SAME"),
    "even kernel, same": ((6, 7, 3), (2, 4), 5, (1, 1), "SAME"),
    "strided, few channels": ((9, 8, 2), (3, 3), 3, (2, 2), "SAME"),
    "strided, many channels": ((9, 8, 16), (3, 3), 3, (2, 3), "SAME"),
    "explicit padding, strided": ((8, 8, 16), (3, 3), 3, (2, 2), ((1, 1), (1, 1))),
    "explicit padding, uneven": ((5, 6, 2), (3, 2), 3, (1, 1), ((0, 2), (1, 0))),
    "1x1": ((4, 5, 40), (1, 1), 3, (1, 1), "VALID"),
    "1x1, strided": ((5, 6, 3), (1, 1), 3, (2, 2), "SAME"),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_conv2d_and_its_gradients_are_those_of_lax(case):
    image, window, features, strides, padding = CONVOLUTIONS[case]
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        x = jnp.asarray(rng.normal(size=(2, *image)))
        kernel = jnp.asarray(rng.normal(size=(*window, image[-1], features)))
        expected, pull_expected = jax.vjp(lambda x, k: reference_conv(x, k, strides, padding), x, kernel)
        actual, pull_actual = jax.vjp(lambda x, k: conv2d(x, k, strides, padding), x, kernel)
        assert actual.dtype == jnp.float64
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)
        cotangent = jnp.asarray(rng.normal(size=expected.shape))
        for mine, theirs in zip(pull_actual(cotangent), pull_expected(cotangent), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12)


@settings(max_examples=12, deadline=None)
@given(
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    channels=st.sampled_from([1, 3, 20]),
    window=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.sampled_from(["VALID", "SAME"]),
)
def test_conv2d_agrees_with_lax_or_refuses(height, width, channels, window, strides, padding):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(2, height, width, channels)), jnp.float32)
    kernel = jnp.asarray(rng.normal(size=(*window, channels, 3)), jnp.float32)
    if padding == "VALID" and (window[0] > height or window[1] > width):
        with pytest.raises(ValueError, match="does not fit"):
            conv2d(x, kernel, strides, padding)
    else:
        expected = reference_conv(x, kernel, strides, padding)
        np.testing.assert_allclose(conv2d(x, kernel, strides, padding), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("channels", [1, 16])
def test_conv2d_with_its_own_kernel_per_client(channels):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(3, 2, 8, 8, channels)), jnp.float32)
    kernel = jnp.asarray(rng.normal(size=(3, 5, 5, channels, 4)), jnp.float32)

    def loss(x, kernel):
        return jnp.sum(jnp.sin(conv2d(x, kernel)))

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1)))
    together = jax.jit(jax.vmap(gradient))(x, kernel)
    for client in range(3):
        alone = gradient(x[client], kernel[client])
        for mine, theirs in zip(together, alone, strict=True):
            np.testing.assert_allclose(mine[client], theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("image", "kernel", "options", "message"),
    [
        ((1, 8, 8), (3, 3, 1, 2), {}, r"images \[B, H, W, C\]"),
        ((1, 8, 8, 3), (3, 3, 1, 2), {}, r"\(1, 8, 8, 3\) and \(3, 3, 1, 2\)"),
        ((1, 4, 8, 1), (5, 5, 1, 2), {}, "5x5 does not fit into images of 4x8"),
        ((1, 8, 8, 1), (3, 3, 1, 2), {"strides": (0, 1)}, "strides"),
        ((1, 8, 8, 1), (3, 3, 1, 2), {"padding": "same"}, "padding"),
        ((1, 8, 8, 1), (3, 3, 1, 2), {"padding": ((1, -1), (0, 0))}, "padding"),
    ],
)
def test_conv2d_refuses(image, kernel, options, message):
    with pytest.raises(ValueError, match=message):
        conv2d(jnp.ones(image), jnp.ones(kernel), **options)


@pytest.mark.parametrize("padding", ["VALID", "SAME"])
def test_conv_module_takes_the_parameters_of_linen_conv(padding):
    x = jax.random.normal(jax.random.key(0), (2, 9, 9, 3))
    theirs = nn.Conv(4, (3, 3), strides=(2, 2), padding=padding)
    variables = theirs.init(jax.random.key(1), x)
    variables["params"]["bias"] = jnp.arange(4.0)
    mine = Conv(4, (3, 3), strides=(2, 2), padding=padding)
    np.testing.assert_allclose(mine.apply(variables, x), theirs.apply(variables, x), rtol=1e-4, atol=1e-5)
    assert jax.tree.map(jnp.shape, dict(mine.init(jax.random.key(1), x))) == jax.tree.map(jnp.shape, dict(variables))


def test_conv_module_without_bias_has_a_kernel_only():
    x = jnp.ones((1, 6, 6, 1))
    assert list(Conv(2, (3, 3), use_bias=False).init(jax.random.key(0), x)["params"]) == ["kernel"]


def reference_pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


@pytest.mark.parametrize("size", [(4, 6), (5, 7), (2, 3)])
@pytest.mark.parametrize("levels", [2, 1000])  # two levels: nearly every window has ties
def test_max_pool_and_its_gradient_are_those_of_reduce_window(size, levels):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.integers(0, levels, (3, *size, 5)), jnp.float32)
    expected, pull_expected = jax.vjp(reference_pool, x)
    actual, pull_actual = jax.vjp(max_pool, x)
    np.testing.assert_array_equal(actual, expected)
    cotangent = jnp.asarray(rng.normal(size=expected.shape), jnp.float32)
    np.testing.assert_array_equal(pull_actual(cotangent)[0], pull_expected(cotangent)[0])


def test_max_pool_gives_the_gradient_of_a_tie_to_the_first():
    gradient = jax.grad(lambda x: jnp.sum(max_pool(x)))(jnp.asarray([[1.0, 3.0], [3.0, 3.0]])[None, :, :, None])
    np.testing.assert_array_equal(gradient[0, :, :, 0], [[0.0, 1.0], [0.0, 0.0]])


@pytest.mark.parametrize("shape", [(4, 4, 1), (1, 1, 4, 1)])
def test_max_pool_refuses(shape):
    with pytest.raises(ValueError, match="max_pool"):
        max_pool(jnp.ones(shape))
