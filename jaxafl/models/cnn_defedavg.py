"""The convolutional network of DeFedAvg."""

from __future__ import annotations

from flax import linen as nn

from jaxafl.models.adapters import from_linen
from jaxafl.models.layers import Array, Conv, flatten, max_pool, require_images
from jaxafl.models.model import Model
from jaxafl.models.options import check_positive, compute_dtype


def cnn_defedavg(num_classes: int = 10, dtype: str = "float32") -> Model:
    """Two 5×5 convolutions of 32 and 64 channels with max-pooling, then dense layers of 512 and `num_classes`.

    582,026 parameters on 28×28×1 images and 878,538 on 32×32×3 images, with 10 classes.

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
    return from_linen(CNNDeFedAvg(num_classes, dtype), name="cnn_defedavg")


class CNNDeFedAvg(nn.Module):
    """Conv 32 - pool - ReLU - conv 64 - pool - ReLU - dense 512 - ReLU - dense; ReLU after the pool costs a quarter."""

    num_classes: int
    dtype: str

    @nn.compact
    def __call__(self, x: Array) -> Array:
        require_images(x, "cnn_defedavg", smallest=16)
        dtype = compute_dtype(self.dtype)
        x = nn.relu(max_pool(Conv(32, (5, 5), dtype=dtype)(x)))
        x = nn.relu(max_pool(Conv(64, (5, 5), dtype=dtype)(x)))
        x = nn.relu(nn.Dense(512, dtype=dtype)(flatten(x)))
        return nn.Dense(self.num_classes, dtype=dtype)(x)
