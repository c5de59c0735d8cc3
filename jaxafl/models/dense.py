"""Dense layers on flattened inputs: logistic regression and the multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence

from flax import linen as nn

from jaxafl.models.adapters import from_linen
from jaxafl.models.layers import flatten
from jaxafl.models.model import Array, Model, Precision, check_widths, checked, compute_dtype


@checked
def logistic(num_classes: int, dtype: Precision = "float32") -> Model:
    """Multinomial logistic regression: one dense layer on the flattened input, (d + 1)·C parameters.

    The model of the Synthetic(α, β) data of FedProx (Li et al., "Federated Optimization in Heterogeneous Networks",
    MLSys 2020).

    Args:
        num_classes: number of classes C.
        dtype: precision of the computation, `"float32"` or `"bfloat16"`; parameters are float32 either way.

    Returns:
        The model; inputs [B, ...] float, labels [B] integers.

    Raises:
        ValueError: `num_classes` is below 1, or `dtype` is another name.
        TypeError: `num_classes` is not a whole number.
    """
    return from_linen(Logistic(num_classes, dtype), name="logistic")


@checked
def mlp(num_classes: int, hidden: Sequence[int] = (200, 200), dtype: Precision = "float32") -> Model:
    """Dense layers with ReLU between them, on the flattened input; three dense layers by default.

    The default widths are those of the "2NN" of McMahan et al., "Communication-Efficient Learning of Deep Networks
    from Decentralized Data" (AISTATS 2017). AsyncFedED (Wang et al., 2022) uses a perceptron of three dense layers on
    Synthetic-1-1.

    Args:
        num_classes: number of classes.
        hidden: widths of the hidden layers.
        dtype: precision of the computation, `"float32"` or `"bfloat16"`; parameters are float32 either way.

    Returns:
        The model; inputs [B, ...] float, labels [B] integers.

    Raises:
        ValueError: `hidden` is not a list of widths, a width or `num_classes` is below 1, or `dtype` is another name.
        TypeError: a width or `num_classes` is not a whole number.
    """
    widths = check_widths("mlp", "hidden", hidden, "a list of widths, for example (200, 200)")
    return from_linen(MLP(num_classes, widths, dtype), name="mlp")


class Logistic(nn.Module):
    """Logits = flatten(x) W + b."""

    num_classes: int
    dtype: str

    @nn.compact
    def __call__(self, x: Array) -> Array:
        return nn.Dense(self.num_classes, dtype=compute_dtype(self.dtype))(flatten(x))


class MLP(nn.Module):
    """Dense - ReLU - ... - dense."""

    num_classes: int
    hidden: tuple[int, ...]
    dtype: str

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x, dtype = flatten(x), compute_dtype(self.dtype)
        for width in self.hidden:
            x = nn.relu(nn.Dense(width, dtype=dtype)(x))
        return nn.Dense(self.num_classes, dtype=dtype)(x)
