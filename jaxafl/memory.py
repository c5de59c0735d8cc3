"""How much memory a run needs, checked before compilation."""

from __future__ import annotations

import os
from typing import Any

import jax

from jaxafl.history import num_bytes


def available_bytes() -> int | None:
    """Memory of the default device, or of the host where that is the device; `None` if unknown."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        statistics = device.memory_stats() or {}
        return statistics.get("bytes_limit")
    return host_bytes()


def host_bytes() -> int | None:
    """Memory of the host; `None` if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def check_memory(parts: dict[str, Any], available: int | None = None) -> None:
    """Raises `MemoryError` when the arrays of a run cannot fit.

    Args:
        parts: name -> pytree of arrays or shapes.
        available: bytes; asked of the device when `None`.
    """
    available = available_bytes() if available is None else available
    sizes = {name: num_bytes(tree) for name, tree in parts.items()}
    total = sum(sizes.values())
    if available is None or total <= available:
        return
    largest_first = sorted(sizes.items(), key=lambda item: -item[1])
    listing = ", ".join(f"{name} {_gib(size)}" for name, size in largest_first)
    raise MemoryError(
        f"this run needs at least {_gib(total)} and the device has {_gib(available)}: {listing}. "
        "A lower concurrency needs fewer ring slots; servers that keep a row per client need fewer clients or a "
        "smaller model"
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
