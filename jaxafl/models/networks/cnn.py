"""Convolutional networks of published experiments."""

from __future__ import annotations

from flax import linen as nn

from jaxafl.models.linen import from_linen
from jaxafl.models.model import Array, Model
from jaxafl.models.networks.convolution import Conv
from jaxafl.models.networks.dense import Dense
from jaxafl.options import named


@named
def cnn_small(num_classes: int = 10) -> Model:
    """Builds two 5×5 convolutions of 10 and 20 channels with max-pooling, then dense layers of 50 and `num_classes`.

    21,840 parameters on 28×28×1 images with 10 classes.

    Args:
        num_classes: number of classes.

    Returns:
        The model; inputs [B, H, W, C] float of at least 16×16 pixels, labels [B] integers.
    """
    network = TwoConvolutions(num_classes, (10, 20), hidden=50)
    return from_linen(network, name="cnn_small", references=("hao2025",))


@named
def cnn_over(num_classes: int = 10) -> Model:
    """Builds an over-parameterised `cnn_small` with ten times the channels: 5×5 convolutions of 100 and 200.

    The second convolution has no bias. Only then does a network of this topology with round widths have the published
    663,160 parameters (on 28×28×1 images with 10 classes).

    Args:
        num_classes: number of classes.

    Returns:
        The model; inputs [B, H, W, C] float of at least 16×16 pixels, labels [B] integers.
    """
    network = TwoConvolutions(num_classes, (100, 200), hidden=50, second_bias=False)
    return from_linen(network, name="cnn_over", references=("hao2025",))


@named
def cnn_defedavg(num_classes: int = 10) -> Model:
    """Builds the network of DeFedAvg: `cnn_small` with 32 and 64 channels and a dense layer of 512.

    582,026 parameters on 28×28×1 images and 878,538 on 32×32×3 images, with 10 classes.

    Args:
        num_classes: number of classes.

    Returns:
        The model; inputs [B, H, W, C] float of at least 16×16 pixels, labels [B] integers.
    """
    network = TwoConvolutions(num_classes, (32, 64), hidden=512)
    return from_linen(network, name="cnn_defedavg", references=("wang2024defedavg",))


@named
def cnn_afl(num_classes: int = 10) -> Model:
    """Builds AFL's network for MNIST: three 3×3 convolutions of 32 channels, the mean over the image, a dense layer.

    Convolutions are padded by one pixel and followed by ReLU; weights of all layers are Xavier uniform, biases zero.
    The published network ends with a log-softmax, which is part of the loss in this package: the values are equal.
    19,146 parameters on one-channel images with 10 classes.

    Args:
        num_classes: number of classes.

    Returns:
        The model; inputs [B, H, W, C] float of at least 3×3 pixels, labels [B] integers.
    """
    return from_linen(CNNAFL(num_classes), name="cnn_afl", references=("afl2025",))


@named
def cnn_asyncfeded(num_classes: int, features: tuple[int, int] = (32, 64), kernel: int = 3) -> Model:
    """Builds the network of AsyncFedED on FEMNIST: two convolutions, one max-pool, one dense layer.

    Convolution - ReLU - convolution - ReLU - max-pool 2×2 - dense, convolutions without padding. The paper (Wang et
    al., "AsyncFedED: Asynchronous Federated Learning with Euclidean Distance based Adaptive Weight Aggregation", 2022)
    does not publish widths and kernel size, so they are options: 590,270 parameters on 28×28×1 images with 62 classes
    and the defaults.

    Args:
        num_classes: number of classes.
        features: channels of the two convolutions.
        kernel: side of the square kernels, in pixels.

    Returns:
        The model; inputs [B, H, W, C] float of at least 2 `kernel` pixels each way, labels [B] integers.
    """
    network = TwoConvolutions(num_classes, tuple(features), kernel, first_pool=False)
    return from_linen(network, name="cnn_asyncfeded", references=("wang2022asyncfeded",))


class TwoConvolutions(nn.Module):
    """Conv - pool - ReLU - conv - pool - ReLU - dense - ReLU - dense, convolutions without padding.

    ReLU follows the pool, for equal values at a quarter of the cost.

    Attributes:
        num_classes: outputs.
        features: channels of the two convolutions.
        kernel: side of the square kernels, in pixels.
        hidden: width of the first dense layer; `None` leaves it out.
        first_pool: False leaves out the pool after the first convolution.
        second_bias: True if the second convolution has a bias.
    """

    num_classes: int
    features: tuple[int, ...]
    kernel: int = 5
    hidden: int | None = None
    first_pool: bool = True
    second_bias: bool = True

    @nn.compact
    def __call__(self, x: Array) -> Array:
        first, second = self.features
        side = (self.kernel, self.kernel)
        x = nn.relu(Conv(first, side, pool=self.first_pool)(x))
        x = nn.relu(Conv(second, side, use_bias=self.second_bias, pool=True)(x)).reshape(len(x), -1)
        if self.hidden is not None:
            x = nn.relu(Dense(self.hidden)(x))
        return Dense(self.num_classes)(x)


class CNNAFL(nn.Module):
    """Conv 32 - ReLU - conv 32 - ReLU - conv 32 - ReLU - mean over the image - dense."""

    num_classes: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        xavier = nn.initializers.xavier_uniform()
        for _ in range(3):
            x = nn.relu(Conv(32, padding="SAME", kernel_init=xavier)(x))
        return Dense(self.num_classes, kernel_init=xavier)(x.mean((1, 2)))
