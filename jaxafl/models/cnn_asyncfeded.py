"""The convolutional network of AsyncFedED."""

from __future__ import annotations

from flax import linen as nn

from jaxafl.checks import check_whole
from jaxafl.models.adapters import from_linen
from jaxafl.models.layers import Array, Conv, flatten, max_pool, require_images
from jaxafl.models.model import Model
from jaxafl.models.options import compute_dtype


def cnn_asyncfeded(
    num_classes: int, features: tuple[int, int] = (32, 64), kernel: int = 3, dtype: str = "float32"
) -> Model:
    """Two convolutions, one max-pool, one dense layer: the network of AsyncFedED on FEMNIST.

    Convolution - ReLU - convolution - ReLU - max-pool 2×2 - dense, convolutions without padding. The paper (Wang et
    al., "AsyncFedED: Asynchronous Federated Learning with Euclidean Distance based Adaptive Weight Aggregation", 2022)
    does not publish widths and kernel size, so they are options: 590,270 parameters on 28×28×1 images with 62 classes
    and the defaults.

    Args:
        num_classes: number of classes.
        features: channels of the two convolutions.
        kernel: side of their square kernels, in pixels.
        dtype: precision of the computation, `"float32"` or `"bfloat16"`; parameters are float32 either way.

    Returns:
        The model; inputs [B, H, W, C] float of at least 2 `kernel` pixels each way, labels [B] integers.

    Raises:
        ValueError: where a number is below 1, there are not two features, or `dtype` is another name.
        TypeError: where a number is not a whole one.
    """
    check_whole("cnn_asyncfeded", "num_classes", num_classes)
    check_whole("cnn_asyncfeded", "kernel", kernel)
    try:
        first, second = features
    except (TypeError, ValueError):
        raise ValueError(
            f"cnn_asyncfeded has two convolutions: features must be two numbers, for example (32, 64), got {features!r}"
        ) from None
    for channels in (first, second):
        check_whole("cnn_asyncfeded", "features", channels)
    compute_dtype(dtype)
    return from_linen(
        CNNAsyncFedED(num_classes, (first, second), kernel, dtype),
        name="cnn_asyncfeded",
        references=("wang2022asyncfeded",),
    )


class CNNAsyncFedED(nn.Module):
    """Conv - ReLU - conv - ReLU - max-pool - dense."""

    num_classes: int
    features: tuple[int, int]
    kernel: int
    dtype: str

    @nn.compact
    def __call__(self, x: Array) -> Array:
        require_images(x, "cnn_asyncfeded", smallest=2 * self.kernel)
        dtype = compute_dtype(self.dtype)
        for channels in self.features:
            x = nn.relu(Conv(channels, (self.kernel, self.kernel), dtype=dtype)(x))
        return nn.Dense(self.num_classes, dtype=dtype)(flatten(max_pool(x)))
