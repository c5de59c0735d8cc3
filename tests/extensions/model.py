"""A model: a network of one's own."""

from __future__ import annotations

import flax.linen as nn

from jaxafl.models import Model, from_linen


class Network(nn.Module):
    features: int
    num_classes: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.num_classes)(nn.tanh(nn.Dense(self.features)(x)))


def tanh_network(num_classes: int, features: int = 16) -> Model:
    """One hidden layer.

    Args:
        num_classes: C.
        features: its width.
    """
    return from_linen(Network(features, num_classes), name="tanh_network")
