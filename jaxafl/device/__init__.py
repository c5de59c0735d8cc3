"""The device: numbers and rows of parameters on it, its compiled programs, its memory."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import numpy as np

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

__all__ = [
    "Rows",
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
    "on_device",
    "on_exhaustion",
    "on_host",
    "operations",
    "products",
    "result_bytes",
    "shapes_of",
    "slices_are_faster",
    "weighted_sum",
]

T = TypeVar("T")


def cpu() -> Any:
    """The CPU backend, or the default device where JAX runs without one."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


def slices_are_faster() -> bool:
    """Whether several rows of a buffer are read and written faster by a loop of slices: on a CPU."""
    return jax.default_backend() == "cpu"


def as_arrays(tree: T, dtype: Any) -> T:
    """Every numeric leaf as an array: floats in `dtype`, integers in int32 (in `dtype` where one does not fit), so that
    no leaf depends on x64 being enabled."""

    def convert(leaf: Any) -> Any:
        kind = np.asarray(leaf).dtype.kind if not isinstance(leaf, jax.Array) else leaf.dtype.kind
        if kind not in "fiub":
            raise TypeError(f"{leaf!r} is not a number: declare the option that holds it with jaxafl.options.static()")
        if kind in "iu" and np.size(leaf) and max(int(np.max(leaf)), -int(np.min(leaf))) > np.iinfo(np.int32).max:
            kind = "f"
        return on_device(np.asarray(leaf, {"f": dtype, "i": np.int32, "u": np.uint32, "b": np.bool_}[kind]))

    return jax.tree.map(convert, tree)
