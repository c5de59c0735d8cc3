"""Sweeps of several processes that run the same script under `jax.distributed`: each takes its share of the batches on
devices of its own, none waits for another before the end, and all get the whole result."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

T = TypeVar("T")


def dealt(batches: Sequence[T]) -> Sequence[T]:
    """Those of this process."""
    return batches[jax.process_index() :: jax.process_count()]


def first_of_all(make: Any) -> Any:
    """What `make` returns, called by the first process before the others."""
    if jax.process_index() == 0:
        made = make()
    exchanged(None)
    return made if jax.process_index() == 0 else make()


def united(mine: dict[int, Any]) -> dict[int, Any]:
    """What all processes have made, place -> result.

    Raises:
        RuntimeError: another process has failed.
    """
    found = exchanged(mine)
    for process, part in enumerate(found):
        if isinstance(part, str):
            raise RuntimeError(f"process {process} of {len(found)} has failed: {part}")
    return {place: result for part in found for place, result in part.items()}


def exchanged(mine: Any) -> list[Any]:
    """What every process has, in their order; all of them have to call it."""
    if jax.process_count() == 1:
        return [mine]
    data = np.frombuffer(pickle.dumps(mine), np.uint8)
    sizes = multihost_utils.process_allgather(np.asarray(len(data)))
    filled = np.pad(data, (0, int(sizes.max()) - len(data)))
    rows = multihost_utils.process_allgather(filled)
    return [pickle.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]
