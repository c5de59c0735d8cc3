"""The over-parameterised convolutional network: `cnn_small` with ten times the channels."""

from __future__ import annotations

from flax import linen as nn

from jaxafl.models.adapters import from_linen
from jaxafl.models.layers import Array, Conv, flatten, max_pool, require_images
from jaxafl.models.model import Model
from jaxafl.models.options import check_positive, compute_dtype


def cnn_over(num_classes: int = 10, dtype: str = "float32") -> Model:
    """Two 5×5 convolutions of 100 and 200 channels with max-pooling, then dense layers of 50 and `num_classes`.

    The second convolution has no bias: only so does a network of this topology with round widths have the published
    663,160 parameters (on 28×28×1 images with 10 classes).

    Args:
        num_classes: number of classes.
        dtype: precision of the computation, `"float32"` or `"bfloat16"`; parameters are float32 either way.

    Returns:
        The model; inputs [B, H, W, C] float of at least 16×16 pixels, labels [B] integers.

    Raises:
        ValueError: where `num_classes` is not a whole number >= 1, or `dtype` is another name.
    """
    check_positive("num_classes", num_classes)
    compute_dtype(dtype)
    return from_linen(CNNOver(num_classes, dtype), name="cnn_over")


class CNNOver(nn.Module):
    """Conv 100 - pool - ReLU - conv 200 without bias - pool - ReLU - dense 50 - ReLU - dense.

    ReLU after the pool gives the same values at a quarter of the cost.
    """

    num_classes: int
    dtype: str

    @nn.compact
    def __call__(self, x: Array) -> Array:
        require_images(x, "cnn_over", smallest=16)
        dtype = compute_dtype(self.dtype)
        x = nn.relu(max_pool(Conv(100, (5, 5), dtype=dtype)(x)))
        x = nn.relu(max_pool(Conv(200, (5, 5), use_bias=False, dtype=dtype)(x)))
        x = nn.relu(nn.Dense(50, dtype=dtype)(flatten(x)))
        return nn.Dense(self.num_classes, dtype=dtype)(x)
