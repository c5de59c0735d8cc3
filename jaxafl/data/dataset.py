"""`Dataset`: one pooled dataset, not yet split over clients."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from jaxafl.data.federated import FederatedData, client_arrays, gather_stored, kind_of_sample
from jaxafl.data.partition.base import Partition
from jaxafl.data.preprocessing import Preprocessing
from jaxafl.options import Summarised, as_array, check_whole


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Dataset(Summarised):
    """A pooled training set with its test set.

    Attributes:
        name: name of the dataset.
        x: raw training inputs `[n, ...]` (images NHWC, uint8 kept as uint8), or a pytree of such arrays.
        y: int `[n]`, training labels in `[0, num_classes)`; kept as int32.
        x_test: raw test inputs `[n_test, ...]`.
        y_test: int `[n_test]`, test labels; kept as int32.
        num_classes: number of classes.
        preprocessing: what happens to raw samples inside the training step.
        users: optional int `[n]`, natural client of each training sample (a writer, a speaker), for `by_user`.
        source: where the samples came from, for the `description` of what is built from them.
        references: what a run on this data should cite, see `FederatedData`.

    Raises:
        ValueError: lengths differ, a set is empty, a label lies outside `[0, num_classes)`, or training and test
            samples differ in shape or dtype.
        TypeError: labels or users are not integers, or `num_classes` is not a whole number.
    """

    name: str
    x: Any
    y: np.ndarray
    x_test: Any
    y_test: np.ndarray
    num_classes: int
    preprocessing: Preprocessing
    users: np.ndarray | None = None
    source: Mapping[str, str | int | float] = dataclasses.field(default_factory=dict)
    references: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_classes", check_whole(self.name, "num_classes", self.num_classes))
        object.__setattr__(self, "y", _labels(self.name, "training", self.x, self.y, self.num_classes))
        object.__setattr__(self, "y_test", _labels(self.name, "test", self.x_test, self.y_test, self.num_classes))
        kinds = [kind_of_sample(samples) for samples in (self.x, self.x_test)]
        if kinds[0] != kinds[1]:
            raise ValueError(
                f"{self.name}: training samples are {kinds[0]} and test samples {kinds[1]}; they need one shape and "
                "one dtype"
            )
        if self.users is not None:
            users = as_array(self.name, "users", self.users)
            if not np.issubdtype(users.dtype, np.integer):
                raise TypeError(
                    f"{self.name}: users must be integers, one per training sample; got dtype {users.dtype}"
                )
            if users.shape != self.y.shape:
                raise ValueError(f"{self.name}: users has shape {users.shape} for {len(self.y)} training samples")
            object.__setattr__(self, "users", users)

    def summary(self) -> dict[str, Any]:
        """Samples, classes and where they come from, by name."""
        sizes = {"samples": len(self.y), "test_samples": len(self.y_test), "classes": self.num_classes}
        users = {} if self.users is None else {"users": len(np.unique(self.users))}
        kind = {"sample": kind_of_sample(self.x), "preprocessing": self.preprocessing.description}
        return {"name": self.name, **sizes, **users, **kind, **self.source}

    def partition(self, partitioner: Partition, *, seed: int = 0) -> FederatedData:
        """Split the training samples over clients.

        Args:
            partitioner: for example `iid(10)`, `dirichlet(0.3, clients=50)` or `by_user()`; see `Partition` for one of
                your own.
            seed: seed of the split; the same dataset, partition and seed give the same clients.

        Returns:
            The federated dataset; the pooled arrays are shared, not copied.

        Raises:
            ValueError: the split is impossible or leaves clients without samples (how many, and what to do).
            TypeError: `partitioner` is not a partition, or `seed` not a whole number.
        """
        if not hasattr(partitioner, "split") or isinstance(partitioner, type):
            raise TypeError(
                f"{self.name}: partitioner must be a partitioner, for example jaxafl.data.iid(10); got {partitioner!r}"
            )
        seed = check_whole(self.name, "seed", seed, least=0, most=None)
        clients = partitioner.split(self.y, self.users, np.random.default_rng(seed))
        arrays, counts = client_arrays(self.x, self.y, clients)
        said = {"dataset": self.name, **self.source, "preprocessing": self.preprocessing.description}
        return FederatedData(
            self.name,
            self.num_classes,
            counts,
            arrays,
            self.x_test,
            self.y_test,
            self.preprocessing,
            gather_stored,
            {**said, **partitioner.description, "partition_seed": seed},
            self.references,
        )


def integer_labels(name: str, part: str, y: ArrayLike | None) -> np.ndarray:
    """Labels as an array; `TypeError` unless they are integers."""
    labels = as_array(name, f"{part} labels", y)
    if not np.issubdtype(labels.dtype, np.integer):
        raise TypeError(
            f"{name}: {part} labels must be integer classes; got dtype {labels.dtype}. "
            "numpy.unique(y, return_inverse=True)[1] numbers any labels"
        )
    return labels


def _labels(name: str, part: str, x: Any, y: ArrayLike, num_classes: int) -> np.ndarray:
    labels = integer_labels(name, part, y)
    lengths = {len(leaf) for leaf in jax.tree.leaves(x)}
    if labels.ndim != 1 or lengths != {len(labels)}:
        raise ValueError(f"{name}: {part} labels have shape {labels.shape} for inputs of length {sorted(lengths)}")
    if len(labels) == 0:
        raise ValueError(f"{name}: the {part} set is empty")
    if labels.min() < 0 or labels.max() >= num_classes:
        raise ValueError(
            f"{name}: {part} labels run from {labels.min()} to {labels.max()}, outside 0..{num_classes - 1} "
            f"(num_classes={num_classes})"
        )
    return labels.astype(np.int32)
