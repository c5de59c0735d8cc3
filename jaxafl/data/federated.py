"""`FederatedData`: samples split over clients, the data of a simulation."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxafl.data.form import DataForm, Gather, gather_stored, kind_of_sample, stored_rows
from jaxafl.data.held_out import HeldOut, Owners, held_out, owners_of, test_sets_of
from jaxafl.data.preprocessing import Preprocessing
from jaxafl.options import Summarised, UserError

if TYPE_CHECKING:
    from jaxafl.data.partition.statistics import PartitionStatistics


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class FederatedData(Summarised):
    """Training samples of N clients and one shared test set.

    Equality and hash are by identity. Compiled programs depend on `form` only; the arrays are their arguments. They
    become read-only, and so do those of the `Dataset` that is split.

    Attributes:
        name: name of the dataset, for example `"mnist"`.
        num_classes: number of classes C; labels are 0..C-1. `None` if targets are floats.
        counts: int64 `[N]`, training samples of each client; every entry is at least 1.
        arrays: pytree of numpy arrays that `fetch` reads; moved to the device once.
        x_test: raw test inputs `[n_test, ...]` (uint8 stays uint8), or a pytree of such arrays.
        y_test: test targets `[n_test, ...]`, int32 labels or floats.
        preprocessing: augmentation, cast and normalisation of raw samples.
        gather: traced function `(arrays, client, positions) -> (raw x [B, ...], y [B])`.
        description: source and partition with options and seeds, for result files.
        references: citations for a run on this data: keys of `jaxafl.references.BIBTEX`, or BibTeX entries.
        test_clients: int32 `[n_test]`, the client of each test sample, -1 for none; `None` if no test sample has one.
        validation: samples held out by `with_validation`.
        client_names: str `[N]`, distinct names of the clients (users, hospitals); `None` if they have none.
        test_sets: name -> (x, y) of all test sets, `x_test` first, if `with_test_sets` added others.
    """

    name: str
    num_classes: int | None
    counts: np.ndarray
    arrays: Any
    x_test: Any
    y_test: np.ndarray
    preprocessing: Preprocessing
    gather: Gather
    description: Mapping[str, str | int | float]
    references: tuple[str, ...] = ()
    test_clients: np.ndarray | None = None
    validation: HeldOut | None = None
    client_names: np.ndarray | None = None
    test_sets: Mapping[str, tuple[Any, np.ndarray]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = np.asarray(self.counts)
        if not len(counts) or counts.min() < 1:
            raise UserError(
                f"{self.name}: {np.sum(counts < 1)} of {len(counts)} clients have no training sample; expected one. "
                "Use fewer clients, a larger alpha, dirichlet(..., min_size=1), or dirichlet_equal"
            )
        lengths = {len(leaf) for leaf in jax.tree.leaves(self.x_test)}
        if lengths != {len(self.y_test)} or lengths == {0}:
            raise UserError(
                f"{self.name}: x_test has {sorted(lengths)} samples; expected {len(self.y_test)} as y_test, above 0"
            )
        if self.client_names is not None:
            names = np.asarray([str(name) for name in np.ravel(self.client_names).tolist()])  # as narrow as in a file
            if len(np.unique(names)) != len(counts) or names.shape != counts.shape:
                raise UserError(f"{self.name}: client_names are {names}; expected {len(counts)} different names")
            object.__setattr__(self, "client_names", names)
        held = self.counts, self.arrays, self.x_test, self.y_test, self.test_clients, self.validation
        for leaf in jax.tree.leaves((*held, list(self.test_sets.values()))):
            if isinstance(leaf, np.ndarray):
                leaf.flags.writeable = False  # a change would not reach the copies on the device

    @property
    def num_clients(self) -> int:
        """Number of clients N."""
        return len(self.counts)

    @property
    def example(self) -> tuple[Any, np.ndarray]:
        """A preprocessed sample `(x [1, ...], y [1, ...])` as numpy arrays, for shape inference."""
        x, y = jax.tree.map(lambda leaf: leaf[:1], self.test_arrays())
        return jax.device_get(self.preprocess(x)), y

    @functools.cached_property
    def form(self) -> DataForm:
        """Gathering, preprocessing and shapes of the samples."""
        leaves, structure = jax.tree.flatten(jax.tree.map(lambda leaf: leaf[:1], self.test_arrays()))
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        return DataForm(self.gather, self.preprocessing, structure, shapes)

    def summary(self) -> dict[str, Any]:
        """Returns the numbers of clients, samples and classes, and the description, by name."""
        sizes = {"samples": int(self.counts.sum()), "test_samples": len(self.y_test)}
        kind = {**kind_of_target(self.y_test, self.num_classes), "sample": kind_of_sample(self.x_test)}
        return {"name": self.name, "clients": self.num_clients, **sizes, **kind, **self.description}

    def fetch(
        self, arrays: Any, client: jax.Array | int, positions: jax.Array, keys: jax.Array
    ) -> tuple[Any, jax.Array]:
        """Returns preprocessed training samples of one client; traceable under `jit` and `vmap`.

        Args:
            arrays: `self.arrays`, usually already on the device.
            client: int32 scalar in `[0, N)`.
            positions: int32 `[B]`, each in `[0, counts[client])`.
            keys: PRNG keys `[B]`, one per sample; unused without augmentation.

        Returns:
            `(x [B, ...], y [B, ...])`: the input of the model (float32 unless the samples are tokens), and the targets.
        """
        return self.form.fetch(arrays, client, positions, keys)

    def preprocess(self, x: Any) -> Any:
        """Casts and normalises a raw batch as `fetch` does, without augmentation; traceable."""
        return self.preprocessing.transform(x)

    def test_arrays(self) -> tuple[Any, np.ndarray]:
        """Returns raw test inputs (uint8 stays uint8) and targets."""
        return self.x_test, self.y_test

    def rows(self) -> list[np.ndarray]:
        """Returns for every client the rows of its training samples in the `Dataset` that was split, int `[n_i]` each.

        Raises:
            ValueError: the samples are generated, and have no rows.
        """
        arrays, counts = self.arrays, np.asarray(self.counts)
        if self.gather is gather_stored:
            found = stored_rows(arrays, counts)
        elif getattr(self.gather, "gather", None) is gather_stored:  # after `with_validation`
            first = np.repeat(arrays["all"]["offset"], counts)
            found = arrays["all"]["index"][first + arrays["position"]]
        else:
            raise UserError(f"{self.name}: the samples are generated; expected samples of a Dataset that was split")
        return np.split(found, np.cumsum(counts)[:-1])

    def owned_test(self, clients: np.ndarray | None) -> FederatedData:
        """Returns a copy with the client of each test sample, int `[n_test]`, -1 for none."""
        unowned = clients is None or (clients < 0).all()
        return dataclasses.replace(self, test_clients=None if unowned else clients)

    def with_validation(self, share: float, seed: int = 0) -> FederatedData:
        """Returns a copy with ⌊share · n_i⌋ training samples of every client held out, drawn at random.

        Each client keeps at least one sample, and clients that hold the same samples hold out the same ones.
        Evaluations then also report `validation_loss` and every metric of the model with this prefix, such as
        `validation_accuracy` or `validation_rmse`.

        Args:
            share: share of the samples, in (0, 1).
            seed: seed of the draw.

        Raises:
            ValueError: no client would hold out a sample, or the data has a validation set already.
        """
        if self.validation is not None:
            raise UserError(f"{self.name}: the data has a validation set already")
        fields = held_out(self.name, self.counts, self.gather, self.arrays, share, seed)
        description = {**self.description, "validation_share": float(share), "validation_seed": int(seed)}
        return dataclasses.replace(self, **fields, description=description)

    def with_test_sets(self, sets: Mapping[str, tuple[Any, Any]], first: str = "test") -> FederatedData:
        """Returns a copy with further test sets, name -> (x, y). Evaluations report `test_accuracy` ... of each.

        The present test set still gives `accuracy`; it is called `first`, unless it has a name already. Raises
        `ValueError` for other shapes, and for a name that is used twice.
        """
        known = self.test_sets or {first: self.test_arrays()}
        found = test_sets_of(self.name, known, sets, self.num_classes)
        described = {**self.description, "test_sets": ", ".join(found)}
        return dataclasses.replace(self, test_sets=found, description=described)

    @functools.cached_property
    def owners(self) -> Owners:
        """Owners of the samples for evaluations per client: of the test set if known, else of the validation set.

        Raises:
            ValueError: test samples have no owners, and there is no validation set.
        """
        if self.test_clients is not None:
            return owners_of(np.asarray(self.test_clients), self.num_clients, True)
        if self.validation is None:
            raise UserError(
                f"{self.name}: no client has held-out samples; expected some. Use data.with_validation(0.2) or "
                "partition(..., test='per_client')"
            )
        return owners_of(self.validation.client, self.num_clients, False)

    def statistics(self, quantiles: int | None = None) -> PartitionStatistics:
        """Computes samples per client, label histograms and heterogeneity from every training label.

        Generated data is evaluated sample by sample: 10^5 clients of `synthetic(lazy=True)` take some minutes.

        Args:
            quantiles: Q, at least 2; counts the quantiles of targets `[n]`, 0..Q-1, in the place of classes.

        Raises:
            ValueError: samples do not have one class each, and `quantiles` is not given or impossible.
        """
        from jaxafl.data.partition.statistics import statistics_of

        return statistics_of(self, quantiles)


def kind_of_target(y: np.ndarray, num_classes: int | None) -> dict[str, Any]:
    """Returns the number of classes, or dtype and shape of the targets of one sample if they are not a class."""
    kind = {} if num_classes is None else {"classes": num_classes}
    return kind if y.ndim == 1 and kind else {**kind, "target": kind_of_sample(y)}
