"""`Dataset`: a pooled dataset, not yet split over clients."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Literal

import jax
import numpy as np
from numpy.typing import ArrayLike

from jaxafl.data.federated import FederatedData, client_arrays, gather_stored, kind_of_sample
from jaxafl.data.identities import check_ids
from jaxafl.data.partition.base import Partition
from jaxafl.data.preprocessing import Preprocessing, check_scale
from jaxafl.options import Summarised, UserError, as_array, check_choice, check_whole

_ROWS = 65_536  # samples checked per block, which bounds the memory of the check
_MOST = 2**31 - 1


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Dataset(Summarised):
    """Pooled training set and its test set.

    Attributes:
        name: name of the dataset.
        x: raw training inputs `[n, ...]` (images NHWC, uint8 kept as uint8), or a pytree of such arrays.
        y: int `[n]`, training labels in `[0, num_classes)`; kept as int32.
        x_test: raw test inputs `[n_test, ...]`.
        y_test: int `[n_test]`, test labels; kept as int32.
        num_classes: number of classes.
        preprocessing: transformation of raw samples inside the training step.
        users: optional, natural client of each training sample (a writer, a speaker), for `by_user`: integers `[n]`, or
            strings, which are numbered in sorted order.
        user_names: optional str `[U]`, the name of user u at index u; by default names are the numbers.
        source: origin of the samples, for the `description` of the federated dataset.
        references: citations for a run on this data, see `FederatedData`.

    Raises:
        ValueError: lengths differ, a set is empty, a label lies outside `[0, num_classes)`, a sample is not finite,
            training and test samples differ in shape or dtype, or floats in [-1, 1] would be divided by 255.
        TypeError: labels are not integers, users are neither integers nor strings, or `num_classes` is not a whole
            number.
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
    user_names: np.ndarray | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_classes", check_whole(self.name, "num_classes", self.num_classes))
        object.__setattr__(self, "y", _labels(self.name, "training", self.x, self.y, self.num_classes))
        object.__setattr__(self, "y_test", _labels(self.name, "test", self.x_test, self.y_test, self.num_classes))
        for part, samples in (("training", self.x), ("test", self.x_test)):
            _check_values(self.name, part, samples)
            check_scale(self.name, part, samples, self.preprocessing)
        kinds = [kind_of_sample(samples) for samples in (self.x, self.x_test)]
        if kinds[0] != kinds[1]:
            raise ValueError(
                f"{self.name}: training samples are {kinds[0]} and test samples {kinds[1]}; they need one shape and "
                "one dtype"
            )
        if self.users is not None:
            users = as_array(self.name, "users", self.users)
            if users.dtype.kind not in "iu":
                users, names = check_ids(self.name, self.users, "users")
                object.__setattr__(self, "user_names", names)
            if users.shape != self.y.shape:
                raise ValueError(f"{self.name}: users has shape {users.shape} for {len(self.y)} training samples")
            object.__setattr__(self, "users", users)
        if self.user_names is not None and (self.users is None or self.users.max() >= len(self.user_names)):
            most = "no users" if self.users is None else f"users up to {self.users.max()}"
            raise UserError(f"{self.name}: there are {len(self.user_names)} user_names for {most}")

    def summary(self) -> dict[str, Any]:
        """Returns sizes, preprocessing and source by name."""
        sizes = {"samples": len(self.y), "test_samples": len(self.y_test), "classes": self.num_classes}
        users = {} if self.users is None else {"users": len(np.unique(self.users))}
        kind = {"sample": kind_of_sample(self.x), "preprocessing": self.preprocessing.description}
        return {"name": self.name, **sizes, **users, **kind, **self.source}

    def partition(
        self, partitioner: Partition, *, seed: int = 0, test: Literal["shared", "per_client"] = "shared"
    ) -> FederatedData:
        """Splits the training samples over clients.

        Args:
            partitioner: for example `iid(10)`, `dirichlet(0.3, clients=50)` or `by_user()`; see `Partition` to write
                another.
            seed: seed of the split. Equal datasets, partitions and seeds give equal clients.
            test: owners of test samples. `"shared"`: none. `"per_client"`: each test sample of a class belongs to a
                client drawn with the client's share of the training samples of this class. So clients are tested on
                their own mix of classes; the test set as a whole stays the same.

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
        check_choice(self.name, "test", test, ("shared", "per_client"))
        clients = partitioner.split(self.y, self.users, np.random.default_rng(seed))
        arrays, counts = client_arrays(self.x, self.y, clients)
        if empty := int(np.sum(counts == 0)):
            remedy = getattr(partitioner, "remedy", functools.partial(Partition.remedy, partitioner))
            raise UserError(
                f"{self.name}: {empty} of {len(counts)} clients have no training sample. "
                f"{remedy(self.y, np.random.default_rng(seed))}."
            )
        said = {"dataset": self.name, **self.source, "preprocessing": self.preprocessing.description}
        data = FederatedData(
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
            client_names=self._names(arrays, counts),
        )
        return data if test == "shared" else self._tested(data, arrays, seed)

    def _tested(self, data: FederatedData, arrays: Mapping[str, Any], seed: int) -> FederatedData:
        """Returns the data with an owner of each test sample, drawn by the clients' shares of its class."""
        rng = np.random.default_rng([seed, 1])
        owner = np.full(len(self.y_test), -1, np.int32)
        index = arrays["index"]
        if len(index) < data.counts.sum():  # all clients share the rows
            index = np.tile(index, data.num_clients)
        clients = np.repeat(np.arange(data.num_clients), data.counts)
        for label in np.unique(self.y_test):
            holders, tested = clients[self.y[index] == label], self.y_test == label
            if len(holders):  # a class that no client has is tested by none
                owner[tested] = rng.choice(holders, tested.sum())
        return dataclasses.replace(
            data.owned_test(owner), description={**data.description, "partition_test": "per_client"}
        )

    def _names(self, arrays: Mapping[str, Any], counts: np.ndarray) -> np.ndarray | None:
        """Returns the names of the clients, str [N], or `None` unless clients and users correspond one to one."""
        if self.users is None or not counts.all() or len(np.unique(arrays["offset"])) < len(counts):
            return None
        users = self.users[arrays["index"][arrays["offset"]]]
        if (self.users[arrays["index"]] != np.repeat(users, counts)).any() or len(np.unique(users)) < len(users):
            return None
        return users.astype(np.str_) if self.user_names is None else np.asarray(self.user_names, np.str_)[users]


def integer_labels(name: str, part: str, y: ArrayLike | None) -> np.ndarray:
    """Returns labels as an array; raises `TypeError` unless they are integers, `ValueError` if a sample has several."""
    labels = as_array(name, f"{part} labels", y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        raise UserError(f"{name}: {part} labels have shape {labels.shape}; write y[:, 0]")
    if labels.ndim == 2:
        raise UserError(
            f"{name}: {part} labels need one class per sample, got shape {labels.shape}. If rows are one-hot, write "
            "y.argmax(1); several classes of a sample go with the samples, x={'x': x, 'target': y}"
        )
    if np.issubdtype(labels.dtype, np.integer):
        return labels
    said = f"{name}: {part} labels must be integer classes; got dtype {labels.dtype}"
    if labels.dtype.kind == "b":
        raise TypeError(f"{said}. Write y.astype(int)")
    if labels.dtype.kind != "f":
        raise TypeError(f"{said}. numpy.unique(y, return_inverse=True)[1] numbers any labels")
    if labels.size and (labels == np.round(labels)).all():
        raise TypeError(f"{said}. If these are the numbers of classes, write y.astype(int)")
    raise TypeError(
        f"{said}. Targets of a regression go with the samples, x={{'x': x, 'target': y}} and "
        "y=numpy.zeros(len(y), int), where the model's loss reads them: batch.x['target']"
    )


def _labels(name: str, part: str, x: Any, y: ArrayLike, num_classes: int) -> np.ndarray:
    labels = integer_labels(name, part, y)
    lengths = {len(leaf) for leaf in jax.tree.leaves(x)}
    if labels.ndim != 1 or lengths != {len(labels)}:
        raise ValueError(f"{name}: {part} labels have shape {labels.shape} for inputs of length {sorted(lengths)}")
    if len(labels) == 0:
        raise ValueError(f"{name}: the {part} set is empty")
    if labels.min() < 0 or labels.max() >= num_classes:
        negative = ""
        if labels.min() < 0:
            negative = (
                "; leave out samples without a label (-1, as in test sets that are published without), and number "
                "other classes by numpy.unique(y, return_inverse=True)[1]"
            )
        raise ValueError(
            f"{name}: {part} labels run from {labels.min()} to {labels.max()}, outside 0..{num_classes - 1} "
            f"(num_classes={num_classes}){negative}"
        )
    return labels.astype(np.int32)


def _check_values(name: str, part: str, x: Any) -> None:
    """Raises `ValueError` if a sample is NaN or infinite, or an integer outside int32."""
    for leaf in map(np.asarray, jax.tree.leaves(x)):
        if leaf.dtype.kind in "iu" and np.iinfo(leaf.dtype).max > _MOST and leaf.size:
            beyond = next((int(one) for one in (leaf.max(), leaf.min()) if not -_MOST <= one <= _MOST), None)
            if beyond is not None:
                raise UserError(
                    f"{name}: {part} samples hold {beyond:,}, and integers are int32, up to {_MOST:,}; number tokens "
                    "by numpy.unique(x, return_inverse=True)[1], or make quantities floats and scale them"
                )
        if leaf.dtype.kind == "f":
            for begin in range(0, len(leaf), _ROWS):
                finite = np.isfinite(leaf[begin : begin + _ROWS]).reshape(len(leaf[begin : begin + _ROWS]), -1).all(1)
                if not finite.all():
                    raise UserError(
                        f"{name}: {part} sample {begin + int(np.argmin(finite))} is NaN or infinite; remove or replace "
                        "such samples first"
                    )
