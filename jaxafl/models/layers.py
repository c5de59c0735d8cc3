"""Convolution as matrix products, and max-pooling.

With weights per client, `jax.vmap` turns `lax.conv` into a grouped convolution, which is slow in XLA, and inside a loop
on a CPU any `lax.conv` is slow. The product patches × weights stays a (batched) matrix product in both cases.
`experiments/benchmarks/convolution.py` and `models.py` measure both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen.dtypes import promote_dtype
from jax import lax

from jaxafl.models.windows import Around, padded, result_size, shifted, side_by_side, total
from jaxafl.models.winograd import convolved_by_tiles, tiles_are_faster

Array = jax.Array
Padding = str | Sequence[tuple[int, int]]

# With fewer columns per strip, a product per kernel column is too thin to be fast, so the kernel is one product.
_WIDE = 64


class Conv(nn.Module):
    """2-D convolution of images [B, H, W, C] with a bias: `flax.linen.Conv` with equal parameters, as matrix products.

    Attributes:
        features: output channels F.
        kernel_size: (height, width).
        strides: (vertical, horizontal).
        padding: "VALID", "SAME", or ((top, bottom), (left, right)).
        use_bias: if True, add a bias per output channel.
        pool: if True, apply `max_pool` before the bias: equal values, as rounding keeps the order of sums, at a quarter
            of the cost.
        kernel_init: initialiser of the kernel [height, width, C, F].
        bias_init: initialiser of the bias [F].
        dtype: precision of the computation; `None` takes the promoted type of input and parameters. Parameters are
            float32.
    """

    features: int
    kernel_size: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    padding: Padding = "VALID"
    use_bias: bool = True
    kernel_init: Callable[..., Any] = nn.initializers.lecun_normal()
    bias_init: Callable[..., Any] = nn.initializers.zeros_init()
    dtype: Any = None
    pool: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        shape = (*self.kernel_size, x.shape[-1], self.features)
        kernel = self.param("kernel", self.kernel_init, shape, jnp.float32)
        bias = self.param("bias", self.bias_init, (self.features,), jnp.float32) if self.use_bias else None
        x, kernel, bias = promote_dtype(x, kernel, bias, dtype=self.dtype)
        y = conv2d(x, kernel, self.strides, self.padding)
        y = max_pool(y) if self.pool else y
        return y if bias is None else y + bias


def conv2d(x: Array, kernel: Array, strides: tuple[int, int] = (1, 1), padding: Padding = "VALID") -> Array:
    """Computes the 2-D convolution y[b, h, w] = Σ_ij x[b, s_h h + i, s_w w + j] · kernel[i, j] by matrix products.

    The rows under the kernel are concatenated once to strips [B, H', W, k_h C]. Each column of the kernel is one
    product of shifted strips with [k_h C, F], and the products are summed. Full patches, k_w times as large, are built
    only if the strips are thin. If the patches of y's gradient are not larger than those of x, the gradients are
    products with them, so that the backward pass keeps x only.

    On a CPU, in float32, large convolutions of stride 1 with kernels of three or five rows and at least 32 channels use
    Winograd's algorithm. It takes about half of the operations. Rounding errors are on average three times those of
    the sums, or five times with five rows. If x is 0 under the full kernel, y is exactly 0. Numbers that are not finite
    or above 10³⁷ may turn neighbouring rows into NaN.

    Values and gradients equal those of `lax.conv_general_dilated` with layouts NHWC and HWIO, up to rounding. Only
    reverse-mode differentiation is defined.

    Args:
        x: float [B, H, W, C].
        kernel: float [k_h, k_w, C, F].
        strides: (vertical, horizontal).
        padding: "VALID", "SAME", or ((top, bottom), (left, right)).

    Returns:
        float [B, H', W', F].

    Raises:
        ValueError: the shapes do not match, the kernel does not fit into the padded image, or an option is unknown.
    """
    around = _checked_padding(x, kernel, strides, padding)
    height, width = result_size(x, kernel, strides, around)
    k_h, k_w, channels, features = kernel.shape
    if tuple(strides) == (1, 1) and tiles_are_faster(x, kernel, height, width):
        return convolved_by_tiles(x, kernel, around)
    gradient_is_smaller = x.shape[1] * x.shape[2] * features <= height * width * channels
    if gradient_is_smaller and tuple(strides) == (1, 1) and k_h * k_w > 1:
        return _conv_keeping_x(x, kernel, around)
    return _products(x, kernel, strides, around)


def max_pool(x: Array) -> Array:
    """Computes the maximum over windows of 2×2 with stride 2; an odd last row or column is ignored.

    The gradient goes to the first of equal maxima in row-major order, as in `lax.reduce_window` and PyTorch. Only
    reverse-mode differentiation is defined.

    Args:
        x: float [B, H, W, C].

    Returns:
        float [B, H // 2, W // 2, C].

    Raises:
        ValueError: x does not have four axes, or is smaller than 2×2.
    """
    if x.ndim != 4 or min(x.shape[1:3]) < 2:
        raise ValueError(f"max_pool needs images [B, H, W, C] of at least 2x2, got shape {x.shape}")
    return _max_pool_even(x[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2 * 2])


def flatten(x: Array) -> Array:
    """Reshapes [B, ...] to [B, features]."""
    return x.reshape(x.shape[0], -1)


def require_images(x: Array, model: str, smallest: int) -> None:
    """Raises `ValueError` unless x is a batch of images [B, H, W, C] of at least `smallest` pixels each way."""
    if x.ndim != 4 or min(x.shape[1:3]) < smallest:
        raise ValueError(
            f"{model} needs images of shape [height, width, channels] of at least {smallest}x{smallest} pixels, "
            f"got inputs of shape {list(x.shape[1:])}"
        )


def _checked_padding(x: Array, kernel: Array, strides: tuple[int, int], padding: Padding) -> Around:
    """Checks all arguments, and returns the padding in pixels."""
    if x.ndim != 4 or kernel.ndim != 4 or x.shape[3] != kernel.shape[2]:
        raise ValueError(
            "a convolution needs images [B, H, W, C] and a kernel [k_h, k_w, C, F], "
            f"got shapes {x.shape} and {kernel.shape}"
        )
    if len(strides) != 2 or min(strides) < 1:
        raise ValueError(f"strides must be two numbers >= 1, got {strides}")
    around: Any = ()
    if not isinstance(padding, str):
        around = tuple(tuple(pair) for pair in padding)
    elif padding in ("VALID", "SAME"):
        around = tuple(lax.padtype_to_pads(x.shape[1:3], kernel.shape[:2], strides, padding))
    if len(around) != 2 or any(len(pair) != 2 or min(pair) < 0 for pair in around):
        raise ValueError(
            f'padding must be "VALID", "SAME" or ((top, bottom), (left, right)) with numbers >= 0, got {padding!r}'
        )
    if min(result_size(x, kernel, strides, around)) < 1:
        height, width = (n + sum(pair) for n, pair in zip(x.shape[1:3], around, strict=True))
        raise ValueError(
            f"a kernel of {kernel.shape[0]}x{kernel.shape[1]} does not fit into images of {height}x{width} "
            "(padding included)"
        )
    return around


def _products(x: Array, kernel: Array, strides: tuple[int, int], around: Around) -> Array:
    """Computes the convolution of images padded by `around`."""
    k_h, k_w, _, features = kernel.shape
    height, width = result_size(x, kernel, strides, around)
    strips = side_by_side(padded(x, around), k_h, height, strides[0], axis=1)
    columns = kernel.swapaxes(0, 1).reshape(k_w, strips.shape[-1], features)
    if strips.shape[-1] >= _WIDE and jax.default_backend() == "cpu":  # on a GPU, each product would be a kernel launch
        return _sum_of_products(strips, columns, width, strides[1])
    return _one_product(strips, columns, width, strides[1])


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _conv_keeping_x(x: Array, kernel: Array, around: Around) -> Array:
    """Computes a convolution of stride 1 whose backward pass needs no patches of x.

    The automatic gradient of the kernel is (patches of x)ᵀ × gradient of y, which keeps all patches: about twice the
    memory in a ResNet, and more time. `jax.checkpoint` saves nothing on a CPU, because XLA merges the recomputed
    patches with the first ones. With more channels in y than in x, this gradient is slower and needs more memory.
    """
    return _products(x, kernel, (1, 1), around)


def _conv_forward(x: Array, kernel: Array, around: Around) -> tuple[Array, tuple[Array, Array]]:
    return _products(x, kernel, (1, 1), around), (x, kernel)


def _conv_backward(around: Around, residuals: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    # Pixel p of x contributes to pixel p + before - i of y through entry i of the kernel. With y's gradient padded by
    # k - 1 - before, this is entry k - 1 - i of the window of p. So the gradient of x is a convolution with the
    # reversed kernel, and that of the kernel is xᵀ × the patches of this convolution.
    x, kernel = residuals
    k_h, k_w, channels, features = kernel.shape
    (top, bottom), (left, right) = around
    gradient = padded(gradient, ((k_h - 1 - top, k_h - 1 - bottom), (k_w - 1 - left, k_w - 1 - right)))
    strips = side_by_side(gradient, k_h, x.shape[1], 1, axis=1)
    turned = kernel[::-1, ::-1].transpose(1, 0, 3, 2).reshape(k_w, k_h * features, channels)
    pixels = x.reshape(-1, channels)
    of_x, of_kernel = [], []
    for shift, column in enumerate(turned):
        patches = shifted(strips, shift, x.shape[2], 1, axis=2).reshape(-1, k_h * features)
        of_x.append(patches @ column)
        of_kernel.append((pixels.T @ patches).reshape(channels, k_h, features))
    return total(of_x).reshape(x.shape), jnp.stack(of_kernel)[::-1, :, ::-1].transpose(2, 0, 1, 3)


_conv_keeping_x.defvjp(_conv_forward, _conv_backward)


def _sum_of_products(strips: Array, columns: Array, width: int, stride: int) -> Array:
    """Computes a convolution by one product per column of the kernel."""
    shape = (*strips.shape[:2], width, columns.shape[-1])
    # products of matrices, because XLA compiles gradients of 4-d products to slower code
    products = [
        shifted(strips, shift, width, stride, axis=2).reshape(-1, strips.shape[-1]) @ column
        for shift, column in enumerate(columns)
    ]
    return total(products).reshape(shape)


def _one_product(strips: Array, columns: Array, width: int, stride: int) -> Array:
    """Computes a convolution by one product for the full kernel; two neighbouring windows share columns if possible.

    A pair of windows spans k_w + 1 columns. Its weights are those of one window, and those of one window shifted by a
    column, with zeros for the rest. This takes (k_w + 1) / k_w of the arithmetic and about half of the memory, with
    broader products.
    """
    batch, height, _, depth = strips.shape
    window, _, features = columns.shape
    if depth < _WIDE and stride == 1 and window > 1 and window % 2 == 1 and width % 2 == 0:
        strips = strips.reshape(batch, height, -1, 2 * depth)
        patches = side_by_side(strips, (window + 1) // 2, width // 2, 1, axis=2)
        weights = jnp.stack([jnp.pad(columns, ((i, 1 - i), (0, 0), (0, 0))) for i in (0, 1)], axis=2)
    else:
        patches = side_by_side(strips, window, width, stride, axis=2)
        weights = columns
    depth = patches.shape[-1]
    return (patches.reshape(-1, depth) @ weights.reshape(depth, -1)).reshape(batch, height, width, features)


@jax.custom_vjp
def _max_pool_even(x: Array) -> Array:
    return _windows(x).max((2, 4))


def _max_pool_forward(x: Array) -> tuple[Array, tuple[Array, Array]]:
    y = _windows(x).max((2, 4))
    return y, (x, y)


def _max_pool_backward(residuals: tuple[Array, Array], gradient: Array) -> tuple[Array]:
    # Comparisons of reshaped windows: reduce_window's gradient is a slow scatter, and that of max is split among ties.
    x, y = residuals
    windows = _windows(x)
    is_open = jnp.ones(y.shape, bool)
    corners = []
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        is_first = (windows[:, :, i, :, j] == y) & is_open
        is_open &= ~is_first
        corners.append(jnp.where(is_first, gradient, 0))
    rows = [jnp.stack(corners[:2], axis=3), jnp.stack(corners[2:], axis=3)]
    return (jnp.stack(rows, axis=2).reshape(x.shape),)


_max_pool_even.defvjp(_max_pool_forward, _max_pool_backward)


def _windows(x: Array) -> Array:
    """Reshapes [B, H, W, C] to [B, H / 2, 2, W / 2, 2, C]."""
    batch, height, width, channels = x.shape
    return x.reshape(batch, height // 2, 2, width // 2, 2, channels)
