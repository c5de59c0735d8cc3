"""Sweeps of several processes that run the same script under `jax.distributed`: each takes its share of the batches on
devices of its own, none waits for another before the end, and all get the whole result."""

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
    """What a process has to say when it fails."""

    said: str


def dealt(batches: Sequence[T]) -> Sequence[T]:
    """Those of this process."""
    return batches[jax.process_index() :: jax.process_count()]


def one_by_one(make: Callable[[], T]) -> T:
    """What `make` returns, called by one process after another; none goes on before all have called it.

    Raises:
        RuntimeError: another process has failed.
    """
    for process in range(jax.process_count()):
        if process == jax.process_index():
            with failing():
                made = make()
        exchanged(None)
    return made


@contextlib.contextmanager
def failing() -> Iterator[None]:
    """Tells the other processes, which are about to exchange something, of an error."""
    try:
        yield
    except Exception as error:
        _gathered(_Failure(f"{type(error).__name__}: {error}"))
        raise


def exchanged(mine: T) -> list[T]:
    """What every process has, in their order; all of them have to call it.

    Raises:
        RuntimeError: another process has failed.
    """
    found = _gathered(mine)
    for process, part in enumerate(found):
        if isinstance(part, _Failure):
            raise RuntimeError(f"process {process} of {len(found)} has failed: {part.said}")
    return found


def _gathered(mine: Any) -> list[Any]:
    if jax.process_count() == 1:
        return [mine]
    data = np.frombuffer(pickle.dumps(mine), np.uint8)
    sizes = multihost_utils.process_allgather(np.asarray(len(data)))
    filled = np.pad(data, (0, int(sizes.max()) - len(data)))
    rows = multihost_utils.process_allgather(filled)
    return [pickle.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]
