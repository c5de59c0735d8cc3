"""Stored samples: pooled arrays, and the rows of each client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.data.partition.base import ClientRows


def gather_stored(arrays: Any, client: jax.Array | int, positions: jax.Array) -> tuple[Any, jax.Array]:
    """Gathers raw samples of one client from pooled arrays: sample `index[offset[client] + position]`."""
    rows = jnp.take(arrays["index"], jnp.take(arrays["offset"], client, mode="clip") + positions, mode="clip")
    x = jax.tree.map(lambda leaf: jnp.take(leaf, rows, axis=0, mode="clip"), arrays["x"])
    return x, jnp.take(arrays["y"], rows, axis=0, mode="clip")


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


def stored_targets(gather: Any, arrays: Any) -> np.ndarray:
    """Returns all training targets of data with this gather and arrays, held-out ones too; none if not stored."""
    while (inner := getattr(gather, "gather", None)) is not None:  # `with_validation` wraps
        gather, arrays = inner, arrays["all"]
    return arrays["y"][arrays["index"]] if gather is gather_stored else np.zeros(0, np.int32)


def stored_rows(arrays: Any, counts: np.ndarray) -> np.ndarray:
    """Returns the rows of all clients' samples, int [sum counts], in arrays that `gather_stored` reads."""
    first = np.asarray(arrays["offset"], np.int64) - (np.cumsum(counts) - counts)
    return arrays["index"][np.repeat(first, counts) + np.arange(counts.sum())]


def rows_of_clients(about: str, clients: Any) -> Sequence[np.ndarray]:
    """Returns the rows of each client that a partition gave; raises `TypeError` unless these are lists of integers.

    Args:
        about: the partition, for the message.
        clients: result of its `split`.
    """
    if isinstance(clients, ClientRows):
        return clients
    listed = [*clients] if isinstance(clients, Iterable) and not isinstance(clients, Mapping | str) else [None]
    kept = {id(rows): np.asarray(rows) for rows in listed}  # clients may share one array
    for client, rows in enumerate(kept[id(rows)] for rows in listed):
        if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
            given = f"{rows.dtype}{[*rows.shape]}" if rows.ndim else f"{clients!r:.100}"
            raise TypeError(
                f"{about}: split must return a list with the rows of each client, integers as in [np.arange(30), "
                f"np.arange(30, 60)]; client {client} got {given}"
            )
    return [kept[id(rows)] for rows in listed]


def client_arrays(x: Any, y: np.ndarray, clients: Sequence[np.ndarray]) -> tuple[dict[str, Any], np.ndarray]:
    """Builds the arrays that `gather_stored` reads, without copies or padding per client.

    Args:
        x: pooled raw samples `[n, ...]`, or a pytree of such arrays.
        y: targets `[n, ...]`.
        clients: for each client, the int rows of its samples in x and y.

    Returns:
        `{"x", "y", "index" int32 [sum counts], "offset" int32 [N]}` and `counts` int64 `[N]`.

    Raises:
        ValueError: a row is outside the data, or all clients hold 2^31 samples or more, which int32 cannot address.
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
    """Raises an error if a partition's rows, all in `index`, are not in [0, samples)."""
    if not index.size or (index.min() >= 0 and index.max() < samples):
        return
    for client, rows in enumerate(map(np.asarray, clients)):
        if rows.size and (rows.min() < 0 or rows.max() >= samples):
            raise ValueError(
                f"a partition gave client {client} rows {rows.min()}..{rows.max()} of {samples} samples "
                f"(0..{samples - 1})"
            )
