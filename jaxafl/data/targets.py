"""Samples and targets in the form in which they are stored, and the classes and quantiles of targets."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from jaxafl.options import UserError, as_array, check_whole


def as_samples(owner: str, x: Any) -> Any:
    """Returns samples, an array `[n, ...]` or a pytree of such arrays, in the form in which they are stored.

    Floats become float32. Float64 stays float64 with `jax_enable_x64`; integers and bools keep their dtype.

    Args:
        owner: name of the dataset and of the samples, for messages.
        x: samples; nested lists of numbers are one array.

    Raises:
        ValueError: a number is NaN, infinite or too large for the form in which it is stored.
        TypeError: samples are not numbers.
    """
    if not all(np.ndim(leaf) for leaf in jax.tree.leaves(x)):
        x = as_array(owner, "samples", x)  # nested lists, which JAX takes for a pytree

    def stored(leaf: Any) -> np.ndarray:
        array = as_array(owner, "samples", leaf)
        if array.dtype.kind == "O":  # a table with columns of different kinds, such as bools beside floats
            with contextlib.suppress(ValueError, TypeError):
                array = array.astype(np.float64)
        if array.ndim == 0 or array.dtype.kind not in "fiub":
            raise TypeError(
                f"{owner}: samples are {array.dtype}{[*array.shape]}; expected numbers. Number words by "
                "numpy.unique(column, return_inverse=True)[1], and pad sequences to one length"
            )
        return _in_range(f"{owner}: samples", array)

    return jax.tree.map(stored, x)


def as_targets(owner: str, y: ArrayLike | None) -> np.ndarray:
    """Returns targets in the form in which they are stored, always as a copy.

    Args:
        owner: name of the dataset and of the targets, for messages.
        y: integers or bools [n] (classes), [n, L] (several labels per sample), or floats [n, ...].

    Returns:
        int32 [n] or [n, L], or float32 [n, ...]. Float64 stays float64 with `jax_enable_x64`.

    Raises:
        ValueError: a target is NaN, infinite or too large, or integers have a second axis of length 1.
        TypeError: `y` holds neither integers nor floats.
    """
    labels = as_array(owner, "labels", y)
    if labels.ndim == 0 or labels.dtype.kind not in "iufb":
        raise TypeError(
            f"{owner}: labels are {labels.dtype}{[*labels.shape]}; expected integer classes or floats [n, ...]. "
            "numpy.unique(y, return_inverse=True)[1] numbers any labels"
        )
    if labels.dtype.kind != "f" and labels.shape[1:] == (1,):
        raise UserError(f"{owner}: labels have shape {labels.shape}; expected [n]. Write y[:, 0]")
    checked = _in_range(f"{owner}: labels", labels)
    return checked.astype(checked.dtype if labels.dtype.kind == "f" else np.int32)


def numbered(*targets: Any) -> list[Any]:
    """Returns targets with words numbered in the sorted order of all of them; others, and `None`, as they are."""
    given = [one for one in targets if one is not None]
    if not all(_are_words(one) for one in given):
        return [*targets]
    known = np.unique(np.concatenate([np.zeros(0, str), *(np.asarray(one, str) for one in given)]))
    return [None if one is None else np.searchsorted(known, np.asarray(one, str)) for one in targets]


def _are_words(y: Any) -> bool:
    several = isinstance(y, list | tuple) or (hasattr(y, "__array__") and y.ndim == 1)
    if not several or not all(isinstance(one, str) for one in y):  # a missing one is no word
        return False
    return len(y) > 0 and not next(iter(y)).isdigit()


def _in_range(owner: str, array: np.ndarray) -> np.ndarray:
    """Returns floats in the stored dtype, and integers as they are; raises `ValueError` for numbers out of range."""
    if array.dtype.kind == "b" or not array.size:
        return array
    dtype: Any = np.dtype(np.int32)
    if array.dtype.kind == "f":
        dtype = jnp.result_type(float) if array.dtype.itemsize >= 8 else np.dtype(np.float32)
    limit = np.finfo(dtype).max if dtype.kind == "f" else np.iinfo(dtype).max
    low, high = array.min(), array.max()  # NaN if one value is NaN
    if not (low >= -limit and high <= limit):
        bad = np.flatnonzero(~((array >= -limit) & (array <= limit)).all(tuple(range(1, array.ndim))))
        raise UserError(
            f"{owner} have {len(bad)} entries with NaN, infinity or numbers beyond {dtype}, the first at {bad[0]}; "
            f"expected numbers up to {limit:.3g}. Remove, replace or scale them first"
        )
    return array.astype(dtype, copy=False) if dtype.kind == "f" else array


def check_range(owner: str, y: np.ndarray, num_classes: int) -> None:
    """Raises an error unless labels, int32 [n] or [n, L], lie in [0, C); negative ones of [n, L] are padding.

    Raises:
        ValueError: a label lies outside the range, or all labels of a sample are padding.
        TypeError: the targets are floats, which have no classes.
    """
    if y.dtype.kind == "f":
        raise TypeError(
            f"{owner}: labels are {y.dtype}, but num_classes={num_classes} is given; expected integers. Write "
            "y.astype(int), or leave num_classes out for a regression"
        )
    if y.ndim > 1 and (empty := (y < 0).all(axis=tuple(range(1, y.ndim)))).any():
        raise UserError(
            f"{owner}: {empty.sum()} samples have no label but padding, the first is sample {empty.argmax()}; expected "
            "a label for each. They would count as errors; remove them first"
        )
    low, high = int(y.min(initial=0)), int(y.max(initial=0))
    if high >= num_classes or (low < 0 and y.ndim == 1):
        raise UserError(
            f"{owner}: labels run from {y.min()} to {high}, outside 0..{num_classes - 1} (num_classes={num_classes}). "
            "Leave out samples without a label (-1); numpy.unique(y, return_inverse=True)[1] numbers other classes"
        )


def require_classes(owner: str, labels: np.ndarray) -> None:
    """Raises `ValueError` unless labels are one class per sample, int [n]."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise UserError(
            f"{owner}: y is {labels.dtype}{[*labels.shape]}; expected one class per sample. Take quantiles of y [n] as "
            "classes (quantiles=4, --partition-quantiles 4), or split by client ids: from_arrays(x, y, client_ids)"
        )


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
        raise UserError(f"{owner}: y has shape {y.shape}; expected one number per sample for quantiles")
    edges = np.quantile(y, np.arange(1, quantiles) / quantiles)
    return np.searchsorted(edges, y if targets is None else targets, side="right")
