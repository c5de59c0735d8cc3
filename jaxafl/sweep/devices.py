"""Batches on several devices of one process: each device has a thread, which takes one batch after another."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp

Device = Any


class Devices:
    """An executor: one device does what it is given at once, in the caller's thread; several do it in threads."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self.threads = ThreadPoolExecutor(len(devices)) if len(devices) > 1 else None
        self.free: queue.SimpleQueue[Device] = queue.SimpleQueue()
        for device in devices or [None]:
            self.free.put(device)

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Calls a function on a device that is free, or will be."""
        wide = jnp.result_type(float) == jnp.float64  # of the caller's context, which a thread has not

        def call() -> Any:
            device = self.free.get()
            try:
                with jax.default_device(device) if device else contextlib.nullcontext(), jax.enable_x64(wide):
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
