"""Threefry against the test vectors that its authors published."""

from __future__ import annotations

import numpy as np
import pytest

from .random import threefry_2x32


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_matches_the_published_random123_vectors(counter, key, expected):
    assert tuple(int(word[0]) for word in threefry_2x32(key, counter)) == expected


def test_threefry_maps_over_arrays():
    words = threefry_2x32((0, 0), (np.array([7, 0]), np.array([9, 0])))
    assert (int(words[0][1]), int(words[1][1])) == (0x6B200159, 0x99BA4EFE)
    assert int(words[0][0]) != int(words[0][1])
