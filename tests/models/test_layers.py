from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from jaxafl.models import winograd
from jaxafl.models.layers import Conv, conv2d, max_pool
from tests.variants import slow_but


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
    "gradients from y, uneven padding": ((5, 6, 8), (3, 2), 3, (1, 1), ((0, 2), (1, 0))),
    "gradients from y, wide padding": ((5, 4, 8), (2, 2), 3, (1, 1), ((3, 2), (0, 4))),
    "one row": ((4, 6, 4), (1, 3), 3, (1, 1), "VALID"),
    "one column": ((6, 4, 4), (3, 1), 3, (1, 1), "VALID"),
    "1x1": ((4, 5, 40), (1, 1), 3, (1, 1), "VALID"),
    "1x1, strided": ((5, 6, 3), (1, 1), 3, (2, 2), "SAME"),
}

ONE_AROUND = ((1, 1), (1, 1))
# every kind that the networks use: image, kernel, features, strides, padding
IN_NETWORKS = {
    "cnn_small 1": ((28, 28, 1), (5, 5), 10, (1, 1), "VALID"),
    "cnn_over 2": ((12, 12, 100), (5, 5), 200, (1, 1), "VALID"),
    "cnn_defedavg 1": ((32, 32, 3), (5, 5), 32, (1, 1), "VALID"),
    "cnn_defedavg 2": ((12, 12, 32), (5, 5), 64, (1, 1), "VALID"),
    "cnn_asyncfeded 2": ((26, 26, 32), (3, 3), 64, (1, 1), "VALID"),
    "cnn_afl 1": ((28, 28, 1), (3, 3), 32, (1, 1), "SAME"),
    "cnn_afl 2": ((28, 28, 32), (3, 3), 32, (1, 1), "SAME"),
    "resnet stem": ((16, 16, 3), (3, 3), 16, (1, 1), ONE_AROUND),
    "resnet20 stage 1": ((16, 16, 16), (3, 3), 16, (1, 1), ONE_AROUND),
    "resnet20 stage 2, first": ((16, 16, 16), (3, 3), 32, (2, 2), ONE_AROUND),
    "resnet18 stage 1": ((8, 8, 64), (3, 3), 64, (1, 1), ONE_AROUND),
    "resnet18 stage 2, first": ((8, 8, 64), (3, 3), 128, (2, 2), ONE_AROUND),
    "resnet18 stage 2, shortcut": ((8, 8, 64), (1, 1), 128, (2, 2), "VALID"),
}


@pytest.mark.parametrize(
    "case",
    slow_but(
        CONVOLUTIONS,
        "many channels",
        "few channels, same",
        "strided, many channels",
        "gradients from y, uneven padding",
        "one row",
        "1x1, strided",
    ),
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


@pytest.mark.extras
@pytest.mark.parametrize("case", slow_but(IN_NETWORKS, "cnn_small 1", "cnn_afl 2", "resnet20 stage 2, first"))
def test_convolutions_of_the_networks_and_their_gradients_are_those_of_pytorch(case):
    torch = pytest.importorskip("torch")
    image, window, features, strides, padding = IN_NETWORKS[case]
    pixels = {"VALID": 0, "SAME": window[0] // 2, ONE_AROUND: 1}[padding]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, *image)).astype(np.float32)
    kernel = (rng.normal(size=(*window, image[-1], features)) / np.sqrt(np.prod(window))).astype(np.float32)
    images = torch.tensor(x).permute(0, 3, 1, 2).requires_grad_()
    weights = torch.tensor(kernel).permute(3, 2, 0, 1).requires_grad_()
    expected = torch.nn.functional.conv2d(images, weights, stride=strides, padding=pixels)
    cotangent = rng.normal(size=expected.shape).astype(np.float32)
    expected.backward(torch.tensor(cotangent))

    @jax.jit
    def both(x, kernel, cotangent):
        y, pull = jax.vjp(lambda x, kernel: conv2d(x, kernel, strides, padding), x, kernel)
        return y, *pull(cotangent)

    y, of_x, of_kernel = both(x, kernel, cotangent.transpose(0, 2, 3, 1))
    assert_close(y, expected.detach().permute(0, 2, 3, 1))
    assert_close(of_x, images.grad.permute(0, 2, 3, 1))
    assert_close(of_kernel, weights.grad.permute(2, 3, 1, 0))


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
    monkeypatch.setattr(winograd, "_OPERATIONS", 6e5)
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
    monkeypatch.setattr(winograd, "_OPERATIONS", 1e5)
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
    monkeypatch.setattr(winograd, "_OPERATIONS", 1e5)
    assert winograd.tiles_are_faster(x[0], kernel[0], 8, 6)
    for actual, sums in zip(jax.vmap(curvature, axes)(*given), expected, strict=True):
        assert_close(actual, sums, 1e-5)


@given(st.integers(2, 4), st.integers(2, 4), st.permutations([0, 1, -1, 1 / 2, -2, 2, -1 / 2, 3]))
def test_filters_of_few_products(rows, kernel, points):
    of_image, of_kernel, of_products = winograd.cook_toom(rows, kernel, points[: rows + kernel - 2])
    assert len(of_image) == len(of_kernel) == of_products.shape[1] == rows + kernel - 1
    rng = np.random.default_rng(rows)
    image, weights = rng.normal(size=rows + kernel - 1), rng.normal(size=kernel)
    found = of_products @ ((of_kernel @ weights) * (of_image @ image))
    np.testing.assert_allclose(found, np.correlate(image, weights, "valid"), rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@settings(max_examples=3, deadline=None)
@given(
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    channels=st.sampled_from([1, 3, 20]),
    window=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.sampled_from(["VALID", "SAME", ((1, 1), (1, 1)), ((0, 3), (2, 0))]),
)
def test_conv2d_agrees_with_lax_or_refuses(height, width, channels, window, strides, padding):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(2, height, width, channels)), jnp.float32)
    kernel = jnp.asarray(rng.normal(size=(*window, channels, 3)), jnp.float32)
    around = ((0, 0), (0, 0)) if padding == "VALID" else padding
    if padding != "SAME" and any(
        side > size + sum(pair) for side, size, pair in zip(window, (height, width), around, strict=True)
    ):
        with pytest.raises(ValueError, match="does not fit"):
            conv2d(x, kernel, strides, padding)
    else:
        for mine, theirs in zip(*with_gradients(x, kernel, strides, padding), strict=True):
            assert_close(mine, theirs)


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


@pytest.mark.parametrize("channels", [1, pytest.param(16, marks=pytest.mark.slow)])
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


@pytest.mark.parametrize("padding", slow_but(["VALID", "SAME"], "SAME"))
def test_conv_module_takes_the_parameters_of_linen_conv(padding):
    x = jax.random.normal(jax.random.key(0), (2, 9, 9, 3))
    theirs = nn.Conv(4, (3, 3), strides=(2, 2), padding=padding)
    variables = theirs.init(jax.random.key(1), x)
    variables["params"]["bias"] = jnp.arange(4.0)
    mine = Conv(4, (3, 3), strides=(2, 2), padding=padding)
    np.testing.assert_allclose(mine.apply(variables, x), theirs.apply(variables, x), rtol=1e-4, atol=1e-5)
    assert jax.tree.map(jnp.shape, dict(mine.init(jax.random.key(1), x))) == jax.tree.map(jnp.shape, dict(variables))


def test_conv_module_in_bfloat16_keeps_float32_parameters():
    x = jax.random.normal(jax.random.key(0), (2, 9, 9, 8))
    module = Conv(8, (3, 3), padding="SAME", dtype=jnp.bfloat16)
    shapes = jax.eval_shape(module.init, jax.random.key(1), x)
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype(jnp.float32)}
    variables = jax.tree.map(lambda leaf: jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape), shapes)
    low = jax.jit(module.apply)(variables, x)
    exact = jax.jit(Conv(8, (3, 3), padding="SAME").apply)(variables, x)
    assert low.dtype == jnp.bfloat16
    assert 0 < np.abs(low.astype(jnp.float32) - exact).max() < 0.03 * np.abs(exact).max()


def test_conv_module_without_bias_has_a_kernel_only():
    x = jnp.ones((1, 6, 6, 1))
    assert list(Conv(2, (3, 3), use_bias=False).init(jax.random.key(0), x)["params"]) == ["kernel"]


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


def test_max_pool_gives_the_gradient_of_a_tie_to_the_first():
    gradient = jax.grad(lambda x: jnp.sum(max_pool(x)))(jnp.asarray([[1.0, 3.0], [3.0, 3.0]])[None, :, :, None])
    np.testing.assert_array_equal(gradient[0, :, :, 0], [[0.0, 1.0], [0.0, 0.0]])


@pytest.mark.parametrize("shape", [(4, 4, 1), (1, 1, 4, 1)])
def test_max_pool_refuses(shape):
    with pytest.raises(ValueError, match="max_pool"):
        max_pool(jnp.ones(shape))
