"""Batches on several devices of one process: each device has a thread, which takes one batch after another."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp

from jaxafl.options import UserError, shown

Device = Any


def devices_of(asked: Any) -> list[Device]:
    """The devices that `devices=` asks for; none: where JAX would place things by itself.

    Args:
        asked: `None`, `"all"`, how many, or devices.

    Raises:
        ValueError: there are fewer.
        TypeError: it is something else.
    """
    if asked is None:
        return []
    there = jax.local_devices()
    if asked == "all":
        return there
    if isinstance(asked, int) and not isinstance(asked, bool):
        if asked < 1:
            raise UserError(f"sweep(devices=...) must be at least 1, got {asked}")
        if asked > len(there):
            more = f'jax.config.update("jax_num_cpu_devices", {asked}) before anything else is done with JAX makes them'
            hint = f"; {more}" if there[0].platform == "cpu" else ""
            raise UserError(f"sweep(devices={asked}), but JAX has {len(there)} of kind {there[0].platform}{hint}")
        return there[:asked]
    if isinstance(asked, Sequence) and asked and all(isinstance(one, jax.Device) for one in asked):
        if len(set(asked)) < len(asked):
            raise UserError(f"sweep(devices=...) names a device twice: {shown(asked)}")
        return list(asked)
    raise TypeError(f'sweep(devices=...) must be "all", a number, or a list of jax.devices(), got {shown(asked)}')


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
