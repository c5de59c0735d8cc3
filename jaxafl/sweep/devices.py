"""Concurrent batches of one process, in one thread each.

An accelerator has one thread per device. A CPU has one per core, since the operations of a small program depend on each
other and leave cores idle.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp

from jaxafl.device import host_bytes

Device = Any


def at_once(asked: Any, devices: Sequence[Device], needed: Iterable[int]) -> int:
    """Returns the number of concurrent batches: one per device. On a CPU without a choice of devices, cores and memory
    limit it.

    Args:
        asked: the option `devices` of a sweep.
        devices: the devices of that option.
        needed: bytes that a batch keeps, for each program.
    """
    if asked not in (None, "all") or jax.default_backend() != "cpu":
        return max(1, len(devices))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = host_bytes()
    fitting = cores if memory is None else memory // (4 * max([*needed, 1]))
    return max(1, len(devices), min(cores, fitting))


def threads(devices: Sequence[Device], count: int) -> ThreadPoolExecutor:
    """Returns an executor of `count` threads, each of which has one of the devices."""
    # JAX's contexts are per thread: a thread would not see those of the caller
    wide = jnp.result_type(float) == jnp.float64
    default = jax.config.jax_default_device  # type: ignore[attr-defined]
    precision = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    free: queue.SimpleQueue[Device] = queue.SimpleQueue()
    for place in range(count):
        free.put(devices[place % len(devices)] if devices else default)

    def begin() -> None:
        contexts = jax.enable_x64(wide), jax.default_matmul_precision(precision), jax.default_device(free.get())
        for context in contexts:
            context.__enter__()

    return ThreadPoolExecutor(count, initializer=begin)
