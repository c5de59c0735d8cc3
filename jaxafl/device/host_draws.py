"""Detection of NumPy's random numbers in traced code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxafl.options import UserError


@contextlib.contextmanager
def refuse_host_draws(owner: str, advice: str) -> Iterator[None]:
    """Raises `UserError` if the block draws from NumPy's global generator. Generators of one's own are not seen.

    Args:
        owner: the traced part, for the message.
        advice: the source of random numbers that the part has.
    """
    before: Any = np.random.get_state()
    yield
    after: Any = np.random.get_state()
    if before[2:] != after[2:] or not np.array_equal(before[1], after[1]):
        raise UserError(
            f"{owner} draws from numpy.random while it is traced, so that its numbers are constants of the program, "
            f"the same for every client, step and seed. Draw by jax.random and {advice}, or draw outside of it"
        )
