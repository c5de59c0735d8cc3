"""Arrays on the device, compiled programs, and memory."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import numpy as np

from jaxafl.device.buffers import Rows, weighted_sum
from jaxafl.device.compilation import (
    compiled,
    on_device,
    on_host,
)
from jaxafl.device.hardware import (
    devices_of,
    float64_on_cpu,
)
from jaxafl.options import UserError, shown

__all__ = [
    "Rows",
    "as_arrays",
    "compiled",
    "devices_of",
    "float64_on_cpu",
    "on_device",
    "on_host",
    "weighted_sum",
]

T = TypeVar("T")


def as_arrays(tree: T, dtype: Any) -> T:
    """Converts every numeric leaf to an array on the device.

    Floats get `dtype`. Integers get int32 or uint32, or int64 if `dtype` is float64. No leaf depends on x64 being
    enabled.

    Raises:
        UserError: an integer has too many bits, or a float is beyond the range of `dtype`.
    """

    def convert(path: Any, leaf: Any) -> Any:
        array = np.asarray(leaf)  # has dtype object for an integer of more than 64 bits
        kind = array.dtype.kind
        if kind not in "fiub" and not isinstance(leaf, int):
            raise TypeError(f"{leaf!r} is not a number: declare the option that holds it with jaxafl.options.static()")
        if kind == "b":
            return on_device(array)
        types: tuple[Any, ...] = (np.int32, np.int64 if dtype == np.float64 else np.uint32)
        types = (np.uint32, *types) if kind == "u" else (dtype,) if kind == "f" else types
        limits: Any = np.finfo if kind == "f" else np.iinfo
        finite = array[np.isfinite(array)] if kind == "f" else array
        least, most = (finite.min(), finite.max()) if finite.size else (0, 0)
        fitting = [one for one in types if limits(one).min <= least and most <= limits(one).max]
        if not fitting:
            name = jax.tree_util.keystr(path).lstrip(".") or "a number"
            raise UserError(
                f"{name}: {shown(leaf)} does not fit into {' or '.join(np.dtype(one).name for one in types)}, and "
                "would become another number: write 1e10 for 10**10, and declare a key or a seed as a `static` option"
            )
        return on_device(array.astype(fitting[0]))

    return jax.tree_util.tree_map_with_path(convert, tree)
