"""The precision option of models."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp


def compute_dtype(name: str) -> Any:
    """What a Flax layer takes as `dtype` for the precision of its computation; parameters are float32 either way.

    Args:
        name: `"float32"`, or `"bfloat16"` for half the memory traffic and the fast matrix units of an accelerator (on a
            CPU without bfloat16 units a step takes several times as long).

    Returns:
        `None` for float32 (layers then compute in the precision of their parameters), else `jnp.bfloat16`.

    Raises:
        ValueError: where it is another name.
    """
    if name not in ("float32", "bfloat16"):
        raise ValueError(f'dtype must be "float32" or "bfloat16", got {name!r}')
    return jnp.bfloat16 if name == "bfloat16" else None
