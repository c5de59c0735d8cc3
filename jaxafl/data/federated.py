"""`FederatedData`: samples split over clients, in the form that a simulation takes."""

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

_MOST_SAMPLES = 10**6  # that statistics of many clients generate


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class FederatedData(Summarised):
    """Training samples of N clients and one shared test set.

    Equality and hashing go by identity. Compiled programs know its `form` only; the arrays are their arguments.

    Attributes:
        name: name of the dataset, for example `"mnist"`.
        num_classes: number of classes C; labels are 0..C-1.
        counts: int64 `[N]`, training samples of each client; every entry is at least 1.
        arrays: pytree of numpy arrays that `fetch` reads, to be placed on the device once.
        x_test: raw test inputs `[n_test, ...]` (uint8 stays uint8), or a pytree of such arrays.
        y_test: int32 `[n_test]`, test labels.
        preprocessing: augmentation, cast and normalisation of raw samples.
        gather: traced function `(arrays, client, positions) -> (raw x [B, ...], y [B])`.
        description: source, partition, their options and seeds: what a result file says about the data.
        references: what a run on this data should cite: keys of `jaxafl.references.BIBTEX`, or BibTeX entries.
        test_clients: int32 `[n_test]`, the client whose a test sample is, -1 for none; `None` where the test set is
            nobody's.
        validation: samples that `with_validation` has held out.
        client_names: str `[N]`, names of the clients (users, hospitals), no two alike; `None` where they have none.
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
        """One preprocessed sample `(x [1, ...], y [1])` as numpy arrays, for shape inference."""
        x = jax.tree.map(lambda leaf: leaf[:1], self.x_test)
        return jax.device_get(self.preprocess(x)), self.y_test[:1]

    @functools.cached_property
    def form(self) -> DataForm:
        """The gathering, preprocessing and shapes of its samples."""
        leaves, structure = jax.tree.flatten((self.x_test, self.y_test))
        shapes = tuple((np.shape(leaf)[1:], np.dtype(leaf.dtype)) for leaf in leaves)
        return DataForm(self.gather, self.preprocessing, structure, shapes)

    def summary(self) -> dict[str, Any]:
        """Clients, samples and the description, by name."""
        sizes = {"samples": int(self.counts.sum()), "test_samples": len(self.y_test)}
        kind = {"classes": self.num_classes, "sample": kind_of_sample(self.x_test)}
        return {"name": self.name, "clients": self.num_clients, **sizes, **kind, **self.description}

    def fetch(
        self, arrays: Any, client: jax.Array | int, positions: jax.Array, keys: jax.Array
    ) -> tuple[Any, jax.Array]:
        """Training samples of one client, preprocessed; traced, to be used inside `jit` and `vmap`.

        Args:
            arrays: `self.arrays`, usually already on the device.
            client: int32 scalar in `[0, N)`.
            positions: int32 `[B]`, each in `[0, counts[client])`.
            keys: PRNG keys `[B]` for augmentation, one per sample; unused when there is none.

        Returns:
            `(x [B, ...], y [B])`, x as the model sees it (float32 unless the samples are tokens), y int32.
        """
        return self.form.fetch(arrays, client, positions, keys)

    def preprocess(self, x: Any) -> Any:
        """Cast and normalise a raw batch as `fetch` does, without augmentation; traced."""
        return self.preprocessing.transform(x)

    def test_arrays(self) -> tuple[Any, np.ndarray]:
        """Raw test inputs (uint8 stays uint8) and labels."""
        return self.x_test, self.y_test

    @property
    def divisible(self) -> bool:
        """Whether its arrays can be divided between devices."""
        return self.gather is gather_stored

    def divided(self, shares: int) -> FederatedData:
        """The same with arrays `[D, ...]`, of which each row holds the samples of its share of the clients, ⌈N/D⌉ of
        them; `client` counts from the first of those. Made once.

        Args:
            shares: D.
        """
        made = self.__dict__.setdefault("_divided", {})
        if shares not in made:
            arrays = divided_arrays(self.arrays, np.asarray(self.counts), shares)
            made[shares] = dataclasses.replace(self, arrays=arrays, gather=gather_divided)
        return made[shares]

    def owned_test(self, clients: np.ndarray | None) -> FederatedData:
        """The same with the client of each test sample, int `[n_test]`, -1 for none."""
        nobody = clients is None or (clients < 0).all()
        return dataclasses.replace(self, test_clients=None if nobody else clients)

    def with_validation(self, share: float, seed: int = 0) -> FederatedData:
        """The same with ⌊share · n_i⌋ of every client's training samples held out, drawn at random (each keeps at least
        one): evaluations then report `validation_accuracy` and `validation_loss` beside the test set's.

        Args:
            share: in (0, 1).
            seed: of the draw.

        Raises:
            ValueError: no client would hold out a sample, or the data has held some out already.
        """
        if self.validation is not None:
            raise UserError(f"{self.name}: the data has a validation set already")
        counts, gather, arrays, apart = held_out(self.name, self.counts, self.gather, self.arrays, share, seed)
        description = {**self.description, "validation_share": float(share), "validation_seed": int(seed)}
        return dataclasses.replace(
            self, counts=counts, gather=gather, arrays=arrays, validation=apart, description=description
        )

    @functools.cached_property
    def owners(self) -> Owners:
        """Whose held-out samples are evaluated one by one: those of the test set where they have owners, else those of
        the validation set.

        Raises:
            ValueError: there are neither.
        """
        if self.test_clients is not None:
            return owners_of(np.asarray(self.test_clients), self.num_clients, True)
        if self.validation is None:
            raise UserError(
                f"{self.name}: no client has held-out samples of its own to be evaluated on; "
                "data.with_validation(0.2, seed=0) holds some out"
            )
        return owners_of(self.validation.client, self.num_clients, False)

    def statistics(self) -> PartitionStatistics:
        """Samples per client, label histograms and heterogeneity; counts every training label once.

        Data that is generated, or that clients share, is gone through sample by sample; so of more than 10,000 clients
        the labels of a fixed random choice are counted, who hold up to 10^6 samples together, and it says of how many.
        """
        sizes, counted = np.asarray(self.counts), None
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
    """Dtype and shape of one of the samples `[n, ...]`, a pytree of arrays."""
    kinds = jax.tree.map(lambda leaf: f"{np.asarray(leaf).dtype}{list(np.shape(leaf)[1:])}", x)
    return str(kinds).replace("'", "")


def gather_stored(arrays: Any, client: jax.Array | int, positions: jax.Array) -> tuple[Any, jax.Array]:
    """Raw samples of one client out of pooled arrays: sample `index[offset[client] + position]`."""
    rows = jnp.take(arrays["index"], jnp.take(arrays["offset"], client, mode="clip") + positions, mode="clip")
    x = jax.tree.map(lambda leaf: jnp.take(leaf, rows, axis=0, mode="clip"), arrays["x"])
    return x, jnp.take(arrays["y"], rows, mode="clip")


def gather_divided(arrays: Any, client: jax.Array | int, positions: jax.Array) -> tuple[Any, jax.Array]:
    """As `gather_stored`, of one row of `divided_arrays`."""
    return gather_stored(jax.tree.map(lambda leaf: leaf[0], arrays), client, positions)


def divided_arrays(arrays: Any, counts: np.ndarray, shares: int) -> Any:
    """What `gather_stored` reads, for each of D shares of the clients, each leaf `[D, ...]`.

    Args:
        arrays, counts: of all clients.
        shares: D.
    """
    size = -(-len(counts) // shares)
    parts = []
    for begin in range(0, size * shares, size):
        own, offset = counts[begin : begin + size], arrays["offset"][begin : begin + size]
        first = np.cumsum(own) - own
        ranks = np.arange(own.sum()) - np.repeat(first, own)
        rows, index = np.unique(arrays["index"][np.repeat(offset, own) + ranks], return_inverse=True)
        parts.append((rows, index, first))

    def filled(column: int) -> np.ndarray:
        longest = max(1, *(len(part[column]) for part in parts))
        return np.stack([np.pad(part[column], (0, longest - len(part[column]))) for part in parts]).astype(np.int32)

    rows = filled(0)
    x = jax.tree.map(lambda leaf: leaf[rows], arrays["x"])
    return {"x": x, "y": arrays["y"][rows], "index": filled(1), "offset": filled(2)}


def client_arrays(x: Any, y: np.ndarray, clients: Sequence[np.ndarray]) -> tuple[dict[str, Any], np.ndarray]:
    """The arrays that `gather_stored` reads, with nothing copied or padded per client.

    Args:
        x: pooled raw samples `[n, ...]`, or a pytree of such arrays.
        y: int32 `[n]`, labels.
        clients: for each client the int rows of its samples in x and y.

    Returns:
        `{"x", "y", "index" int32 [sum counts], "offset" int32 [N]}` and `counts` int64 `[N]`.

    Raises:
        ValueError: a row is outside the data, or the clients hold 2^31 samples or more together, which int32 offsets
            cannot address.
        TypeError: rows are not integers.
    """
    listed = clients.counts if isinstance(clients, ClientRows) else [len(rows) for rows in clients]
    counts = np.array(listed, np.int64)
    offset = np.cumsum(counts) - counts
    if not isinstance(clients, ClientRows) and clients and all(rows is clients[0] for rows in clients[1:]):
        index, offset = np.asarray(clients[0]), np.zeros_like(counts)  # they hold the same samples, and share the list
    elif counts.sum() >= 2**31:
        raise ValueError(f"the clients hold {counts.sum()} samples together; stored data is limited to {2**31 - 1}")
    else:
        index = clients.flat if isinstance(clients, ClientRows) else np.concatenate([np.zeros(0, np.int32), *clients])
    _check_rows(index, clients, len(y))
    return {"x": x, "y": y, "index": index.astype(np.int32), "offset": offset.astype(np.int32)}, counts


def _check_rows(index: np.ndarray, clients: Sequence[np.ndarray], samples: int) -> None:
    """Raises where the rows that a partition gave the clients, all in `index`, are no rows of the samples."""
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
