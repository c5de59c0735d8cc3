"""Several test sets of one dataset, for example with and without a shift of the distribution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxafl.data.form import kind_of_sample
from jaxafl.data.targets import as_targets, check_range
from jaxafl.options import UserError, kept, shown


def checked_test_sets(name: str, sets: Any) -> dict[str, tuple[Any, Any]]:
    """Returns test sets by name; raises an error unless each is a pair of samples and labels.

    Args:
        name: name of the dataset, for messages.
        sets: name of the set -> (x, y).
    """
    if not isinstance(sets, Mapping) or not sets:
        raise TypeError(f"{name}: test sets must be name -> (x, y), got {shown(sets)}")
    for key, one in sets.items():
        if not isinstance(key, str) or not key:
            raise TypeError(f"{name}: the name of a test set must be a text, got {shown(key)}")
        if not isinstance(one, tuple | list) or len(one) != 2:
            raise TypeError(f"{name}: the test set {key!r} must be a pair (x, y), got {shown(one)}")
    return {key: tuple(one) for key, one in sets.items()}


def test_sets_of(
    name: str, known: Mapping[str, tuple[Any, np.ndarray]], further: Any, classes: Any
) -> dict[str, tuple[Any, Any]]:
    """Returns all test sets by name, in the dtypes of the first one.

    Args:
        name: name of the dataset, for messages.
        known: name -> (x, y) of the present test sets, at least one.
        further: name -> (x, y) of the others.
        classes: number of classes; `None` if labels are no classes.
    """
    others = checked_test_sets(name, further)
    if twice := [key for key in others if key in known]:
        raise UserError(
            f"{name}: two test sets are called {twice[0]!r}; rename one, e.g. with_test_sets(..., first='clean')"
        )
    test = next(iter(known.values()))
    found = {key: _like_test_set(f"{name}, test set {key!r}", one, test, classes) for key, one in others.items()}
    return {**known, **found}


def _like_test_set(owner: str, given: tuple[Any, Any], test: tuple[Any, np.ndarray], classes: Any) -> Any:
    """Returns samples and labels in the dtypes of the test set.

    Args:
        owner: the dataset and the set, for messages.
        given: samples and labels.
        test: those of the test set.
        classes: number of classes; `None` if labels are no classes.

    Raises:
        ValueError: shapes or dtypes differ from those of the test set, a value is not finite, or a label is unknown.
    """
    x = like_samples(owner, given[0], test[0])
    y, known = as_targets(owner, "test", given[1]), test[1]
    count = len(jax.tree.leaves(x)[0])
    if y.shape != (count, *known.shape[1:]) or y.dtype.kind != known.dtype.kind:
        expected = f"{known.dtype}{[count, *known.shape[1:]]}"
        raise UserError(f"{owner}: labels are {y.dtype}{list(y.shape)}; expected {expected}, as in the first test set")
    for leaf in jax.tree.leaves(x):
        if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
            raise UserError(f"{owner}: a value is NaN or infinite; remove or replace such samples first")
    if classes is not None:
        check_range(owner, "test", y, classes)
    return jax.tree.map(kept, x), y.astype(known.dtype)


def like_samples(owner: str, x: Any, test: Any) -> Any:
    """Returns raw samples in the dtypes of the test set.

    Args:
        owner: the caller, for messages.
        x: samples [n, ...], n >= 1.
        test: samples of the test set.

    Raises:
        ValueError: shapes or kinds of numbers differ from those of the test set.
    """
    given = jax.tree.map(np.asarray, x)
    forms: list[Any] = [jax.tree.structure(tree) for tree in (given, test)]
    fits = bool(forms[0] == forms[1])
    pairs = list(zip(jax.tree.leaves(given), jax.tree.leaves(test), strict=True)) if fits else []
    for leaf, like in pairs:
        same = leaf.shape[1:] == like.shape[1:] and leaf.ndim and len(leaf) and leaf.dtype.kind == like.dtype.kind
        fits = fits and bool(same) and (leaf.dtype.kind == "f" or np.array_equal(leaf, leaf.astype(like.dtype)))
    if not fits or len({len(leaf) for leaf, _ in pairs}) > 1:
        shapes = jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", given)
        raise UserError(f"{owner}: x is {shapes}; expected samples [n, ...] of {kind_of_sample(test)}, as in x_test")
    return jax.tree.map(lambda leaf, like: leaf.astype(like.dtype, copy=False), given, test)
