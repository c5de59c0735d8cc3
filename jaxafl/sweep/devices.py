"""Batches that one process runs at once: a thread for each, which takes one batch after another.

On an accelerator a device has one thread. On a CPU one device has as many as there are cores: the operations of a small
program wait for each other and for the threads that share them, so that one run leaves cores idle (eight runs of an
MLP 784-128-10 on two cores took half of the time in two threads, of `cnn_small` 0.4, no longer than on two devices).
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
    """How many batches run at once: one per device that was asked for, or, where none or all were, as many as a CPU has
    cores and memory for.

    Args:
        asked: `devices` of a sweep.
        devices: those.
        needed: bytes that batches keep, of each kind.
    """
    if asked not in (None, "all") or jax.default_backend() != "cpu" or jax.process_count() > 1:
        return max(1, len(devices))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = host_bytes()
    fitting = cores if memory is None else memory // (4 * max([*needed, 1]))
    return max(1, len(devices), min(cores, fitting))


class Devices:
    """An executor: what runs alone does so at once, in the caller's thread; several run in threads."""

    def __init__(self, devices: Sequence[Device], count: int = 1) -> None:
        self.threads = ThreadPoolExecutor(count) if count > 1 else None
        self.free: queue.SimpleQueue[Device] = queue.SimpleQueue()
        for place in range(count):
            self.free.put(devices[place % len(devices)] if devices else None)

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Calls a function on a device that is free, or will be."""
        # what the caller's context may have changed, which a thread has not
        wide = jnp.result_type(float) == jnp.float64
        there, precision = jax.config.jax_default_device, jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]

        def call() -> Any:
            device = self.free.get()
            try:
                with (
                    jax.enable_x64(wide),
                    jax.default_matmul_precision(precision),
                    jax.default_device(device or there),
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
        """Waits for what is under way; what has not begun never does."""
        if self.threads is not None:
            self.threads.shutdown(cancel_futures=True)
