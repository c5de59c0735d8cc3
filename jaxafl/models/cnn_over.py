"""The over-parameterised convolutional network: `cnn_small` with ten times the channels."""

from __future__ import annotations

from jaxafl.models.model import Model
from jaxafl.models.two_convolutions import two_convolutions


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
        ValueError: where `num_classes` is below 1, or `dtype` is another name.
        TypeError: where `num_classes` is not a whole number.
    """
    return two_convolutions("cnn_over", (100, 200), 50, num_classes, dtype, ("hao2025",), second_bias=False)
