"""Rows that are packed, to be moved between devices, come back to the last bit."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxafl.device import buffers

KINDS = ("float32", "bfloat16", "float16", "int32", "uint32", "int8", "bool")
SHAPES = ((), (1,), (2, 3), (0, 3))


@pytest.mark.slow
@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(SHAPES)), min_size=1, max_size=6), st.data())
def test_packed_rows_come_back(leaves: list[tuple[str, tuple[int, ...]]], data: Any) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))

    def drawn(kind: str, shape: tuple[int, ...]) -> np.ndarray:
        if kind == "bool":
            return rng.random(shape) < 0.5
        bits = rng.integers(0, 256, (*shape, jnp.dtype(kind).itemsize), dtype=np.uint8)  # NaNs of all kinds too
        return bits.view(jnp.dtype(kind)).reshape(shape)

    rows = [[drawn(*leaf) for leaf in leaves] for _ in range(3)]
    packed = buffers.packed(rows[0], len(rows))
    for place in (2, 0, 1):
        packed = buffers.pack(packed, jnp.int32(place), rows[place])
    assert len(packed) == len({jnp.dtype(kind).itemsize for kind, _ in leaves})
    for place, row in enumerate(rows):
        found = buffers.unpack(packed, jnp.int32(place), row)
        for ours, leaf in zip(found, row, strict=True):
            assert (ours.shape, ours.dtype) == (leaf.shape, leaf.dtype)
            assert np.asarray(ours).tobytes() == leaf.tobytes()
