"""Residual networks for small images."""

from __future__ import annotations

from typing import Literal, TypeAlias

import jax.numpy as jnp
from flax import linen as nn

from jaxafl.models.linen import from_linen
from jaxafl.models.model import Array, Model
from jaxafl.models.networks.convolution import Conv
from jaxafl.models.networks.dense import Dense
from jaxafl.models.networks.normalisation import BatchNorm
from jaxafl.options import check_choice, named

Norm: TypeAlias = Literal["batch", "group"]


@named
def resnet20(num_classes: int = 10, norm: Norm = "batch", width: int = 16, groups: int = 2) -> Model:
    """Builds ResNet-20 of the CIFAR-10 experiments of He et al.: 3 stages of 3 blocks, of 16, 32 and 64 channels.

    A 3×3 convolution to `width` channels, normalisation, ReLU; the stages, of which the second and the third halve the
    image; the mean over the image; one dense layer. If a stage begins with more channels, the shortcut takes every
    second pixel and appends channels of zeros: option A of the paper, without parameters. 269,722 parameters on 32×32×3
    images with 10 classes; option B, a 1×1 convolution, would have 272,474.

    Args:
        num_classes: number of classes.
        norm: `"batch"`: batch normalisation as published, with running statistics as state, not parameters; or
            `"group"`: group normalisation per sample.
        width: channels of the first stage.
        groups: groups of channels for `norm="group"`; 2 as in Reddi et al. (2021) after Hsieh et al. (2020).

    Returns:
        The model; inputs [B, H, W, C] float of at least 4×4 pixels, labels [B] integers.

    Raises:
        ValueError: `norm` has another value.

    References:
        He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, section 4.2. Initialisation:
        He et al., "Delving Deep into Rectifiers", ICCV 2015. Groups: Reddi et al., "Adaptive Federated Optimization",
        ICLR 2021; Hsieh et al., "The Non-IID Data Quagmire of Decentralized Machine Learning", ICML 2020.
    """
    return _residual("resnet20", num_classes, (width, 2 * width, 4 * width), 3, "pad", norm, groups)


@named
def resnet18(num_classes: int = 10, norm: Norm = "batch", width: int = 64, groups: int = 2) -> Model:
    """Builds ResNet-18 for CIFAR: 4 stages of 2 basic blocks, of 64, 128, 256 and 512 channels.

    The network of He et al. with a 3×3 convolution of stride 1 and no max-pooling at the start, so that images of 32×32
    pixels keep their size in the first stage. If the number of channels changes, the shortcut is a 1×1 convolution and
    a normalisation. The last layers are the mean over the image (4×4 for 32×32) and a dense layer. 11,173,962
    parameters on 32×32×3 images with 10 classes, with either normalisation.

    Args:
        num_classes: number of classes.
        norm: `"batch"` or `"group"` normalisation, see `resnet20`.
        width: channels of the first stage.
        groups: groups of channels for `norm="group"`.

    Returns:
        The model; inputs [B, H, W, C] float of at least 8×8 pixels, labels [B] integers.

    Raises:
        ValueError: `norm` has another value.

    References:
        He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", CVPR 2016; see `resnet20`.
    """
    widths = (width, 2 * width, 4 * width, 8 * width)
    return _residual("resnet18", num_classes, widths, 2, "project", norm, groups)


def _residual(
    name: str, num_classes: int, widths: tuple[int, ...], blocks: int, shortcut: str, norm: Norm, groups: int
) -> Model:
    check_choice(name, "norm", norm, ("batch", "group"))
    network = ResNet(num_classes, widths, blocks, shortcut, norm, groups)
    return from_linen(network, name=name, references=("he2016",))


class ResNet(nn.Module):
    """Conv - norm - ReLU - stages of basic blocks - mean over the image - dense."""

    num_classes: int
    widths: tuple[int, ...]
    blocks: int
    shortcut: str
    norm: str
    groups: int

    @nn.compact
    def __call__(self, x: Array, train: bool, mask: Array | None = None) -> Array:
        x = nn.relu(_convolved(self, x, self.widths[0], 3, 1, train, mask))
        for stage, width in enumerate(self.widths):
            for block in range(self.blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                x = BasicBlock(width, stride, self.shortcut, self.norm, self.groups)(x, train, mask)
        return Dense(self.num_classes)(x.mean((1, 2)))


class BasicBlock(nn.Module):
    """ReLU(F(x) + shortcut(x)) with F: conv 3×3 - norm - ReLU - conv 3×3 - norm.

    Attributes:
        features: output channels.
        stride: stride of the first convolution and of the shortcut.
        shortcut: used if the shape changes: `"pad"` (every second pixel, channels of zeros appended) or `"project"`
            (1×1 convolution and normalisation).
        norm, groups: see `resnet20`.
    """

    features: int
    stride: int
    shortcut: str
    norm: str
    groups: int

    @nn.compact
    def __call__(self, x: Array, train: bool, mask: Array | None = None) -> Array:
        y = nn.relu(_convolved(self, x, self.features, 3, self.stride, train, mask))
        y = _convolved(self, y, self.features, 3, 1, train, mask)
        if self.stride > 1 or x.shape[-1] != self.features:
            if self.shortcut == "project":
                x = _convolved(self, x, self.features, 1, self.stride, train, mask)
            else:
                missing = self.features - x.shape[-1]
                x = jnp.pad(x[:, :: self.stride, :: self.stride], ((0, 0), (0, 0), (0, 0), (0, missing)))
        return nn.relu(x + y)


def _convolved(
    of: ResNet | BasicBlock, x: Array, features: int, kernel: int, stride: int, train: bool, mask: Array | None
) -> Array:
    """Applies a convolution without bias and a normalisation as layers of the module `of`, in its compact method."""
    start = nn.initializers.he_normal()
    around = (kernel // 2, kernel // 2)  # "SAME" pads a strided convolution on one side only
    x = Conv(features, (kernel, kernel), (stride, stride), (around, around), False, start)(x)
    if of.norm == "batch":
        return BatchNorm()(x, train, mask)
    return nn.GroupNorm(num_groups=of.groups, epsilon=1e-5, use_fast_variance=False)(x)  # the constants of PyTorch
