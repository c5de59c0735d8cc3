"""Concurrent batches of one process, in one thread each.

An accelerator has one thread per device. A CPU has one per core, since the operations of a small program depend on each
other and leave cores idle.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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


class DeviceExecutor:
    """An executor on devices of this process, with `count` threads; with one, `submit` runs in the caller's thread."""

    def __init__(self, devices: Sequence[Device], count: int = 1) -> None:
        self.threads = ThreadPoolExecutor(count) if count > 1 else None
        self.free: queue.SimpleQueue[Device] = queue.SimpleQueue()
        for place in range(count):
            self.free.put(devices[place % len(devices)] if devices else None)

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Calls a function on the next free device."""
        # JAX's contexts are per thread: a thread would not see those of the caller
        wide = jnp.result_type(float) == jnp.float64
        default = jax.config.jax_default_device  # type: ignore[attr-defined]
        precision = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]

        def call() -> Any:
            device = self.free.get()
            try:
                with (
                    jax.enable_x64(wide),
                    jax.default_matmul_precision(precision),
                    jax.default_device(device or default),
                ):
                    return function(*args)
            finally:
                self.free.put(device)

        if self.threads is not None:
            return self.threads.submit(call)
        done: Future[Any] = Future()
        done.set_result(call())
        return done

    def close(self) -> None:
        """Waits for running calls and cancels the others."""
        if self.threads is not None:
            self.threads.shutdown(cancel_futures=True)
