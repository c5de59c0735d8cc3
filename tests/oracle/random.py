"""Threefry-2x32, the counter-based generator behind JAX's default keys (Salmon et al., SC 2011)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


def threefry_2x32(key: tuple[Any, Any], counter: tuple[Any, Any]) -> tuple[Words, Words]:
    """Encrypts two 32-bit counter words under two 32-bit key words, in 20 rounds.

    A round is (x0, x1) <- (x0 + x1, rotl(x1, r) xor (x0 + x1)); after every fourth round the key schedule
    (k0, k1, k0 ^ k1 ^ 0x1BD11BDA) is injected, shifted by one word each time, and the injection's number added to x1.

    Args:
        key: Two words, scalars or arrays of one common shape, 0 .. 2**32 - 1.
        counter: Two words, of the same shape as the key's or broadcastable with it.

    Returns:
        The two output words as uint32 arrays.

    Reference:
        Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    k0, k1, x0, x1 = (np.atleast_1d(np.asarray(word, dtype=np.uint32)) for word in (*key, *counter))
    schedule = (k0, k1, k0 ^ k1 ^ _PARITY)
    x0, x1 = x0 + k0, x1 + k1
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = ((x1 << np.uint32(distance)) | (x1 >> np.uint32(32 - distance))) ^ x0
        x0 = x0 + schedule[(group + 1) % 3]
        x1 = x1 + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return x0, x1
