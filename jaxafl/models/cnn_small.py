"""A small convolutional network of 21,840 parameters."""

from __future__ import annotations

from jaxafl.models.model import Model
from jaxafl.models.two_convolutions import two_convolutions


def cnn_small(num_classes: int = 10, dtype: str = "float32") -> Model:
    """Two 5×5 convolutions of 10 and 20 channels with max-pooling, then dense layers of 50 and `num_classes`.

    21,840 parameters on 28×28×1 images with 10 classes.

    Args:
        num_classes: number of classes.
        dtype: precision of the computation, `"float32"` or `"bfloat16"`; parameters are float32 either way.

    Returns:
        The model; inputs [B, H, W, C] float of at least 16×16 pixels, labels [B] integers.

    Raises:
        ValueError: where `num_classes` is below 1, or `dtype` is another name.
        TypeError: where `num_classes` is not a whole number.
    """
    return two_convolutions("cnn_small", (10, 20), 50, num_classes, dtype, ("hao2025",))
