"""`FederatedData`: samples split over clients, the data of a simulation."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.data.form import DataForm
from jaxafl.data.held_out import MOST_CLIENTS, HeldOut, Owners, held_out, owners_of
from jaxafl.data.identities import check_names
from jaxafl.data.partition.base import ClientRows
from jaxafl.data.preprocessing import Preprocessing
from jaxafl.data.statistics import BLOCK, Gather, PartitionStatistics, labels_only, traverse
from jaxafl.device.buffers import num_bytes
from jaxafl.options import Summarised, UserError

_MOST_SAMPLES = 10**6  # samples that statistics of many clients generate at most


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class FederatedData(Summarised):
    """Training samples of N clients and one shared test set.

    Equality and hash are by identity. Compiled programs depend on `form` only; the arrays are their arguments.

    Attributes:
        name: name of the dataset, for example `"mnist"`.
        num_classes: number of classes C; labels are 0..C-1.
        counts: int64 `[N]`, training samples of each client; every entry is at least 1.
        arrays: pytree of numpy arrays that `fetch` reads; moved to the device once.
        x_test: raw test inputs `[n_test, ...]` (uint8 stays uint8), or a pytree of such arrays.
        y_test: int32 `[n_test]`, test labels.
        preprocessing: augmentation, cast and normalisation of raw samples.
        gather: traced function `(arrays, client, positions) -> (raw x [B, ...], y [B])`.
        description: source and partition with options and seeds, for result files.
        references: citations for a run on this data: keys of `jaxafl.references.BIBTEX`, or BibTeX entries.
        test_clients: int32 `[n_test]`, the client of each test sample, -1 for none; `None` if no test sample has one.
        validation: samples held out by `with_validation`.
        client_names: str `[N]`, distinct names of the clients (users, hospitals); `None` if they have none.
    """

    name: str
    num_classes: int
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

    def __post_init__(self) -> None:
        if len(self.counts) == 0:
            raise ValueError(f"{self.name}: no clients; a federated dataset needs at least one")
        if empty := int(np.sum(np.asarray(self.counts) < 1)):
            raise ValueError(
                f"{self.name}: {empty} of {len(self.counts)} clients have no training sample; leave these clients out"
            )
        if len(self.y_test) == 0:
            raise ValueError(f"{self.name}: the test set is empty; a simulation needs samples to evaluate on")
        if self.client_names is not None:
            object.__setattr__(self, "client_names", check_names(self.name, self.client_names, len(self.counts)))

    @property
    def num_clients(self) -> int:
        """Number of clients N."""
        return len(self.counts)

    @property
    def example(self) -> tuple[Any, np.ndarray]:
        """A preprocessed sample `(x [1, ...], y [1])` as numpy arrays, for shape inference."""
        x = jax.tree.map(lambda leaf: leaf[:1], self.x_test)
        return jax.device_get(self.preprocess(x)), self.y_test[:1]

    @functools.cached_property
    def form(self) -> DataForm:
        """Gathering, preprocessing and shapes of the samples."""
        leaves, structure = jax.tree.flatten((self.x_test, self.y_test))
        shapes = tuple((np.shape(leaf)[1:], np.dtype(leaf.dtype)) for leaf in leaves)
        return DataForm(self.gather, self.preprocessing, structure, shapes)

    def summary(self) -> dict[str, Any]:
        """Returns the numbers of clients, samples and classes, and the description, by name."""
        sizes = {"samples": int(self.counts.sum()), "test_samples": len(self.y_test)}
        kind = {"classes": self.num_classes, "sample": kind_of_sample(self.x_test)}
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
            `(x [B, ...], y [B])`: the input of the model (float32 unless the samples are tokens), and int32 labels.
        """
        return self.form.fetch(arrays, client, positions, keys)

    def preprocess(self, x: Any) -> Any:
        """Casts and normalises a raw batch as `fetch` does, without augmentation; traceable."""
        return self.preprocessing.transform(x)

    def test_arrays(self) -> tuple[Any, np.ndarray]:
        """Returns raw test inputs (uint8 stays uint8) and labels."""
        return self.x_test, self.y_test

    @property
    def divisible(self) -> bool:
        """True if the arrays can be sharded over devices."""
        return self.gather is gather_stored

    def divided(self, shares: int) -> FederatedData:
        """Returns a copy with arrays `[D, ...]` to be sharded over devices, cached.

        Row d holds the samples of ⌈N/D⌉ clients; `client` counts from the first of the row.

        Args:
            shares: D.
        """
        cache = self.__dict__.setdefault("_divided", {})
        if shares not in cache:
            arrays = divided_arrays(self.arrays, np.asarray(self.counts), shares)
            cache[shares] = dataclasses.replace(self, arrays=arrays, gather=gather_divided)
        return cache[shares]

    def owned_test(self, clients: np.ndarray | None) -> FederatedData:
        """Returns a copy with the client of each test sample, int `[n_test]`, -1 for none."""
        unowned = clients is None or (clients < 0).all()
        return dataclasses.replace(self, test_clients=None if unowned else clients)

    def with_validation(self, share: float, seed: int = 0) -> FederatedData:
        """Returns a copy with ⌊share · n_i⌋ training samples of every client held out, drawn at random.

        Each client keeps at least one sample. Evaluations then also report `validation_accuracy` and
        `validation_loss`.

        Args:
            share: share of the samples, in (0, 1).
            seed: seed of the draw.

        Raises:
            ValueError: no client would hold out a sample, or the data has a validation set already.
        """
        if self.validation is not None:
            raise UserError(f"{self.name}: the data has a validation set already")
        counts, gather, arrays, validation = held_out(self.name, self.counts, self.gather, self.arrays, share, seed)
        description = {**self.description, "validation_share": float(share), "validation_seed": int(seed)}
        return dataclasses.replace(
            self, counts=counts, gather=gather, arrays=arrays, validation=validation, description=description
        )

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
                f"{self.name}: no client has held-out samples of its own to be evaluated on; "
                "data.with_validation(0.2, seed=0) holds some out, "
                "partition(..., test='per_client') divides the test set"
            )
        return owners_of(self.validation.client, self.num_clients, False)

    def statistics(self) -> PartitionStatistics:
        """Computes samples per client, label histograms and heterogeneity from every training label.

        Generated or shared data is evaluated sample by sample. With more than 10,000 clients, the labels of a fixed
        random choice of clients with up to 10^6 samples are counted, and `counted` lists these clients.
        """
        sizes = np.asarray(self.counts)
        counted = None
        stored = num_bytes(self.arrays) >= 4 * int(sizes.sum())
        if self.num_clients > MOST_CLIENTS and not stored:
            order = np.random.default_rng(0).permutation(self.num_clients)[:MOST_CLIENTS]
            counted = np.sort(order[: max(1, int(np.sum(np.cumsum(sizes[order]) <= _MOST_SAMPLES)))])
        stops = sizes if counted is None else np.zeros_like(sizes)
        if counted is not None:
            stops[counted] = sizes[counted]
        histogram = np.zeros((self.num_clients if counted is None else len(counted), self.num_classes), np.int32)
        size = min(BLOCK, 1 << (int(stops.max()) - 1).bit_length()) if stored else BLOCK
        for client, _, y in traverse(labels_only(self.gather), self.arrays, np.zeros_like(stops), stops, size):
            np.add.at(histogram, (client if counted is None else np.searchsorted(counted, client), y), 1)
        return PartitionStatistics(self.name, sizes, histogram, counted, self.client_names)


def kind_of_sample(x: Any) -> str:
    """Returns dtype and shape of one sample in words; `x` is a pytree of arrays `[n, ...]`."""
    kinds = jax.tree.map(lambda leaf: f"{np.asarray(leaf).dtype}{list(np.shape(leaf)[1:])}", x)
    return str(kinds).replace("'", "")


def gather_stored(arrays: Any, client: jax.Array | int, positions: jax.Array) -> tuple[Any, jax.Array]:
    """Gathers raw samples of one client from pooled arrays: sample `index[offset[client] + position]`."""
    rows = jnp.take(arrays["index"], jnp.take(arrays["offset"], client, mode="clip") + positions, mode="clip")
    x = jax.tree.map(lambda leaf: jnp.take(leaf, rows, axis=0, mode="clip"), arrays["x"])
    return x, jnp.take(arrays["y"], rows, mode="clip")


def gather_divided(arrays: Any, client: jax.Array | int, positions: jax.Array) -> tuple[Any, jax.Array]:
    """Gathers raw samples of one client from a device's row of `divided_arrays`."""
    return gather_stored(jax.tree.map(lambda leaf: leaf[0], arrays), client, positions)


def divided_arrays(arrays: Any, counts: np.ndarray, shares: int) -> Any:
    """Splits the arrays of `gather_stored` into D shards of the clients, each leaf `[D, ...]`.

    Args:
        arrays, counts: arrays and counts of all clients.
        shares: D.
    """
    size = -(-len(counts) // shares)
    parts = []
    for begin in range(0, size * shares, size):
        local, offset = counts[begin : begin + size], arrays["offset"][begin : begin + size]
        first = np.cumsum(local) - local
        ranks = np.arange(local.sum()) - np.repeat(first, local)
        rows, index = np.unique(arrays["index"][np.repeat(offset, local) + ranks], return_inverse=True)
        parts.append((rows, index, first))

    def filled(column: int) -> np.ndarray:
        longest = max(1, *(len(part[column]) for part in parts))
        return np.stack([np.pad(part[column], (0, longest - len(part[column]))) for part in parts]).astype(np.int32)

    rows = filled(0)
    x = jax.tree.map(lambda leaf: leaf[rows], arrays["x"])
    return {"x": x, "y": arrays["y"][rows], "index": filled(1), "offset": filled(2)}


def client_arrays(x: Any, y: np.ndarray, clients: Sequence[np.ndarray]) -> tuple[dict[str, Any], np.ndarray]:
    """Builds the arrays that `gather_stored` reads, without copies or padding per client.

    Args:
        x: pooled raw samples `[n, ...]`, or a pytree of such arrays.
        y: int32 `[n]`, labels.
        clients: for each client, the int rows of its samples in x and y.

    Returns:
        `{"x", "y", "index" int32 [sum counts], "offset" int32 [N]}` and `counts` int64 `[N]`.

    Raises:
        ValueError: a row is outside the data, or all clients hold 2^31 samples or more, which int32 cannot address.
        TypeError: rows are not integers.
    """
    listed = clients.counts if isinstance(clients, ClientRows) else [len(rows) for rows in clients]
    counts = np.array(listed, np.int64)
    offset = np.cumsum(counts) - counts
    if not isinstance(clients, ClientRows) and clients and all(rows is clients[0] for rows in clients[1:]):
        index, offset = np.asarray(clients[0]), np.zeros_like(counts)  # a copy per client would take N times as much
    elif counts.sum() >= 2**31:
        raise ValueError(f"the clients hold {counts.sum()} samples together; stored data is limited to {2**31 - 1}")
    else:
        index = clients.flat if isinstance(clients, ClientRows) else np.concatenate([np.zeros(0, np.int32), *clients])
    _check_rows(index, clients, len(y))
    return {"x": x, "y": y, "index": index.astype(np.int32), "offset": offset.astype(np.int32)}, counts


def _check_rows(index: np.ndarray, clients: Sequence[np.ndarray], samples: int) -> None:
    """Raises an error if a partition's rows, all in `index`, are not integers in [0, samples)."""
    if index.dtype.kind in "iu" and (not index.size or (index.min() >= 0 and index.max() < samples)):
        return
    for client, rows in enumerate(map(np.asarray, clients)):
        if rows.size and rows.dtype.kind not in "iu":
            raise TypeError(
                f"a partition gives each client integer rows of its samples; client {client} got {rows.dtype}"
            )
        if rows.size and (rows.min() < 0 or rows.max() >= samples):
            raise ValueError(
                f"a partition gave client {client} rows {rows.min()}..{rows.max()} of {samples} samples "
                f"(0..{samples - 1})"
            )
