"""Communication of several processes that run the same script under `jax.distributed`.

Each process runs its share of the batches on its devices. All of them wait at the end and get the complete result.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

T = TypeVar("T")


class _Failure(NamedTuple):
    """The message of a failed process."""

    message: str


def local_batches(batches: Sequence[T]) -> Sequence[T]:
    """Returns the batches of this process."""
    return batches[jax.process_index() :: jax.process_count()]


def one_by_one(make: Callable[[], T]) -> T:
    """Calls a function in one process after another, and returns its result once all processes have called it.

    Raises:
        RuntimeError: another process has failed.
    """
    for process in range(jax.process_count()):
        if process == jax.process_index():
            with failing():
                result = make()
        all_gather_objects(None)
    return result


@contextlib.contextmanager
def failing() -> Iterator[None]:
    """Sends an exception to the other processes, so that they raise instead of waiting in the next collective."""
    try:
        yield
    except Exception as error:
        _gathered(_Failure(f"{type(error).__name__}: {error}"))
        raise


def all_gather_objects(local: T) -> list[T]:
    """Returns the objects of all processes, in their order. A collective: all processes have to call it.

    Raises:
        RuntimeError: another process has failed.
    """
    found = _gathered(local)
    for process, part in enumerate(found):
        if isinstance(part, _Failure):
            raise RuntimeError(f"process {process} of {len(found)} has failed: {part.message}")
    return found


def _gathered(local: Any) -> list[Any]:
    if jax.process_count() == 1:
        return [local]
    data = np.frombuffer(pickle.dumps(local), np.uint8)
    sizes = multihost_utils.process_allgather(np.asarray(len(data)))
    filled = np.pad(data, (0, int(sizes.max()) - len(data)))
    rows = multihost_utils.process_allgather(filled)
    return [pickle.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]
