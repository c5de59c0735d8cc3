"""Walk over the samples of many clients in compiled blocks of one fixed shape."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_BLOCK = 128  # samples of one client evaluated together; sets how often per-client work is repeated
_LANES = 256  # blocks per compiled call


def traverse(
    evaluate: Callable[[Any, Any, Any], Any], arrays: Any, starts: np.ndarray, stops: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, Any]]:
    """Evaluate a traced function at the positions `starts[k] <= p < stops[k]` of every client k, in order.

    Args:
        evaluate: Traced `(arrays, client int32 scalar, positions int32 [B]) -> pytree with leading axis B`; compiled
            once per function and shapes of `arrays`.
        arrays: Pytree of arrays handed to `evaluate`.
        starts: int64 `[N]`, first position of each client.
        stops: int64 `[N]`, one past the last position of each client.

    Yields:
        `(client [m], position [m], values)` as numpy arrays, with values a pytree of arrays `[m, ...]`.
    """
    step = _compiled(evaluate)
    arrays = jax.device_put(arrays)
    blocks = np.maximum(-(-(stops - starts) // _BLOCK), 0)
    client = np.repeat(np.arange(len(blocks), dtype=np.int32), blocks)
    first = np.arange(len(client)) - np.repeat(np.cumsum(blocks) - blocks, blocks)
    for begin in range(0, len(client), _LANES):
        lanes = client[begin : begin + _LANES]
        position = starts[lanes, None] + first[begin : begin + _LANES, None] * _BLOCK + np.arange(_BLOCK)
        wanted = position < stops[lanes, None]
        # Short calls are filled up with positions of client 0, so that everything is compiled once.
        padding = [(0, _LANES - len(lanes))]
        values = step(
            arrays,
            jnp.asarray(np.pad(lanes, padding)),
            jnp.asarray(np.pad(np.where(wanted, position, 0), [*padding, (0, 0)]).astype(np.int32)),
        )
        keep = jax.tree.map(lambda leaf, lanes=lanes, wanted=wanted: np.asarray(leaf)[: len(lanes)][wanted], values)
        yield np.broadcast_to(lanes[:, None], wanted.shape)[wanted], position[wanted], keep


@functools.lru_cache(maxsize=16)
def _compiled(evaluate: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    return jax.jit(jax.vmap(evaluate, in_axes=(None, 0, 0)))
