"""Multinomial logistic regression."""

from __future__ import annotations

from flax import linen as nn

from jaxafl.checks import check_whole
from jaxafl.models.adapters import from_linen
from jaxafl.models.layers import Array, flatten
from jaxafl.models.model import Model
from jaxafl.models.options import compute_dtype


def logistic(num_classes: int, dtype: str = "float32") -> Model:
    """Multinomial logistic regression: one dense layer on the flattened input, (d + 1)·C parameters.

    The model of the Synthetic(α, β) data of FedProx (Li et al., "Federated Optimization in Heterogeneous Networks",
    MLSys 2020).

    Args:
        num_classes: number of classes C.
        dtype: precision of the computation, `"float32"` or `"bfloat16"`; parameters are float32 either way.

    Returns:
        The model; inputs [B, ...] float, labels [B] integers.

    Raises:
        ValueError: where `num_classes` is below 1, or `dtype` is another name.
        TypeError: where `num_classes` is not a whole number.
    """
    check_whole("logistic", "num_classes", num_classes)
    compute_dtype(dtype)
    return from_linen(Logistic(num_classes, dtype), name="logistic")


class Logistic(nn.Module):
    """Logits = flatten(x) W + b."""

    num_classes: int
    dtype: str

    @nn.compact
    def __call__(self, x: Array) -> Array:
        return nn.Dense(self.num_classes, dtype=compute_dtype(self.dtype))(flatten(x))
