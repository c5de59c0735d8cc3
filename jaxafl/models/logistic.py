"""Multinomial logistic regression."""

from __future__ import annotations

from flax import linen as nn

from jaxafl.models.adapters import from_linen
from jaxafl.models.layers import Array, flatten
from jaxafl.models.model import Model
from jaxafl.models.options import check_positive


def logistic(num_classes: int) -> Model:
    """Multinomial logistic regression: one dense layer on the flattened input, (d + 1)·C parameters.

    The model of the Synthetic(α, β) data of FedProx (Li et al., "Federated Optimization in Heterogeneous Networks",
    MLSys 2020).

    Args:
        num_classes: number of classes C.

    Returns:
        The model; inputs [B, ...] float, labels [B] integers.

    Raises:
        ValueError: where `num_classes` is not a whole number >= 1.
    """
    check_positive("num_classes", num_classes)
    return from_linen(Logistic(num_classes), name="logistic")


class Logistic(nn.Module):
    """Logits = flatten(x) W + b."""

    num_classes: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        return nn.Dense(self.num_classes)(flatten(x))
