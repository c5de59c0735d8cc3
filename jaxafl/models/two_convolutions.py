"""Two convolutions and two dense layers: the network of which `cnn_small`, `cnn_over` and `cnn_defedavg` are sizes."""

from __future__ import annotations

from flax import linen as nn

from jaxafl.checks import check_whole
from jaxafl.models.adapters import from_linen
from jaxafl.models.layers import Array, Conv, flatten, max_pool, require_images
from jaxafl.models.model import Model
from jaxafl.models.options import compute_dtype


def two_convolutions(
    name: str,
    features: tuple[int, int],
    hidden: int,
    num_classes: int,
    dtype: str,
    references: tuple[str, ...],
    second_bias: bool = True,
) -> Model:
    """The network of one size as a model; raises `ValueError` where `num_classes` or `dtype` cannot work."""
    check_whole(name, "num_classes", num_classes)
    compute_dtype(dtype)
    network = TwoConvolutions(num_classes, features, hidden, second_bias, dtype)
    return from_linen(network, name=name, references=references)


class TwoConvolutions(nn.Module):
    """Conv 5×5 - pool - ReLU - conv 5×5 - pool - ReLU - dense - ReLU - dense, convolutions without padding.

    ReLU after the pool gives the same values as before it at a quarter of the cost.

    Attributes:
        num_classes: outputs.
        features: channels of the two convolutions.
        hidden: width of the first dense layer.
        second_bias: whether the second convolution has a bias.
        dtype: precision of the computation.
    """

    num_classes: int
    features: tuple[int, int]
    hidden: int
    second_bias: bool
    dtype: str

    @nn.compact
    def __call__(self, x: Array) -> Array:
        require_images(x, "a network of two 5x5 convolutions", smallest=16)
        dtype = compute_dtype(self.dtype)
        for channels, bias in zip(self.features, (True, self.second_bias), strict=True):
            x = nn.relu(max_pool(Conv(channels, (5, 5), use_bias=bias, dtype=dtype)(x)))
        x = nn.relu(nn.Dense(self.hidden, dtype=dtype)(flatten(x)))
        return nn.Dense(self.num_classes, dtype=dtype)(x)
