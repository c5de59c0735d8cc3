"""Devices of a run, the backend that programs are built for, and memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from jaxafl.options import UserError, shown

Device = Any
_as_accelerator = False
"""True in tests: programs on a CPU are built as for an accelerator, with static trip counts and lockstep."""


def built_for_cpu() -> bool:
    """Returns True on a CPU: there, trip counts stay dynamic, and members advance and are evaluated one by one.

    How many lanes train at once depends on the backend itself, also in tests that set `_as_accelerator`.
    """
    return jax.default_backend() == "cpu" and not _as_accelerator


@contextlib.contextmanager
def float64_on_cpu() -> Iterator[None]:
    """Computes on the CPU, with 64-bit types enabled, within the block: as clocks do ahead of training."""
    cpu: Any = None  # JAX's default device
    with contextlib.suppress(RuntimeError):  # raised if JAX has no CPU backend
        cpu = jax.local_devices(backend="cpu")[0]
    with jax.enable_x64(True), jax.default_device(cpu):
        yield


def make_cpu_devices(asked: str) -> Any:
    """Parses `--devices` of a command line, `"all"` or a number, and configures that number of CPU devices.

    It must be called before JAX initialises its devices.
    """
    if asked == "all" or asked.isdigit():
        with contextlib.suppress(RuntimeError):  # raised if JAX has initialised its devices already
            jax.config.update("jax_num_cpu_devices", int(asked) if asked.isdigit() else os.cpu_count() or 1)
    return int(asked) if asked.isdigit() else asked


def devices_of(asked: Any) -> list[Device]:
    """Returns the devices that `devices=` requests; an empty list leaves the placement to JAX.

    Args:
        asked: `None`, `"all"`, a number of devices, or a list of devices.

    Raises:
        UserError: JAX has fewer devices, or `asked` is something else.
    """
    found = jax.local_devices()
    if asked is None or asked == "all":
        return [] if asked is None else found
    if isinstance(asked, int) and not isinstance(asked, bool) and asked > 0:
        if asked > len(found):
            more = f'; call jax.config.update("jax_num_cpu_devices", {asked}) before anything else is done with JAX'
            hint = more if found[0].platform == "cpu" else ""
            raise UserError(f"devices={asked}, but JAX has {len(found)} of kind {found[0].platform}{hint}")
        return found[:asked]
    listed = isinstance(asked, Sequence) and asked and all(isinstance(one, jax.Device) for one in asked)
    if listed and len(set(asked)) == len(asked):
        return list(asked)
    raise UserError(f'devices must be "all", a number, or a list of different jax.devices(), got {shown(asked)}')


def available_bytes(devices: int = 1) -> int | None:
    """Returns the bytes of memory per device, or `None` if unknown; CPU devices share the memory of the host."""
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return host_bytes() // devices
    return (device.memory_stats() or {}).get("bytes_limit")


def host_bytes() -> int:
    """Returns the bytes of memory of the host."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
