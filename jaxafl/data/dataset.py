"""`Dataset`: a pooled dataset, not yet split over clients."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.data.federated import FederatedData, kind_of_sample, kind_of_target
from jaxafl.data.identities import check_ids
from jaxafl.data.partition.base import Partition
from jaxafl.data.preprocessing import Preprocessing, check_scale
from jaxafl.data.stored import client_arrays, gather_stored, rows_of_clients
from jaxafl.data.targets import as_targets, check_range, quantile_bins, require_classes
from jaxafl.device.user_code import host_draws
from jaxafl.options import Summarised, UserError, as_array, check_choice, check_whole, kept

_ROWS = 65_536  # samples checked per block, which bounds the memory of the check
_MOST = 2**31 - 1


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Dataset(Summarised):
    """Pooled training set and its test set.

    Attributes:
        name: name of the dataset.
        x: raw training inputs `[n, ...]` (images NHWC, uint8 kept as uint8), or a pytree of such arrays. Arrays are
            copied unless they are read-only (`x.flags.writeable = False`).
        y: training targets: classes, int `[n]` in `[0, num_classes)`; several labels per sample, int `[n, L]`, where
            negative ones are padding; or floats `[n, ...]`. Kept as int32 or as float32 (see `from_arrays`).
        x_test: raw test inputs `[n_test, ...]`.
        y_test: test targets `[n_test, ...]`, of the same kind.
        num_classes: number of classes; `None` means one more than the largest label, and stays `None` for floats.
        preprocessing: transformation of raw samples inside the training step.
        users: optional, natural client of each training sample (a writer, a speaker), for `by_user`: integers `[n]`, or
            strings, which are numbered in sorted order.
        user_names: optional str `[U]`, the name of user u at index u; by default names are the numbers.
        source: origin of the samples, for the `description` of the federated dataset.
        references: citations for a run on this data, see `FederatedData`.

    Raises:
        ValueError: lengths differ, a set is empty, a label lies outside `[0, num_classes)`, a sample or target is not
            finite, training and test set differ in shape or dtype, or floats in [-1, 1] would be divided by 255.
        TypeError: targets are not numbers, floats have `num_classes`, users are neither integers nor strings, or
            `num_classes` is not a whole number.
    """

    name: str
    x: Any
    y: np.ndarray
    x_test: Any
    y_test: np.ndarray
    num_classes: int | None
    preprocessing: Preprocessing
    users: np.ndarray | None = None
    source: Mapping[str, str | int | float] = dataclasses.field(default_factory=dict)
    references: tuple[str, ...] = ()
    user_names: np.ndarray | None = None

    def __post_init__(self) -> None:
        for part, samples in (("x", self.x), ("x_test", self.x_test)):
            object.__setattr__(self, part, _arrays(self.name, part, samples))
        y, y_test = as_targets(self.name, "training", self.y), as_targets(self.name, "test", self.y_test)
        _check_lengths(self.name, "training", self.x, y)
        _check_lengths(self.name, "test", self.x_test, y_test)
        classes = self.num_classes
        if classes is not None:
            classes = check_whole(self.name, "num_classes", classes)
        elif y.dtype.kind == y_test.dtype.kind == "i":
            classes = int(max(y.max(), y_test.max(), 0)) + 1
        for name, value in (("y", y), ("y_test", y_test), ("num_classes", classes)):
            object.__setattr__(self, name, value)
        if classes is not None:
            check_range(self.name, "training", y, classes)
            check_range(self.name, "test", y_test, classes)
        for part, samples in (("training", self.x), ("test", self.x_test)):
            _check_values(self.name, part, samples)
            check_scale(self.name, part, samples, self.preprocessing)
        for what, sets in (("samples", (self.x, self.x_test)), ("targets", (self.y, self.y_test))):
            kinds = [kind_of_sample(one) for one in sets]
            if kinds[0] != kinds[1]:
                raise ValueError(
                    f"{self.name}: training {what} are {kinds[0]} and test {what} {kinds[1]}; they need one shape and "
                    "one dtype"
                )
        if self.users is not None:
            users = as_array(self.name, "users", self.users)
            if users.dtype.kind not in "iu":
                users, names = check_ids(self.name, self.users, "users")
                object.__setattr__(self, "user_names", names)
            if users.shape != self.y.shape[:1]:
                raise ValueError(f"{self.name}: users has shape {users.shape} for {len(self.y)} training samples")
            object.__setattr__(self, "users", users)
        if not self.source:  # a user's arrays; those that the readers return are nobody else's
            for name in ("x", "y", "x_test", "y_test", "users"):
                object.__setattr__(self, name, jax.tree.map(kept, getattr(self, name)))
        if self.user_names is not None and (self.users is None or self.users.max() >= len(self.user_names)):
            most = "no users" if self.users is None else f"users up to {self.users.max()}"
            raise UserError(f"{self.name}: there are {len(self.user_names)} user_names for {most}")

    def summary(self) -> dict[str, Any]:
        """Returns sizes, preprocessing and source by name."""
        sizes = {"samples": len(self.y), "test_samples": len(self.y_test), **kind_of_target(self.y, self.num_classes)}
        users = {} if self.users is None else {"users": len(np.unique(self.users))}
        kind = {"sample": kind_of_sample(self.x), "preprocessing": self.preprocessing.description}
        return {"name": self.name, **sizes, **users, **kind, **self.source}

    def partition(
        self,
        partitioner: Partition,
        *,
        seed: int = 0,
        test: Literal["shared", "per_client"] = "shared",
        quantiles: int | None = None,
    ) -> FederatedData:
        """Splits the training samples over clients.

        Args:
            partitioner: for example `iid(10)`, `dirichlet(0.3, clients=50)` or `by_user()`; see `Partition` to write
                another.
            seed: seed of the split. Equal datasets, partitions and seeds give equal clients.
            test: owners of test samples. `"shared"`: none. `"per_client"`: each test sample of a class belongs to a
                client drawn with the client's share of the training samples of this class. So clients are tested on
                their own mix of classes; the test set as a whole stays the same.
            quantiles: Q, at least 2; the partition takes the quantile of each target, 0..Q-1, for its class. For
                targets `[n]` of a regression.

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
        labels = self.y if quantiles is None else quantile_bins(self.name, self.y, quantiles)
        with host_draws(partitioner) as drawn:
            clients = partitioner.split(labels, self.users, np.random.default_rng(seed))
        about = f"the partition {getattr(partitioner, 'name', type(partitioner).__name__)}"
        if drawn:
            raise UserError(f"{about} draws from {drawn[0]}, which `seed` does not set. Draw by the `rng` of `split`")
        clients = rows_of_clients(about, clients)
        arrays, counts = client_arrays(self.x, self.y, clients)
        if empty := int(np.sum(counts == 0)):
            remedy = getattr(partitioner, "remedy", functools.partial(Partition.remedy, partitioner))
            raise UserError(
                f"{self.name}: {empty} of {len(counts)} clients have no training sample. "
                f"{remedy(labels, np.random.default_rng(seed))}."
            )
        said = {"dataset": self.name, **self.source, "preprocessing": self.preprocessing.description}
        split = {**partitioner.description, "partition_seed": seed}
        if quantiles is not None:
            split["partition_quantiles"] = int(quantiles)
        data = FederatedData(
            self.name,
            self.num_classes,
            counts,
            arrays,
            self.x_test,
            self.y_test,
            self.preprocessing,
            gather_stored,
            {**said, **split},
            self.references,
            client_names=self._names(arrays, counts),
        )
        return data if test == "shared" else self._tested(data, labels, quantiles, seed)

    def _tested(self, data: FederatedData, labels: np.ndarray, quantiles: int | None, seed: int) -> FederatedData:
        """Returns the data with an owner of each test sample, drawn by the clients' shares of its class."""
        require_classes(self.name, labels)
        tested = self.y_test if quantiles is None else quantile_bins(self.name, self.y, quantiles, self.y_test)
        rng = np.random.default_rng([seed, 1])
        owner = np.full(len(self.y_test), -1, np.int32)
        index = data.arrays["index"]
        if len(index) < data.counts.sum():  # all clients share the rows
            index = np.tile(index, data.num_clients)
        clients = np.repeat(np.arange(data.num_clients), data.counts)
        for label in np.unique(tested):
            holders, samples = clients[labels[index] == label], tested == label
            if len(holders):  # a class that no client has is tested by none
                owner[samples] = rng.choice(holders, samples.sum())
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


def _arrays(name: str, part: str, x: Any) -> Any:
    """Returns samples, an array or a pytree of arrays, as NumPy arrays; raises as `numeric` does."""
    if not all(np.ndim(leaf) for leaf in jax.tree.leaves(x)):
        x = as_array(name, part, x)  # nested lists of numbers, which JAX takes for a pytree
    arrays = jax.tree.map(lambda leaf: numeric(name, part, leaf), x)
    same = all(one is other for one, other in zip(jax.tree.leaves(arrays), jax.tree.leaves(x), strict=True))
    return x if same else arrays  # JAX would sort the keys of a dict


def numeric(name: str, argument: str, samples: Any) -> np.ndarray:
    """Returns samples as an array [n, ...]; raises `TypeError` unless it holds numbers."""
    array = as_array(name, argument, samples)
    if array.ndim == 0 or array.dtype.kind not in "fiub":
        mixed = ". A table with columns of several types is x.astype(float)" if hasattr(samples, "columns") else ""
        raise TypeError(
            f"{name}: {argument} must be a numeric array [n, ...]; got shape {array.shape}, {array.dtype}{mixed}"
        )
    return array


def _check_lengths(name: str, part: str, x: Any, y: np.ndarray) -> None:
    lengths = {len(leaf) for leaf in jax.tree.leaves(x)}
    if lengths != {len(y)}:
        raise ValueError(f"{name}: {part} labels have shape {y.shape} for inputs of length {sorted(lengths)}")
    if len(y) == 0:
        raise ValueError(f"{name}: the {part} set is empty")


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
            stored = jnp.result_type(float) if leaf.dtype.itemsize >= 8 else leaf.dtype
            for begin in range(0, len(leaf), _ROWS):
                block = leaf[begin : begin + _ROWS].reshape(len(leaf[begin : begin + _ROWS]), -1)
                finite = (np.abs(block) <= np.finfo(stored).max).all(1)
                if not finite.all():
                    raise UserError(
                        f"{name}: {part} sample {begin + int(np.argmin(finite))} is NaN or infinite, or too large for "
                        f"{stored}; remove, replace or scale such samples first"
                    )
