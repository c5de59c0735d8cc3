"""`Dataset`: a pooled dataset, not yet split over clients."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import jax
import numpy as np

from jaxafl.data.federated import FederatedData, kind_of_target
from jaxafl.data.form import client_arrays, gather_stored, kind_of_sample, stored_rows
from jaxafl.data.partition.base import Partition
from jaxafl.data.preprocessing import Preprocessing
from jaxafl.data.targets import as_samples, as_targets, check_range, numbered, quantile_bins, require_classes
from jaxafl.options import Summarised, UserError, as_array, check_choice, check_whole, kept
from jaxafl.options.user_code import no_host_draws

Source: TypeAlias = dict[str, str | int | float]
"""Origin of samples, for the description of a dataset."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Dataset(Summarised):
    """Pooled training set and its test set.

    Attributes:
        name: name of the dataset.
        x: raw training inputs `[n, ...]` (images NHWC, uint8 kept as uint8, floats stored as in `from_arrays`), or a
            pytree of such arrays. Arrays are copied unless they are read-only (`x.flags.writeable = False`).
        y: training targets: classes, int `[n]` in `[0, num_classes)`; several labels per sample, int `[n, L]`, where
            negative ones are padding; or floats `[n, ...]`. Kept as int32 or as float32 (see `from_arrays`).
        x_test: raw test inputs `[n_test, ...]`.
        y_test: test targets `[n_test, ...]`, of the same kind.
        num_classes: number of classes; `None` means one more than the largest label, and stays `None` for floats.
        preprocessing: transformation of raw samples inside the training step.
        users: optional, natural client of each training sample (a writer, a speaker), for `by_user`: integers `[n]`, or
            strings, which `numpy.unique` numbers in sorted order.
        user_names: optional str `[U]`, the name of user u at index u; by default names are the numbers.
        source: origin of the samples, for the `description` of the federated dataset.
        references: citations for a run on this data, see `FederatedData`.

    Raises:
        ValueError: lengths differ, a set is empty, a label lies outside `[0, num_classes)`, a sample or target is not
            finite or too large for the form in which it is stored, or training and test set differ in shape or dtype.
        TypeError: samples or targets are not numbers, floats have `num_classes`, or `num_classes` is not a whole
            number.
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
        found: dict[str, Any] = {"users": self.users, "user_names": self.user_names}
        halves = (("training", "", self.x), ("test", "_test", self.x_test))
        for (part, end, samples), targets in zip(halves, numbered(self.y, self.y_test), strict=True):
            owner = f"{self.name}, {part} set"
            x, y = as_samples(owner, samples), as_targets(owner, targets)
            lengths = [len(leaf) for leaf in jax.tree.leaves(x)]
            if {*lengths} != {len(y)} or len(y) == 0:
                raise UserError(f"{owner}: x has {lengths} samples and y {len(y)}; expected as many, and at least one")
            found |= {f"x{end}": x, f"y{end}": y}
        y, y_test, classes = found["y"], found["y_test"], self.num_classes
        if classes is None and y.dtype.kind == y_test.dtype.kind == "i":
            classes = int(max(y.max(), y_test.max(), 0)) + 1
        if classes is not None:
            found["num_classes"] = classes = check_whole(self.name, "num_classes", classes)
            check_range(f"{self.name}, training set", y, classes)
            check_range(f"{self.name}, test set", y_test, classes)
        for one in ("x", "y"):
            kinds = [kind_of_sample(found[name]) for name in (one, f"{one}_test")]
            if kinds[0] != kinds[1]:
                raise UserError(f"{self.name}: {one} is {kinds[0]} and {one}_test {kinds[1]}; expected one form")
        if self.users is not None:
            users = as_array(self.name, "users", self.users)
            if users.dtype.kind not in "iu":
                found["user_names"], users = np.unique(users, return_inverse=True)
            if users.shape != y.shape[:1]:
                raise UserError(f"{self.name}: users has shape {users.shape}; expected {y.shape[:1]}, one per sample")
            found["users"] = users
        for name, value in found.items():  # arrays of readers are nobody else's
            object.__setattr__(self, name, value if self.source else jax.tree.map(kept, value))

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
            TypeError: `seed` is not a whole number, or the partition gives no lists of integers.
        """
        seed = check_whole(self.name, "seed", seed, least=0, most=None)
        check_choice(self.name, "test", test, ("shared", "per_client"))
        labels = self.y if quantiles is None else quantile_bins(self.name, self.y, quantiles)
        with no_host_draws(f"{self.name}: {partitioner}", "or the `rng` of `split`"):
            clients = partitioner.split(labels, self.users, np.random.default_rng(seed))
        arrays, counts = client_arrays(self.x, self.y, [*clients])
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
        index = stored_rows(data.arrays, data.counts)
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
        if self.users is None or not counts.all():
            return None
        users = self.users[arrays["index"]]
        first = users[arrays["offset"]]
        if len(np.unique(first)) < len(first) or (users != np.repeat(first, counts)).any():
            return None
        return first if self.user_names is None else np.asarray(self.user_names, np.str_)[first]
