from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax import lax

from jaxafl.models.networks import convolution
from jaxafl.models.networks.convolution import Conv, conv2d, max_pool
from tests.variants import slow_but


def reference_conv(x, kernel, strides, padding):
    return lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


# image (height, width, channels), kernel (height, width), features, strides, padding
CONVOLUTIONS = {
    "few channels, even width": ((8, 10, 1), (5, 5), 4, (1, 1), "VALID"),
    "many channels": ((8, 8, 12), (5, 5), 6, (1, 1), "VALID"),
    "few channels, same": ((6, 6, 2), (3, 3), 5, (1, 1), "SAME"),
    "strided, many channels": ((9, 8, 16), (3, 3), 3, (2, 3), "SAME"),
    "gradients from y, uneven padding": ((5, 6, 8), (3, 2), 3, (1, 1), ((0, 2), (1, 0))),
    "gradients from y, wide padding": ((5, 4, 8), (2, 2), 3, (1, 1), ((3, 2), (0, 4))),
    "one row": ((4, 6, 4), (1, 3), 3, (1, 1), "VALID"),
    "1x1, strided": ((5, 6, 3), (1, 1), 3, (2, 2), "SAME"),
}


@pytest.mark.parametrize(
    "case", slow_but(CONVOLUTIONS, *{*CONVOLUTIONS} - {"few channels, even width", "gradients from y, wide padding"})
)
def test_conv2d_and_its_gradients_are_those_of_lax(case):
    image, window, features, strides, padding = CONVOLUTIONS[case]
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        x = jnp.asarray(rng.normal(size=(2, *image)))
        kernel = jnp.asarray(rng.normal(size=(*window, image[-1], features)))
        mine, theirs = with_gradients(x, kernel, strides, padding)
        assert mine[0].dtype == jnp.float64
        for actual, expected in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


@functools.partial(jax.jit, static_argnums=(2, 3))
def with_gradients(x, kernel, strides, padding):
    """The convolution and its gradients, as matrix products and by lax."""
    pairs = []
    for convolve in (conv2d, reference_conv):
        y, pull = jax.vjp(lambda x, k, convolve=convolve: convolve(x, k, strides, padding), x, kernel)
        pairs.append((y, *pull(jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))))
    return pairs


def assert_close(actual, expected, tolerance=1e-4):
    """Differences up to `tolerance` of the largest value."""
    expected = np.asarray(expected)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * max(1.0, float(np.abs(expected).max())))


# image, kernel, features, padding, whether the products are those of tiles
TILED = {
    "three rows": ((8, 6, 32), (3, 3), 32, "SAME", True),
    "three rows, one column, not whole tiles": ((9, 8, 33), (3, 1), 34, "VALID", True),
    "five rows, uneven padding": ((5, 7, 32), (5, 3), 36, ((3, 0), (0, 2)), True),
    "five rows, padding wider than the kernel": ((4, 3, 32), (5, 5), 32, ((6, 6), (6, 5)), True),
    "few channels": ((8, 6, 31), (3, 3), 32, "SAME", False),
    "more features than pixels": ((4, 4, 32), (3, 3), 40, "SAME", False),
    "heights far from whole tiles": ((5, 8, 32), (3, 3), 32, "SAME", False),
    "few operations": ((6, 6, 32), (3, 3), 32, "VALID", False),
    "two rows": ((9, 8, 32), (2, 2), 32, "VALID", False),
}


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="tiles are taken on a CPU")
@pytest.mark.parametrize("case", slow_but(TILED, "three rows"))
def test_convolutions_by_tiles(case, monkeypatch):
    monkeypatch.setattr(convolution, "_OPERATIONS", 6e5)
    image, window, features, padding, tiled = TILED[case]
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=(2, *image)), rng.normal(size=(*window, image[-1], features))
    with jax.enable_x64(True):
        expected = with_gradients(jnp.asarray(x), jnp.asarray(kernel), (1, 1), padding)[1]
    x, kernel = jnp.float32(x), jnp.float32(kernel)
    products = str(jax.make_jaxpr(lambda x, kernel: conv2d(x, kernel, (1, 1), padding))(x, kernel)).count("dot_general")
    assert (products == window[0] + 3) == tiled
    mine = with_gradients(x, kernel, (1, 1), padding)[0]
    for actual, exact in zip(mine, expected, strict=True):
        assert_close(actual, exact, 4e-6)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="tiles are taken on a CPU")
@pytest.mark.slow
@pytest.mark.parametrize("rows", [3, 5])
@pytest.mark.parametrize("padding", ["SAME", ((0, 5), (1, 2))])
def test_convolutions_by_tiles_are_zero_where_images_are(rows, padding, monkeypatch):
    """A ReLU would pass gradients by the sign of what rounding leaves there."""
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=(2, 16, 12, 32)), rng.normal(size=(rows, rows, 32, 32))
    x[:, :7] = x[:, :, 8:] = x[0, 9:13, 1:6] = 0
    x, kernel = jnp.float32(x), jnp.float32(kernel)
    expected = np.asarray(conv2d(x, kernel, padding=padding))
    monkeypatch.setattr(convolution, "_OPERATIONS", 1e5)
    found = np.asarray(conv2d(x, kernel, padding=padding))
    assert 0.1 < (found == 0).mean() < 0.9 and (found != expected).any()
    np.testing.assert_array_equal(found == 0, expected == 0)


@pytest.mark.slow
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="tiles are taken on a CPU")
@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
def test_second_derivatives_and_lanes_of_convolutions_by_tiles(axes, monkeypatch):
    rng = np.random.default_rng(0)
    x, kernel = (jnp.float32(rng.normal(size=shape)) for shape in ((3, 2, 8, 6, 32), (3, 3, 3, 32, 32)))
    given = [values if axis == 0 else values[0] for values, axis in zip((x, kernel), axes, strict=True)]

    def curvature(x, kernel):
        def loss(kernel):
            return jnp.sin(max_pool(conv2d(x, kernel, padding="SAME")) / 17).sum()

        return jax.jvp(jax.grad(loss), (kernel,), (jnp.cos(kernel),))

    expected = jax.vmap(curvature, axes)(*given)
    monkeypatch.setattr(convolution, "_OPERATIONS", 1e5)
    assert convolution._tiles_are_faster(x[0], kernel[0], 8, 6)
    for actual, sums in zip(jax.vmap(curvature, axes)(*given), expected, strict=True):
        assert_close(actual, sums, 1e-5)


def kept_for_the_backward_pass(image, features, strides=(1, 1), size=5):
    """Numbers that a 3×3 convolution of `size` images keeps between its forward and its backward pass."""
    x, kernel = jnp.ones((size, *image)), jnp.ones((3, 3, image[-1], features))
    pull = jax.eval_shape(lambda x, k: jax.vjp(lambda x, k: conv2d(x, k, strides, "SAME"), x, k)[1], x, kernel)
    return sum(leaf.size for leaf in jax.tree.leaves(pull)) - kernel.size


def test_a_convolution_that_does_not_add_channels_keeps_no_patches():
    images = 5 * 8 * 8 * 32
    assert kept_for_the_backward_pass((8, 8, 32), 32) == images
    assert kept_for_the_backward_pass((8, 8, 32), 16) == images
    # of an image with few channels the patches are smaller than those of the gradient of y
    assert kept_for_the_backward_pass((8, 8, 1), 32) < 5 * 8 * 8 * 32
    # a quarter of the windows
    assert kept_for_the_backward_pass((8, 8, 32), 64, (2, 2)) < 2.3 * images


@pytest.mark.parametrize("padding", slow_but(["VALID", "SAME"], "SAME"))
def test_conv_module_takes_the_parameters_of_linen_conv(padding):
    x = jax.random.normal(jax.random.key(0), (2, 9, 9, 3))
    theirs = nn.Conv(4, (3, 3), strides=(2, 2), padding=padding)
    variables = theirs.init(jax.random.key(1), x)
    variables["params"]["bias"] = jnp.arange(4.0)
    mine = Conv(4, (3, 3), strides=(2, 2), padding=padding)
    np.testing.assert_allclose(mine.apply(variables, x), theirs.apply(variables, x), rtol=1e-4, atol=1e-5)
    assert jax.tree.map(jnp.shape, dict(mine.init(jax.random.key(1), x))) == jax.tree.map(jnp.shape, dict(variables))


def reference_pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


@pytest.mark.parametrize("size", slow_but([(4, 6), (5, 7), (2, 3)], (5, 7)))
@pytest.mark.parametrize("levels", [2, 1000])  # two levels: nearly every window has ties
def test_max_pool_and_its_gradient_are_those_of_reduce_window(size, levels):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.integers(0, levels, (3, *size, 5)), jnp.float32)
    expected, pull_expected = jax.vjp(reference_pool, x)
    actual, pull_actual = jax.vjp(max_pool, x)
    np.testing.assert_array_equal(actual, expected)
    cotangent = jnp.asarray(rng.normal(size=expected.shape), jnp.float32)
    np.testing.assert_array_equal(pull_actual(cotangent)[0], pull_expected(cotangent)[0])


@pytest.mark.parametrize(
    ("image", "kernel", "options"),
    [
        ((1, 8, 8), (3, 3, 1, 2), {}),
        ((1, 8, 8, 3), (3, 3, 1, 2), {}),
        ((1, 4, 8, 1), (5, 5, 1, 2), {}),
        ((1, 8, 8, 1), (3, 3, 1, 2), {"strides": (0, 1)}),
    ],
)
def test_shapes_that_do_not_fit_are_refused(image, kernel, options):
    with pytest.raises(ValueError, match="conv2d: images"):
        conv2d(jnp.ones(image), jnp.ones(kernel), **options)
