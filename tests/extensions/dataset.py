"""Datasets: one split over clients, one pooled."""

from __future__ import annotations

import numpy as np

from jaxafl.data import Dataset, FederatedData, as_is, from_arrays


def two_moons(clients: int = 4, noise: float = 0.1) -> FederatedData:
    """Two half circles; every client holds an arc of both.

    Args:
        clients: N.
        noise: standard deviation.
    """
    x, y, place = _moons(noise)
    return from_arrays(x, y, (place * clients).astype(int), test_fraction=0.2, name="two_moons")


def pooled_moons(noise: float = 0.1) -> Dataset:
    """The same, to be split by a partition.

    Args:
        noise: standard deviation.
    """
    x, y, _ = _moons(noise)
    return Dataset("pooled_moons", x[::2], y[::2], x[1::2], y[1::2], 2, as_is())


def _moons(noise: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y, place = rng.integers(0, 2, 400), rng.random(400)
    sign = 1 - 2 * y
    x = np.stack([np.cos(np.pi * place) * sign + y, np.sin(np.pi * place) * sign + y / 2], axis=1)
    return (x + noise * rng.normal(size=x.shape)).astype(np.float32), y.astype(np.int32), place
