"""A federated dataset from a user's own arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxafl.data.dataset import Dataset
from jaxafl.data.federated import FederatedData
from jaxafl.data.partition.by_user import by_user
from jaxafl.data.preprocessing import Preprocessing, as_is, cast


def from_arrays(
    x: Any,
    y: Any,
    client_ids: Any,
    *,
    x_test: Any = None,
    y_test: Any = None,
    test_fraction: float | None = None,
    num_classes: int | None = None,
    preprocessing: Preprocessing | None = None,
    name: str = "arrays",
    seed: int = 0,
) -> FederatedData:
    """Federated data from arrays with one client id per sample.

    The test set is either given (`x_test`, `y_test`) or held out: `floor(test_fraction * n_k)` samples of each client,
    drawn without replacement. To split arrays that have no client ids, build a `Dataset` and partition it.

    Args:
        x: Samples `[n, ...]`; float64 is stored as float32, other dtypes are kept.
        y: Integer labels `[n]` in `[0, num_classes)`.
        client_ids: Client of each sample `[n]`, integers or strings; clients are numbered in sorted order of the ids.
        x_test: Test samples `[n_test, ...]`.
        y_test: Test labels `[n_test]`.
        test_fraction: Share of each client's samples held out for testing, in (0, 1), instead of `x_test` and `y_test`.
        num_classes: Number of classes; by default one more than the largest label, test labels included.
        preprocessing: Cast and normalisation in the step. By default float and uint8 samples become float32 unscaled,
            and other integers (tokens) stay as they are.
        name: Name of the dataset.
        seed: Seed of the held-out test samples.

    Returns:
        The federated dataset.

    Raises:
        ValueError: If shapes disagree, samples are not finite, or the test set is not given in exactly one way.
        TypeError: If labels are not integers.
    """
    samples, labels, ids = _samples(name, x), np.asarray(y), np.asarray(client_ids)
    if labels.ndim != 1 or ids.shape != labels.shape or len(samples) != len(labels):
        raise ValueError(
            f"{name}: x, y and client_ids need one entry per sample; got shapes {samples.shape}, {labels.shape} and "
            f"{ids.shape}"
        )
    if (x_test is None) != (y_test is None) or (x_test is None) == (test_fraction is None):
        raise ValueError(f"{name}: give either x_test and y_test, or test_fraction")
    _, users = np.unique(ids, return_inverse=True)
    if test_fraction is None:
        held_out, held_out_labels = _samples(name, x_test), np.asarray(y_test)
    else:
        test = _hold_out(name, users, test_fraction, np.random.default_rng(seed))
        held_out, held_out_labels = samples[test], labels[test]
        samples, labels, users = samples[~test], labels[~test], users[~test]
    if num_classes is None:
        num_classes = int(max(labels.max(initial=0), held_out_labels.max(initial=0))) + 1
    if preprocessing is None:
        preprocessing = cast() if samples.dtype == np.uint8 or samples.dtype.kind == "f" else as_is()
    source: dict[str, str | int | float] = {"source": "arrays"}
    if test_fraction is not None:
        source |= {"test_fraction": test_fraction, "test_seed": seed}
    dataset = Dataset(
        name, samples, labels, held_out, held_out_labels, num_classes, preprocessing, users=users, source=source
    )
    return dataset.partition(by_user())


def _samples(name: str, x: Any) -> np.ndarray:
    samples = np.asarray(x)
    if samples.ndim == 0 or samples.dtype.kind not in "fiub":
        raise TypeError(f"{name}: samples must be numeric arrays [n, ...]; got shape {samples.shape}, {samples.dtype}")
    if samples.dtype.kind == "f":
        samples = samples.astype(np.float32, copy=False)
        if not np.isfinite(samples).all():
            raise ValueError(f"{name}: samples hold NaN or infinite values; remove or replace them first")
    return samples


def _hold_out(name: str, users: np.ndarray, fraction: float, rng: np.random.Generator) -> np.ndarray:
    if not 0 < fraction < 1:
        raise ValueError(f"{name}: test_fraction must lie in (0, 1); got {fraction}")
    test = np.zeros(len(users), bool)
    order = np.argsort(users, kind="stable")
    for rows in np.split(order, np.cumsum(np.bincount(users))[:-1]):
        test[rng.choice(rows, int(fraction * len(rows)), replace=False)] = True
    if not test.any():
        raise ValueError(f"{name}: test_fraction={fraction} holds out no sample of any client; use a larger one")
    return test
