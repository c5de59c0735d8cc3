"""Options that runs and sweeps share."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from jaxafl.callbacks.base import Callback
from jaxafl.callbacks.progress import Reporter
from jaxafl.engine.problem import Observe


class SharedOptions(TypedDict, total=False):
    """Options that runs and sweeps share."""

    lanes: int | None
    chunk: int | None
    deterministic: bool
    devices: Any
    observe: Observe | None
    diagnostics: str | Sequence[str]
    metrics: Mapping[str, Any] | None
    progress: bool | str | Reporter
    checkpoint_every: int | str
    keep: int


class RunOptions(SharedOptions, total=False):
    """Options of `Simulation.run` and `Simulation.train`; `Simulation.run` documents them."""

    eval_every: int | None
    seed: int
    callbacks: Sequence[Callback] | Callback
    folder: str | os.PathLike[str] | None
    until: Mapping[str, float] | None
