"""A small simulation to sweep over, and how results are compared."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import optax

import jaxafl as afl

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(200, 200)).astype(np.float32), RNG.integers(0, 3, 200)
DATA = afl.data.from_arrays(X, Y, np.arange(200) % 10, x_test=X[:20], y_test=Y[:20])
network = functools.cache(lambda hidden: afl.models.mlp(3, hidden=(hidden,)))


def simulation(kind: str = "planned", hidden: int = 4) -> afl.Simulation:
    """Ten clients, four in flight."""
    server = afl.server.asyncfeded(kappa=0.5) if kind == "online" else afl.server.fedbuff()
    buffer = 1 if kind == "online" else 2
    return afl.Simulation(
        data=DATA,
        model=network(hidden),
        client=afl.Client(optax.sgd, learning_rate=0.1, steps=2, batch_size=5),
        server=server,
        clock=afl.clock.free_running(concurrency=4, buffer=buffer, durations=afl.clock.uniform(1, 5)),
    )


def differing(found: Any, expected: Any, tolerance: float = 0.0) -> list[str]:
    """Variables of `expected` that `found` lacks or has otherwise, but for wall-clock times."""
    names = [str(name) for name in expected.variables if not str(name).endswith("_seconds")]
    return [name for name in names if name not in found or not _same(found[name], expected[name], tolerance)]


def _same(a: Any, b: Any, tolerance: float) -> bool:
    if (a.dims, a.dtype, a.shape) != (b.dims, b.dtype, b.shape):
        return False
    if tolerance and a.dtype.kind == "f":
        return np.allclose(a.values, b.values, rtol=tolerance, atol=tolerance, equal_nan=True)
    return bool(np.array_equal(a.values, b.values, equal_nan=a.dtype.kind == "f"))
