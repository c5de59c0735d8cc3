"""Multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence

from flax import linen as nn

from jaxafl.checks import check_whole
from jaxafl.models.adapters import from_linen
from jaxafl.models.layers import Array, flatten
from jaxafl.models.model import Model
from jaxafl.models.options import compute_dtype


def mlp(num_classes: int, hidden: Sequence[int] = (200, 200), dtype: str = "float32") -> Model:
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
        ValueError: where `hidden` is not a list of widths, a width or `num_classes` is below 1, or `dtype` is another
            name.
        TypeError: where a width or `num_classes` is not a whole number.
    """
    check_whole("mlp", "num_classes", num_classes)
    try:
        widths = tuple(hidden)
    except TypeError:
        raise ValueError(f"mlp: hidden must be a list of widths, for example (200, 200), got {hidden!r}") from None
    for width in widths:
        check_whole("mlp", "hidden widths", width)
    compute_dtype(dtype)
    return from_linen(MLP(num_classes, widths, dtype), name="mlp")


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
