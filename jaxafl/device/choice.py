"""Which devices are used."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import jax

from jaxafl.options import UserError, shown

Device = Any


def make_cpu_devices(asked: str) -> Any:
    """What a command line's `--devices` asks for, `"all"` or a number; before JAX looks for devices, so that those of a
    CPU are as many."""
    if asked == "all" or asked.isdigit():
        with contextlib.suppress(RuntimeError):  # of a process that has its devices already
            jax.config.update("jax_num_cpu_devices", int(asked) if asked.isdigit() else os.cpu_count() or 1)
    return int(asked) if asked.isdigit() else asked


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
            raise UserError(f"devices must be at least 1, got {asked}")
        if asked > len(there):
            more = f'jax.config.update("jax_num_cpu_devices", {asked}) before anything else is done with JAX makes them'
            hint = f"; {more}" if there[0].platform == "cpu" else ""
            raise UserError(f"devices={asked}, but JAX has {len(there)} of kind {there[0].platform}{hint}")
        return there[:asked]
    if isinstance(asked, Sequence) and asked and all(isinstance(one, jax.Device) for one in asked):
        if len(set(asked)) < len(asked):
            raise UserError(f"devices names a device twice: {shown(asked)}")
        return list(asked)
    raise TypeError(f'devices must be "all", a number, or a list of jax.devices(), got {shown(asked)}')
