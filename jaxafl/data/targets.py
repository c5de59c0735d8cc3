"""Targets of samples: classes, several labels per sample, or real numbers; their quantiles."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from jaxafl.options import UserError, as_array, check_whole


def as_targets(name: str, part: str, y: ArrayLike | None) -> np.ndarray:
    """Returns targets in the form in which they are stored.

    Args:
        name: name of the dataset, for messages.
        part: `"training"` or `"test"`, for messages.
        y: integers [n] (classes), integers or bools [n, L] (several labels per sample), or floats [n, ...].

    Returns:
        int32 [n] or [n, L], or float32 [n, ...]. Float64 stays float64 with `jax_enable_x64`.

    Raises:
        ValueError: a target is NaN, infinite or too large, or integers have a second axis of length 1.
        TypeError: `y` holds neither integers nor floats.
    """
    labels = as_array(name, f"{part} labels", y)
    if labels.ndim == 0:
        raise UserError(f"{name}: {part} labels must be an array [n, ...]; got {y!r}")
    if labels.dtype.kind == "f":
        kept = jnp.result_type(float) if labels.dtype.itemsize >= 8 else np.dtype(np.float32)
        bad = ~(np.abs(labels) <= np.finfo(kept).max)
        if bad.any():
            raise UserError(
                f"{name}: {bad.sum()} of the {part} targets are NaN, infinite or too large for {kept}, the first in "
                f"sample {np.argwhere(bad)[0][0]}; remove or replace these samples first"
            )
        return labels.astype(kept)  # a copy: the user may change the array
    if labels.ndim == 2 and labels.shape[1] == 1:
        raise UserError(f"{name}: {part} labels have shape {labels.shape}; write y[:, 0]")
    if labels.dtype.kind not in "iu" and not (labels.dtype.kind == "b" and labels.ndim > 1):
        advice = "numpy.unique(y, return_inverse=True)[1] numbers any labels, and y.astype(float) converts targets"
        raise TypeError(
            f"{name}: {part} labels must be integer classes or float targets; got dtype {labels.dtype}. "
            f"{'Write y.astype(int)' if labels.dtype.kind == 'b' else advice}"
        )
    if labels.size and max(abs(int(labels.min())), int(labels.max())) >= 2**31:
        raise UserError(f"{name}: {part} labels go up to {labels.max():,}, beyond int32; for targets, y.astype(float)")
    return labels.astype(np.int32)


def check_range(name: str, part: str, y: np.ndarray, num_classes: int) -> None:
    """Raises an error unless labels, int32 [n] or [n, L], lie in [0, C); negative ones of [n, L] are padding.

    Raises:
        ValueError: a label lies outside the range, or all labels of a sample are padding.
        TypeError: the targets are floats, which have no classes.
    """
    if y.dtype.kind == "f":
        whole = ". If these are the numbers of classes, write y.astype(int)" if (y == np.round(y)).all() else ""
        raise TypeError(
            f"{name}: {part} labels must be integer classes if num_classes is given; got dtype {y.dtype}{whole}. For "
            "targets of a regression, leave num_classes out (None)"
        )
    empty = (y < 0).all(axis=tuple(range(1, y.ndim))) if y.ndim > 1 else np.zeros(0, bool)
    if empty.any():
        raise UserError(
            f"{name}: {empty.sum()} of the {part} samples have no label but padding, the first is sample "
            f"{empty.argmax()}. They would count as errors; remove them first"
        )
    low, high = int(y.min(initial=0)), int(y.max(initial=0))
    if high >= num_classes or (low < 0 and y.ndim == 1):
        negative = ""
        if low < 0:
            negative = (
                "; leave out samples without a label (-1, as in test sets that are published without), and number "
                "other classes by numpy.unique(y, return_inverse=True)[1]; targets of a regression are floats"
            )
        raise UserError(
            f"{name}: {part} labels run from {y.min()} to {high}, outside 0..{num_classes - 1} "
            f"(num_classes={num_classes}){negative}"
        )


def require_classes(owner: str, labels: np.ndarray) -> None:
    """Raises `ValueError` unless labels are one class per sample, int [n]."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise UserError(f"{owner}: {_found(labels)}, expected one class per sample. {_remedy(labels)}")


def class_counts(owner: str, labels: np.ndarray) -> np.ndarray:
    """Returns the samples of each class that occurs, int [C], sorted by class; raises as `require_classes` does."""
    require_classes(owner, labels)
    return np.unique(labels, return_counts=True)[1]


def quantile_bins(owner: str, y: np.ndarray, quantiles: int, targets: np.ndarray | None = None) -> np.ndarray:
    """Returns the quantile of each target: k, int [m], if it lies in [q_k, q_{k+1}), with q_k the (k/Q)-quantile of y.

    Args:
        owner: name of the dataset, for messages.
        y: float or int [n].
        quantiles: Q, at least 2.
        targets: float or int [m], by default y.

    Raises:
        ValueError: samples have several targets, or Q is below 2.
        TypeError: Q is not a whole number.
    """
    quantiles = check_whole(owner, "quantiles", quantiles, least=2)
    if y.ndim != 1:
        raise UserError(f"{owner}: {_found(y)}, and quantiles need one number per sample. {_remedy(y)}")
    edges = np.quantile(y, np.arange(1, quantiles) / quantiles)
    return np.searchsorted(edges, y if targets is None else targets, side="right")


def _found(y: np.ndarray) -> str:
    return f"y is {y.dtype}[{', '.join(map(str, ('n', *y.shape[1:])))}]"


def _remedy(y: np.ndarray) -> str:
    """Returns advice for targets that are not one class per sample."""
    if y.ndim == 1:
        return (
            "Take quantiles of y as classes: dataset.partition(..., quantiles=4), data.statistics(quantiles=4), in a "
            "shell --partition-quantiles 4"
        )
    return "Split without classes (iid, sizes, by_user), or give client ids of your own: from_arrays(x, y, client_ids)"
