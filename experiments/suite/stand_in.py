"""Data in small: a part of a dataset, and noise of its shape to try experiments without it."""

from __future__ import annotations

import dataclasses

import numpy as np

import jaxafl as afl


def stand_in(shape: tuple[int, ...], classes: int, train: int = 600, test: int = 100) -> afl.data.Dataset:
    """Images of uint8 noise and random labels; nothing can be learned from them.

    Args:
        shape: of an image.
        classes: number of labels.
        train, test: samples.
    """
    rng = np.random.default_rng(0)
    x, x_test = (rng.integers(0, 256, (count, *shape), dtype=np.uint8) for count in (train, test))
    y, y_test = (np.arange(count, dtype=np.int32) % classes for count in (train, test))
    return afl.data.Dataset("stand-in", x, y, x_test, y_test, classes, afl.data.cast())


def first(dataset: afl.data.Dataset, train: int, test: int) -> afl.data.Dataset:
    """The first samples of a dataset without natural users."""
    return dataclasses.replace(
        dataset, x=dataset.x[:train], y=dataset.y[:train], x_test=dataset.x_test[:test], y_test=dataset.y_test[:test]
    )
