"""Backend that compiled programs are built for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax

_accelerator_paths = 0


def on_cpu() -> bool:
    """Returns True on a CPU: there, buffers are read and written by loops of slices, and trip counts stay dynamic."""
    return jax.default_backend() == "cpu" and not _accelerator_paths


@contextlib.contextmanager
def accelerator_paths() -> Iterator[None]:
    """Builds programs on a CPU as for an accelerator, for tests: gathers and scatters, static trip counts, lockstep."""
    global _accelerator_paths
    _accelerator_paths += 1
    try:
        yield
    finally:
        _accelerator_paths -= 1
