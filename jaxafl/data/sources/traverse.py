"""Traversal of all samples of a dataset, client by client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import jax
import numpy as np

from jaxafl.device import compiled, on_device

Evaluate: TypeAlias = Callable[[Any, jax.Array, jax.Array], Any]

_BLOCK = 128  # samples of one client that are evaluated together; per-client work is repeated for each block
_CALL = 32_768  # samples of a compiled call
_BEYOND = 2**40  # a block that no client has


def traverse(
    evaluate: Evaluate, arrays: Any, starts: np.ndarray, stops: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, Any]]:
    """Evaluates a traceable function at the positions `starts[k] <= p < stops[k]` of every client k, in order.

    Args:
        evaluate: traceable `(arrays, client int32 scalar, positions int32 [B]) -> pytree with leading axis B`; compiled
            once per function and shapes of `arrays`.
        arrays: first argument of `evaluate`, a pytree of arrays.
        starts: int64 `[N]`, first position of each client.
        stops: int64 `[N]`, one past the last position of each client.

    Yields:
        `(client [m], position [m], values)` as numpy arrays, with values a pytree of arrays `[m, ...]`.
    """
    arrays, lanes_of_call = on_device(arrays), _CALL // _BLOCK
    blocks = np.maximum(-(-(stops - starts) // _BLOCK), 0)
    client = np.repeat(np.arange(len(blocks), dtype=np.int32), blocks)
    first = np.arange(len(client)) - np.repeat(np.cumsum(blocks) - blocks, blocks)
    # The last call is padded with blocks beyond the end of client 0; another shape would compile again.
    padding = (0, -len(client) % lanes_of_call)
    client, first = np.pad(client, padding), np.pad(first, padding, constant_values=_BEYOND)
    for lanes, block in zip(client.reshape(-1, lanes_of_call, 1), first.reshape(-1, lanes_of_call, 1), strict=True):
        position = starts[lanes] + block * _BLOCK + np.arange(_BLOCK)
        wanted = position < stops[lanes]
        arguments = (arrays, *on_device((lanes[:, 0], np.where(wanted, position, 0).astype(np.int32))))
        values = compiled(_blocks, (evaluate,), arguments)[0](*arguments)
        keep = jax.tree.map(lambda leaf, wanted=wanted: np.asarray(leaf)[wanted], values)
        yield np.broadcast_to(lanes, wanted.shape)[wanted], position[wanted], keep


def _blocks(evaluate: Evaluate, arrays: Any, client: jax.Array, positions: jax.Array) -> Any:
    return jax.vmap(evaluate, in_axes=(None, 0, 0))(arrays, client, positions)
