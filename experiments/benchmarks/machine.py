"""What the machine itself makes, beside which other figures stand: machines differ by more than two times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

_LONG = 2**26


def product_rate(side: int = 2048, dtype: Any = jnp.float32) -> float:
    """Floating-point operations per second of a product of two square matrices."""
    matrix = jnp.ones((side, side), dtype)
    return 2 * side**3 / _seconds(jax.jit(jnp.matmul), matrix, matrix)


def bandwidth() -> float:
    """Bytes per second of `a + 2 b` over vectors of 256 MiB: two are read, and one is written."""
    vector = jnp.ones(_LONG, jnp.float32)
    return 3 * vector.nbytes / _seconds(jax.jit(lambda a, b: a + 2 * b), vector, vector)


def machine() -> str:
    """Both, as a line of text."""
    return f"2048³ product {product_rate() / 1e9:.0f} GFLOP/s, memory {bandwidth() / 1e9:.1f} GB/s"


def _seconds(function: Callable[..., Any], *arguments: jax.Array) -> float:
    times = []
    for _ in range(8):
        begun = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - begun)
    return statistics.median(times[2:])
