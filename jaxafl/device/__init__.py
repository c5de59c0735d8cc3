"""Arrays on the device, compiled programs, and memory."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import numpy as np

from jaxafl.device.backend import accelerator_paths, on_cpu
from jaxafl.device.compilation import (
    compiled,
    equations,
    keep_programs,
    on_device,
    on_host,
    operations,
    products,
    result_bytes,
    shapes_of,
)
from jaxafl.device.hardware import (
    available_bytes,
    check_memory,
    cpu,
    devices_of,
    float64_on_cpu,
    host_bytes,
    make_cpu_devices,
    on_exhaustion,
)
from jaxafl.device.rows import Rows, weighted_sum
from jaxafl.options import UserError, shown

__all__ = [
    "Rows",
    "accelerator_paths",
    "as_arrays",
    "available_bytes",
    "check_memory",
    "compiled",
    "cpu",
    "devices_of",
    "equations",
    "float64_on_cpu",
    "host_bytes",
    "keep_programs",
    "make_cpu_devices",
    "on_cpu",
    "on_device",
    "on_exhaustion",
    "on_host",
    "operations",
    "products",
    "result_bytes",
    "shapes_of",
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
        if array.dtype.kind not in "fiub" and not isinstance(leaf, int):
            raise TypeError(f"{leaf!r} is not a number: declare the option that holds it with jaxafl.options.static()")
        if array.dtype.kind == "f":
            with np.errstate(over="ignore"):
                converted = array.astype(dtype)
            fits = np.array_equal(np.isfinite(converted), np.isfinite(array))
            target = np.dtype(dtype).name
            advice = "give a smaller one"
        elif array.dtype.kind == "b":
            return on_device(array)
        else:
            kinds: tuple[Any, ...] = (np.int32, np.int64 if dtype == np.float64 else np.uint32)
            kinds = (np.uint32, *kinds) if array.dtype.kind == "u" else kinds
            least, most = (int(array.min()), int(array.max())) if array.size else (0, 0)
            found = [kind for kind in kinds if np.iinfo(kind).min <= least and most <= np.iinfo(kind).max]
            fits = bool(found)
            converted = array.astype(found[0]) if found else array
            target = " or ".join(np.dtype(kind).name for kind in kinds)
            advice = "write 1e10 for the number 10**10; declare a key or a seed of more bits as a `static` option"
        if not fits:
            name = jax.tree_util.keystr(path).lstrip(".") or "a number"
            raise UserError(
                f"{name}: {shown(leaf)} does not fit into {target}, and would become another number: {advice}"
            )
        return on_device(converted)

    return jax.tree_util.tree_map_with_path(convert, tree)
