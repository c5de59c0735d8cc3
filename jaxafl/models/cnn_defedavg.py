"""The convolutional network of DeFedAvg."""

from __future__ import annotations

from jaxafl.models.model import Model
from jaxafl.models.two_convolutions import two_convolutions


def cnn_defedavg(num_classes: int = 10, dtype: str = "float32") -> Model:
    """Two 5×5 convolutions of 32 and 64 channels with max-pooling, then dense layers of 512 and `num_classes`.

    582,026 parameters on 28×28×1 images and 878,538 on 32×32×3 images, with 10 classes.

    Args:
        num_classes: number of classes.
        dtype: precision of the computation, `"float32"` or `"bfloat16"`; parameters are float32 either way.

    Returns:
        The model; inputs [B, H, W, C] float of at least 16×16 pixels, labels [B] integers.

    Raises:
        ValueError: where `num_classes` is below 1, or `dtype` is another name.
        TypeError: where `num_classes` is not a whole number.
    """
    return two_convolutions("cnn_defedavg", (32, 64), 512, num_classes, dtype, ("wang2024defedavg",))
