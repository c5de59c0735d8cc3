"""The convolutional network of AFL's MNIST experiments."""

from __future__ import annotations

from flax import linen as nn

from jaxafl.checks import check_whole
from jaxafl.models.adapters import from_linen
from jaxafl.models.layers import Array, Conv, require_images
from jaxafl.models.model import Model
from jaxafl.models.options import compute_dtype


def cnn_afl(num_classes: int = 10, dtype: str = "float32") -> Model:
    """Three 3×3 convolutions of 32 channels, the mean over the image, and a dense layer of `num_classes`.

    Convolutions are padded by one pixel and followed by ReLU; weights of all layers are Xavier uniform, biases zero.
    The log-softmax that ends the published network is part of the loss here: cross-entropy of its output equals
    `softmax_cross_entropy` of the logits. 19,146 parameters on one-channel images with 10 classes.

    Args:
        num_classes: number of classes.
        dtype: precision of the computation, `"float32"` or `"bfloat16"`; parameters are float32 either way.

    Returns:
        The model; inputs [B, H, W, C] float of at least 3×3 pixels, labels [B] integers.

    Raises:
        ValueError: where `num_classes` is below 1, or `dtype` is another name.
        TypeError: where `num_classes` is not a whole number.
    """
    check_whole("cnn_afl", "num_classes", num_classes)
    compute_dtype(dtype)
    return from_linen(CNNAFL(num_classes, dtype), name="cnn_afl", references=("afl2025",))


class CNNAFL(nn.Module):
    """Conv 32 - ReLU - conv 32 - ReLU - conv 32 - ReLU - mean over the image - dense."""

    num_classes: int
    dtype: str

    @nn.compact
    def __call__(self, x: Array) -> Array:
        require_images(x, "cnn_afl", smallest=3)
        dtype, xavier = compute_dtype(self.dtype), nn.initializers.xavier_uniform()
        for _ in range(3):
            x = nn.relu(Conv(32, padding="SAME", kernel_init=xavier, dtype=dtype)(x))
        return nn.Dense(self.num_classes, kernel_init=xavier, dtype=dtype)(x.mean((1, 2)))
