"""Multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence

from flax import linen as nn

from jaxafl.models.adapters import from_linen
from jaxafl.models.layers import Array, flatten
from jaxafl.models.model import Model
from jaxafl.models.options import check_positive


def mlp(num_classes: int, hidden: Sequence[int] = (200, 200)) -> Model:
    """Dense layers with ReLU between them, on the flattened input; three dense layers by default.

    The default widths are those of the "2NN" of McMahan et al., "Communication-Efficient Learning of Deep Networks
    from Decentralized Data" (AISTATS 2017). AsyncFedED (Wang et al., 2022) uses a perceptron of three dense layers on
    Synthetic-1-1.

    Args:
        num_classes: number of classes.
        hidden: widths of the hidden layers.

    Returns:
        The model; inputs [B, ...] float, labels [B] integers.

    Raises:
        ValueError: where a width or `num_classes` is not a whole number >= 1.
    """
    check_positive("num_classes", num_classes)
    for width in hidden:
        check_positive("hidden widths", width)
    return from_linen(MLP(num_classes, tuple(hidden)), name="mlp")


class MLP(nn.Module):
    """Dense - ReLU - ... - dense."""

    num_classes: int
    hidden: tuple[int, ...]

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = flatten(x)
        for width in self.hidden:
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(self.num_classes)(x)
