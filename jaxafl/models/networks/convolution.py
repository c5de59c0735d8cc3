"""Convolution as matrix products, with Winograd's algorithm on CPUs, and max-pooling.

With weights per client, `jax.vmap` turns `lax.conv` into a grouped convolution, which is slow in XLA, and inside a loop
on a CPU any `lax.conv` is slow. The product patches × weights stays a (batched) matrix product in both cases.
`experiments/benchmarks/convolution.py` and `models.py` measure both.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.linen.dtypes import promote_dtype
from jax import lax

from jaxafl.options import UserError

Array = jax.Array
Padding = str | Sequence[tuple[int, int]]
Size = tuple[int, int]  # height and width, or strides in these directions
Around = tuple[tuple[int, int], tuple[int, int]]
"""Padding (top, bottom), (left, right) in pixels."""
Kept = tuple[Array, Array]  # from the forward pass for the backward pass, or gradients of both

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
    kernel_size: Size = (3, 3)
    strides: Size = (1, 1)
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


def conv2d(x: Array, kernel: Array, strides: Size = (1, 1), padding: Padding = "VALID") -> Array:
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
    around = _padding_in_pixels(x, kernel, strides, padding)
    height, width = _result_size(x, kernel, strides, around)
    k_h, k_w, channels, features = kernel.shape
    if tuple(strides) == (1, 1) and _tiles_are_faster(x, kernel, height, width):
        return _convolved_by_tiles(x, kernel, around)
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
    """
    return _max_pool_even(x[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2 * 2])


def with_backward(forward: Callable[..., Any], backward: Callable[..., Any], *fixed: int) -> Callable[..., Any]:
    """Returns the function of `forward`'s first result that has the gradients of `backward`.

    Args:
        forward: arguments -> (result, what `backward` needs).
        backward: fixed arguments, what it needs, gradient of the result -> gradients of the other arguments.
        fixed: places of the arguments without a gradient.
    """
    function = jax.custom_vjp(lambda *arguments: forward(*arguments)[0], nondiff_argnums=fixed)
    function.defvjp(forward, backward)
    return function


def _padding_in_pixels(x: Array, kernel: Array, strides: Size, padding: Padding) -> Around:
    """Returns the padding of a convolution. Raises `ValueError` for shapes and options that do not fit together."""
    around: Any = padding
    if isinstance(padding, str) and x.ndim == kernel.ndim == 4:
        around = lax.padtype_to_pads(x.shape[1:3], kernel.shape[:2], strides, padding)
    around = tuple(map(tuple, around))
    fits = x.ndim == kernel.ndim == 4 and x.shape[3] == kernel.shape[2]
    if not fits or min(strides) < 1 or min(_result_size(x, kernel, strides, around)) < 1:
        raise UserError(
            f"conv2d: images {x.shape}, a kernel {kernel.shape}, strides {strides} and padding {padding!r} do not fit "
            "together; expected [B, H, W, C] and [k_h, k_w, C, F] with k_h <= H and k_w <= W, padding included"
        )
    return around


def _products(x: Array, kernel: Array, strides: Size, around: Around) -> Array:
    """Computes the convolution of images padded by `around`."""
    k_h, k_w, _, features = kernel.shape
    height, width = _result_size(x, kernel, strides, around)
    strips = _side_by_side(_padded(x, around), k_h, height, strides[0], axis=1)
    columns = kernel.swapaxes(0, 1).reshape(k_w, strips.shape[-1], features)
    if strips.shape[-1] < _WIDE or jax.default_backend() != "cpu":  # on a GPU, each product would be a kernel launch
        return _one_product(strips, columns, width, strides[1])
    # products of matrices, because XLA compiles gradients of 4-d products to slower code
    shifted = [_shifted(strips, shift, width, strides[1], axis=2).reshape(-1, strips.shape[-1]) for shift in range(k_w)]
    products = [one @ column for one, column in zip(shifted, columns, strict=True)]
    return _total(products).reshape(*strips.shape[:2], width, features)


def _conv_forward(x: Array, kernel: Array, around: Around) -> tuple[Array, Kept]:
    """Computes a convolution of stride 1 whose backward pass needs no patches of x.

    The automatic gradient of the kernel is (patches of x)ᵀ × gradient of y, which keeps all patches: about twice the
    memory in a ResNet, and more time. `jax.checkpoint` saves nothing on a CPU, because XLA merges the recomputed
    patches with the first ones. With more channels in y than in x, this gradient is slower and needs more memory.
    """
    return _products(x, kernel, (1, 1), around), (x, kernel)


def _conv_backward(around: Around, residuals: Kept, gradient: Array) -> Kept:
    # Pixel p of x contributes to pixel p + before - i of y through entry i of the kernel. With y's gradient padded by
    # k - 1 - before, this is entry k - 1 - i of the window of p. So the gradient of x is a convolution with the
    # reversed kernel, and that of the kernel is xᵀ × the patches of this convolution.
    x, kernel = residuals
    k_h, k_w, channels, features = kernel.shape
    (top, bottom), (left, right) = around
    gradient = _padded(gradient, ((k_h - 1 - top, k_h - 1 - bottom), (k_w - 1 - left, k_w - 1 - right)))
    strips = _side_by_side(gradient, k_h, x.shape[1], 1, axis=1)
    turned = kernel[::-1, ::-1].transpose(1, 0, 3, 2).reshape(k_w, k_h * features, channels)
    pixels = x.reshape(-1, channels)
    of_x, of_kernel = [], []
    for shift, column in enumerate(turned):
        patches = _shifted(strips, shift, x.shape[2], 1, axis=2).reshape(-1, k_h * features)
        of_x.append(patches @ column)
        of_kernel.append((pixels.T @ patches).reshape(channels, k_h, features))
    return _total(of_x).reshape(x.shape), jnp.stack(of_kernel)[::-1, :, ::-1].transpose(2, 0, 1, 3)


_conv_keeping_x = with_backward(_conv_forward, _conv_backward, 2)


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
        patches = _side_by_side(strips, (window + 1) // 2, width // 2, 1, axis=2)
        weights = jnp.stack([jnp.pad(columns, ((i, 1 - i), (0, 0), (0, 0))) for i in (0, 1)], axis=2)
    else:
        patches = _side_by_side(strips, window, width, stride, axis=2)
        weights = columns
    depth = patches.shape[-1]
    return (patches.reshape(-1, depth) @ weights.reshape(depth, -1)).reshape(batch, height, width, features)


def _max_pool_forward(x: Array) -> tuple[Array, Kept]:
    y = _windows(x).max((2, 4))
    return y, (x, y)


def _max_pool_backward(residuals: Kept, gradient: Array) -> tuple[Array]:
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


_max_pool_even = with_backward(_max_pool_forward, _max_pool_backward)


def _windows(x: Array) -> Array:
    """Reshapes [B, H, W, C] to [B, H / 2, 2, W / 2, 2, C]."""
    batch, height, width, channels = x.shape
    return x.reshape(batch, height // 2, 2, width // 2, 2, channels)


def _cook_toom(rows: int, kernel: int, points: Sequence[float]) -> tuple[np.ndarray, ...]:
    """Computes Bᵀ, G, Aᵀ such that `rows` sums y_i = Σ_j d_{i+j} g_j over `kernel` entries are Aᵀ((G g) ⊙ (Bᵀ d)).

    A product of polynomials follows from its values at points, of which the last is infinity (Toom; Cook). The
    transpose is Winograd's filter F(rows, kernel) ("Arithmetic complexity of computations", 1980), with
    rows + kernel - 1 products instead of rows · kernel.
    """
    others = [[other for other in points if other != point] for point in points]
    scales = [np.prod(np.subtract(point, rest)) for point, rest in zip(points, others, strict=True)]

    def powers(count: int) -> np.ndarray:
        return np.vstack([np.vander(points, count, increasing=True), np.eye(count)[-1:]])

    filters = [np.append(np.poly(rest)[::-1], 0) for rest in others]
    return np.array([*filters, np.poly(points)[::-1]]), powers(kernel) / np.array([*scales, 1])[:, None], powers(rows).T


# Winograd's algorithm along the height: rows of y in a tile, and filters for kernels of three and five rows.
# Integer points have larger rounding errors.
_TILE = 4
_CHANNELS = 32  # with fewer channels, the products are too thin
_OPERATIONS = 60e6  # of the sum of products; below, the gain is smaller than the cost of compilation
_FILTERS = {rows: _cook_toom(_TILE, rows, (0, 1, -1, 1 / 2, -2, 2, -1 / 2)[: rows + _TILE - 2]) for rows in (3, 5)}


def _tiles_are_faster(x: Array, kernel: Array, height: int, width: int) -> bool:
    """Returns True if tiles are faster for a convolution to [B, `height`, `width`, F], by measurements on a CPU.

    They are slower if products are thin, the kernel is larger than its input, or the last tile has much padding.
    """
    k_h, _, channels, features = kernel.shape
    pixels = len(x) * height * width
    tiled_height = -(-height // _TILE) * _TILE
    enough = min(channels, features) >= _CHANNELS and pixels >= max(channels, features)
    enough = enough and tiled_height <= 1.25 * height
    worth = 2 * pixels * kernel.size >= _OPERATIONS
    cpu = jax.default_backend() == "cpu"  # on a GPU, the small operations would be kernel launches
    return cpu and k_h in _FILTERS and x.dtype == kernel.dtype == jnp.float32 and enough and worth


def _tiles_forward(x: Array, kernel: Array, around: Around) -> tuple[Array, Kept]:
    """Computes a convolution of stride 1 by Winograd's algorithm along the height.

    Four rows of y take 6 products instead of 12 with a kernel of three rows, and 8 instead of 20 with five rows (Lavin
    and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016).
    """
    patches, columns, shape = _at_points(x, kernel, around)
    products = [(one @ other).reshape(*shape, -1) for one, other in zip(patches, columns, strict=True)]
    y = jnp.stack(_combined(_FILTERS[len(kernel)][2], products), axis=2)
    height, width = _result_size(x, kernel, (1, 1), around)
    y = y.reshape(len(x), -1, width, y.shape[-1])[:, :height]
    # Exactly 0 if x is 0 under the kernel. Otherwise the signs of rounding errors would decide the gradients of a ReLU.
    seen = _padded(jnp.any(x != 0, -1, keepdims=True), around)
    for axis, (count, length) in enumerate(zip(kernel.shape[:2], (height, width), strict=True), start=1):
        seen = reduce(jnp.logical_or, [_shifted(seen, shift, length, 1, axis) for shift in range(count)])
    return jnp.where(seen, y, 0), (x, kernel)


def _at_points(x: Array, kernel: Array, around: Around) -> tuple[list[Array], list[Array], tuple[int, ...]]:
    """Computes patches [B · tiles · W', k_w C] of the images and a matrix [k_w C, F] of the kernel at each point.

    A tile is `_TILE` rows of y and the rows of x under the kernel. The last result is (B, tiles, W').
    """
    k_h, k_w, channels, features = kernel.shape
    height, width = _result_size(x, kernel, (1, 1), around)
    tiles = -(-height // _TILE)
    x = _padded(x, ((around[0][0], around[0][1] + tiles * _TILE - height), around[1]))
    of_image, of_kernel, _ = _FILTERS[k_h]
    rows = _combined(of_image, [_shifted(x, row, tiles, _TILE, axis=1) for row in range(len(of_image))])
    patches = [_side_by_side(row, k_w, width, 1, axis=2).reshape(-1, k_w * channels) for row in rows]
    columns = _combined(of_kernel, [row.reshape(k_w * channels, features) for row in kernel])
    return patches, columns, (len(x), tiles, width)


def _tiles_backward(around: Around, residuals: Kept, gradient: Array) -> Kept:
    # The transpose of each step, from the last to the first. The automatic derivative of the slices has three times as
    # many operations, which take longer to compile and to run.
    x, kernel = residuals
    k_h, k_w, channels, features = kernel.shape
    of_image, of_kernel, of_products = _FILTERS[k_h]
    patches, columns, (batch, tiles, width) = _at_points(x, kernel, around)
    gradient = _padded(gradient, ((0, tiles * _TILE - gradient.shape[1]), (0, 0)))
    gradient = gradient.reshape(batch, tiles, _TILE, width, features)
    given = _combined(of_products.T, [gradient[:, :, row].reshape(-1, features) for row in range(_TILE)])
    rows_of_kernel = _combined(of_kernel.T, [one.T @ other for one, other in zip(patches, given, strict=True)])
    points = []
    for each, column in zip(given, columns, strict=True):
        of_patches = (each @ column.T).reshape(batch, tiles, width, k_w, channels)
        shifts = [_padded(of_patches[:, :, :, j], ((0, 0), (j, k_w - 1 - j))) for j in range(k_w)]
        points.append(_total(shifts))
    # Two neighbouring tiles read common rows of x: the last rows of one are the first of the next.
    ends = [(int(row >= _TILE), int(row < _TILE)) for row in range(len(of_image))]
    rows = [_padded(row, (end, (0, 0))) for row, end in zip(_combined(of_image.T, points), ends, strict=True)]
    of_x = jnp.stack([_total(rows[row::_TILE]) for row in range(_TILE)], axis=2)
    of_x = of_x.reshape(batch, (tiles + 1) * _TILE, width + k_w - 1, channels)
    (top, _), (left, _) = around
    bottom, right = top + x.shape[1] - of_x.shape[1], left + x.shape[2] - of_x.shape[2]
    return _padded(of_x, ((-top, bottom), (-left, right))), jnp.stack(rows_of_kernel).reshape(kernel.shape)


_convolved_by_tiles = with_backward(_tiles_forward, _tiles_backward, 2)


def _combined(matrix: np.ndarray, parts: Sequence[Array]) -> list[Array]:
    """Computes matrix @ parts without the terms that are zero."""
    weights = matrix.tolist()
    return [_total([part * weight for weight, part in zip(row, parts, strict=True) if weight]) for row in weights]


def _result_size(x: Array, kernel: Array, strides: Size, around: Around) -> Size:
    """Returns height and width of the result of a convolution."""
    (top, bottom), (left, right) = around
    height, width = x.shape[1] + top + bottom, x.shape[2] + left + right
    return (height - kernel.shape[0]) // strides[0] + 1, (width - kernel.shape[1]) // strides[1] + 1


def _padded(x: Array, around: Around) -> Array:
    """Pads images with zeros; negative numbers remove rows and columns."""
    return lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), *((*pair, 0) for pair in around), (0, 0, 0)))


def _side_by_side(x: Array, count: int, length: int, stride: int, axis: int) -> Array:
    """Concatenates `count` slices of x along the last axis: `length` entries of `axis`, shifted by 0, 1, ..."""
    return jnp.concatenate([_shifted(x, shift, length, stride, axis) for shift in range(count)], axis=-1)


def _shifted(x: Array, shift: int, length: int, stride: int, axis: int) -> Array:
    """Returns `length` entries of x along `axis`, from `shift` with the given stride."""
    return lax.slice_in_dim(x, shift, shift + (length - 1) * stride + 1, stride, axis)


def _total(terms: Sequence[Array]) -> Array:
    """Computes the sum of the terms, from left to right."""
    return reduce(operator.add, terms)
