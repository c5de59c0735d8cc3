"""Data from json files in the shape of LEAF."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np

from jaxafl.data.dataset import Source
from jaxafl.data.federated import FederatedData
from jaxafl.data.preprocessing import Preprocessing
from jaxafl.data.sources.arrays import from_arrays
from jaxafl.options import as_path, named
from jaxafl.readers.directory import missing_dataset
from jaxafl.readers.leaf import Convert, Pair, leaf_halves, pooled, read_halves


@named
def from_leaf(
    folder: str | os.PathLike[str],
    *,
    convert: Convert | None = None,
    num_classes: int | None = None,
    preprocessing: Preprocessing | None = None,
    name: str | None = None,
) -> FederatedData:
    """Reads json files in the shape of LEAF: one client per user, with LEAF's split into training and test samples.

    A file is `{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}`. Files are read
    one at a time. `num_samples` is ignored, because LEAF does not update it when it removes samples.

    Args:
        folder: folder of `train/*.json` and `test/*.json`, or of files with `train` and `test` in their names; gzipped
            as `*.json.gz` or not.
        convert: converts the lists `x` and `y` of one user to arrays `[n, ...]` and `[n]`; raises `ValueError` if it
            cannot. By default both are arrays of numbers. If all `y` are whole numbers (also 3.0), they are classes.
        num_classes, preprocessing: see `from_arrays`.
        name: name of the dataset; by default the name of the folder.

    Returns:
        The federated data: users with training samples, in sorted order, with their names. Test samples belong to
        their users, or to no client if LEAF held out entire users (`split` in the description is "user").

    Raises:
        FileNotFoundError: the folder has no json file, or those of one half only.
        ValueError: a file is damaged, samples have several shapes, or only some test users have training samples.

    References:
        Caldas et al., "LEAF: A Benchmark for Federated Settings", arXiv:1812.01097, 2018.
    """
    place = as_path(folder)
    name = name or place.resolve().name
    train, test = leaf_halves(name, place)
    if not train:
        ways = [f"Put json files in the shape of LEAF into {place / 'train'} and {place / 'test'}."]
        raise missing_dataset(name, [place, place / "train", place / "test"], ways)
    *halves, split = read_halves(name, train, test, convert or _numbers)
    (x, y, users), (x_test, y_test, owners) = map(pooled, halves)
    if convert is None and all((one == np.round(one)).all() for one in (y, y_test)):
        y, y_test = y.astype(int), y_test.astype(int)
    options: Any = {"num_classes": num_classes, "preprocessing": preprocessing, "name": name}
    known = owners if split == "sample" else None
    data = from_arrays(x, y, users, x_test=x_test, y_test=y_test, test_client_ids=known, **options)
    source: Source = {"source": "LEAF json", "files": len(train) + len(test), "split": split}
    return dataclasses.replace(data, description={**data.description, **source})


def _numbers(x: list[Any], y: list[Any]) -> Pair:
    samples, labels = np.array(x), np.array(y)
    if samples.dtype.kind not in "fiu" or labels.dtype.kind not in "fiu":
        raise ValueError("expected numbers; convert=... makes arrays of other samples")
    return samples, labels
