"""Several test sets of one dataset, for example with and without a shift of the distribution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxafl.data.form import kind_of_sample
from jaxafl.data.targets import as_samples, as_targets, check_range
from jaxafl.options import UserError, kept


def test_sets_of(
    name: str, known: Mapping[str, tuple[Any, np.ndarray]], further: Mapping[str, tuple[Any, Any]], classes: int | None
) -> dict[str, tuple[Any, Any]]:
    """Returns all test sets by name, in the dtypes of the first one.

    Args:
        name: name of the dataset, for messages.
        known: name -> (x, y) of the present test sets, at least one.
        further: name -> (x, y) of the others.
        classes: number of classes; `None` if labels are no classes.

    Raises:
        ValueError: a name is used twice, shapes or dtypes differ from those of the first test set, a value is not
            finite, or a label is unknown.
    """
    found, (x_test, y_test) = dict(known), next(iter(known.values()))
    for key, (x, y) in further.items():
        owner = f"{name}, test set {key!r}"
        if key in found:
            raise UserError(f"{owner}: another test set has this name. Rename one: with_test_sets(..., first='clean')")
        samples, labels = like_samples(owner, as_samples(owner, x), x_test), as_targets(owner, y)
        expected = [len(jax.tree.leaves(samples)[0]), *y_test.shape[1:]]
        if [*labels.shape] != expected or labels.dtype.kind != y_test.dtype.kind:
            raise UserError(f"{owner}: labels are {labels.dtype}{[*labels.shape]}; expected {y_test.dtype}{expected}")
        if classes is not None:
            check_range(owner, labels, classes)
        found[key] = jax.tree.map(kept, samples), labels.astype(y_test.dtype)
    return found


def like_samples(owner: str, x: Any, test: Any) -> Any:
    """Returns raw samples in the dtypes of the test set.

    Args:
        owner: the caller, for messages.
        x: samples [n, ...], n >= 1.
        test: samples of the test set.

    Raises:
        ValueError: shapes or kinds of numbers differ from those of the test set.
    """

    def fits(leaf: np.ndarray, like: np.ndarray) -> bool:
        same = leaf.shape[1:] == like.shape[1:] and leaf.dtype.kind == like.dtype.kind
        return same and (leaf.dtype.kind == "f" or np.array_equal(leaf, leaf.astype(like.dtype)))

    given = jax.tree.map(np.asarray, x)
    lengths = {leaf.shape[:1] for leaf in jax.tree.leaves(given)}
    forms = {jax.tree.structure(tree) for tree in (given, test)}
    if len(forms) > 1 or len(lengths) > 1 or lengths & {(), (0,)} or not jax.tree.all(jax.tree.map(fits, given, test)):
        shapes = jax.tree.map(lambda leaf: f"{leaf.dtype}{[*leaf.shape]}", given)
        raise UserError(f"{owner}: x is {shapes}; expected samples [n, ...] of {kind_of_sample(test)}, as in x_test")
    return jax.tree.map(lambda leaf, like: leaf.astype(like.dtype, copy=False), given, test)
