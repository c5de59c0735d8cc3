"""Selection of the devices of a run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import jax

from jaxafl.options import UserError, shown

Device = Any


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
        ValueError: JAX has fewer devices.
        TypeError: `asked` has another type.
    """
    if asked is None:
        return []
    found = jax.local_devices()
    if asked == "all":
        return found
    if isinstance(asked, int) and not isinstance(asked, bool):
        if asked < 1:
            raise UserError(f"devices must be at least 1, got {asked}")
        if asked > len(found):
            more = f'jax.config.update("jax_num_cpu_devices", {asked}) before anything else is done with JAX makes them'
            hint = f"; {more}" if found[0].platform == "cpu" else ""
            raise UserError(f"devices={asked}, but JAX has {len(found)} of kind {found[0].platform}{hint}")
        return found[:asked]
    if isinstance(asked, Sequence) and asked and all(isinstance(one, jax.Device) for one in asked):
        if len(set(asked)) < len(asked):
            raise UserError(f"devices names a device twice: {shown(asked)}")
        return list(asked)
    raise TypeError(f'devices must be "all", a number, or a list of jax.devices(), got {shown(asked)}')
