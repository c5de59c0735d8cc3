"""Convolution of stride 1 with fewer products: Winograd's algorithm along the height."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.models.windows import Around, padded, result_size, shifted, side_by_side, total

Array = jax.Array


def cook_toom(rows: int, kernel: int, points: Sequence[float]) -> tuple[np.ndarray, ...]:
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


# Rows of y in a tile, and the filters for kernels of three and five rows. Integer points have larger rounding errors.
_TILE = 4
_CHANNELS = 32  # with fewer channels, the products are too thin
_OPERATIONS = 60e6  # of the sum of products; below, the gain is smaller than the cost of compilation
_FILTERS = {rows: cook_toom(_TILE, rows, (0, 1, -1, 1 / 2, -2, 2, -1 / 2)[: rows + _TILE - 2]) for rows in (3, 5)}


def tiles_are_faster(x: Array, kernel: Array, height: int, width: int) -> bool:
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


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def convolved_by_tiles(x: Array, kernel: Array, around: Around) -> Array:
    """Computes a convolution of stride 1 by Winograd's algorithm along the height.

    Four rows of y take 6 products instead of 12 with a kernel of three rows, and 8 instead of 20 with five rows (Lavin
    and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016).
    """
    return _convolved(x, kernel, around)


def _convolved(x: Array, kernel: Array, around: Around) -> Array:
    patches, columns, shape = _at_points(x, kernel, around)
    products = [(one @ other).reshape(*shape, -1) for one, other in zip(patches, columns, strict=True)]
    y = jnp.stack(_combined(_FILTERS[len(kernel)][2], products), axis=2)
    height, width = result_size(x, kernel, (1, 1), around)
    y = y.reshape(len(x), -1, width, y.shape[-1])[:, :height]
    # Exactly 0 if x is 0 under the kernel. Otherwise the signs of rounding errors would decide the gradients of a ReLU.
    seen = padded(jnp.any(x != 0, -1, keepdims=True), around)
    for axis, (count, length) in enumerate(zip(kernel.shape[:2], (height, width), strict=True), start=1):
        seen = reduce(jnp.logical_or, [shifted(seen, shift, length, 1, axis) for shift in range(count)])
    return jnp.where(seen, y, 0)


def _at_points(x: Array, kernel: Array, around: Around) -> tuple[list[Array], list[Array], tuple[int, ...]]:
    """Computes patches [B · tiles · W', k_w C] of the images and a matrix [k_w C, F] of the kernel at each point.

    A tile is `_TILE` rows of y and the rows of x under the kernel. The last result is (B, tiles, W').
    """
    k_h, k_w, channels, features = kernel.shape
    height, width = result_size(x, kernel, (1, 1), around)
    tiles = -(-height // _TILE)
    x = padded(x, ((around[0][0], around[0][1] + tiles * _TILE - height), around[1]))
    of_image, of_kernel, _ = _FILTERS[k_h]
    rows = _combined(of_image, [shifted(x, row, tiles, _TILE, axis=1) for row in range(len(of_image))])
    patches = [side_by_side(row, k_w, width, 1, axis=2).reshape(-1, k_w * channels) for row in rows]
    columns = _combined(of_kernel, [row.reshape(k_w * channels, features) for row in kernel])
    return patches, columns, (len(x), tiles, width)


def _tiles_forward(x: Array, kernel: Array, around: Around) -> tuple[Array, tuple[Array, Array]]:
    # `convolved_by_tiles` has no forward-mode derivative, so forward-over-reverse would fail with it
    return _convolved(x, kernel, around), (x, kernel)


def _tiles_backward(around: Around, residuals: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    # The transpose of each step, from the last to the first. The automatic derivative of the slices has three times as
    # many operations, which take longer to compile and to run.
    x, kernel = residuals
    k_h, k_w, channels, features = kernel.shape
    of_image, of_kernel, of_products = _FILTERS[k_h]
    patches, columns, (batch, tiles, width) = _at_points(x, kernel, around)
    gradient = padded(gradient, ((0, tiles * _TILE - gradient.shape[1]), (0, 0)))
    gradient = gradient.reshape(batch, tiles, _TILE, width, features)
    given = _combined(of_products.T, [gradient[:, :, row].reshape(-1, features) for row in range(_TILE)])
    rows_of_kernel = _combined(of_kernel.T, [one.T @ other for one, other in zip(patches, given, strict=True)])
    points = []
    for each, column in zip(given, columns, strict=True):
        of_patches = (each @ column.T).reshape(batch, tiles, width, k_w, channels)
        shifts = [padded(of_patches[:, :, :, j], ((0, 0), (j, k_w - 1 - j))) for j in range(k_w)]
        points.append(total(shifts))
    # Two neighbouring tiles read common rows of x: the last rows of one are the first of the next.
    ends = [(int(row >= _TILE), int(row < _TILE)) for row in range(len(of_image))]
    rows = [padded(row, (end, (0, 0))) for row, end in zip(_combined(of_image.T, points), ends, strict=True)]
    of_x = jnp.stack([total(rows[row::_TILE]) for row in range(_TILE)], axis=2)
    of_x = of_x.reshape(batch, (tiles + 1) * _TILE, width + k_w - 1, channels)
    (top, _), (left, _) = around
    bottom, right = top + x.shape[1] - of_x.shape[1], left + x.shape[2] - of_x.shape[2]
    return padded(of_x, ((-top, bottom), (-left, right))), jnp.stack(rows_of_kernel).reshape(kernel.shape)


convolved_by_tiles.defvjp(_tiles_forward, _tiles_backward)


def _combined(matrix: np.ndarray, parts: Sequence[Array]) -> list[Array]:
    """Computes matrix @ parts without the terms that are zero."""
    weights = matrix.tolist()
    return [total([part * weight for weight, part in zip(row, parts, strict=True) if weight]) for row in weights]
