"""The device: numbers and rows of parameters on it, its compiled programs, its memory."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import numpy as np

from jaxafl.device.backend import accelerator_paths, on_cpu
from jaxafl.device.choice import devices_of, make_cpu_devices
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
from jaxafl.device.memory import available_bytes, check_memory, host_bytes, on_exhaustion
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


def cpu() -> Any:
    """The CPU backend, or the default device where JAX runs without one."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


def as_arrays(tree: T, dtype: Any) -> T:
    """Every numeric leaf as an array: floats in `dtype`, integers in int32 or uint32, beside float64 in int64, so that
    no leaf depends on x64 being enabled.

    Raises:
        UserError: a number cannot be held so: an integer has more bits, a float is beyond the largest of `dtype`.
    """

    def convert(path: Any, leaf: Any) -> Any:
        array = np.asarray(leaf)  # of an integer beyond 64 bits an object
        if array.dtype.kind not in "fiub" and not isinstance(leaf, int):
            raise TypeError(f"{leaf!r} is not a number: declare the option that holds it with jaxafl.options.static()")
        if array.dtype.kind == "f":
            with np.errstate(over="ignore"):
                made = array.astype(dtype)
            fits = np.array_equal(np.isfinite(made), np.isfinite(array))
            held, way = np.dtype(dtype).name, "give a smaller one"
        elif array.dtype.kind == "b":
            return on_device(array)
        else:
            kinds: tuple[Any, ...] = (np.int32, np.int64 if dtype == np.float64 else np.uint32)
            kinds = (np.uint32, *kinds) if array.dtype.kind == "u" else kinds
            least, most = (int(array.min()), int(array.max())) if array.size else (0, 0)
            found = [kind for kind in kinds if np.iinfo(kind).min <= least and most <= np.iinfo(kind).max]
            fits, made = bool(found), array.astype(found[0]) if found else array
            held = " or ".join(np.dtype(kind).name for kind in kinds)
            way = "write 1e10 for the number 10**10; a key or a seed of so many bits is an option of its own, `static`"
        if not fits:
            name = jax.tree_util.keystr(path).lstrip(".") or "a number"
            raise UserError(f"{name}: {shown(leaf)} does not fit into {held}, and would become another number: {way}")
        return on_device(made)

    return jax.tree_util.tree_map_with_path(convert, tree)
