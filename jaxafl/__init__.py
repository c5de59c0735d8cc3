"""jaxafl: a JAX-accelerated, vectorised simulator of asynchronous federated learning."""

from __future__ import annotations

import importlib
from typing import Any

from jaxafl import callbacks, clock, data, models, server
from jaxafl.client import Client
from jaxafl.clock import Schedule
from jaxafl.references import version
from jaxafl.results import load, save
from jaxafl.simulation import Simulation
from jaxafl.sweep import Comparison, compare, gather, process_pool, sample, sweep, tune

__version__ = version()
__all__ = [
    "Client",
    "Comparison",
    "Schedule",
    "Simulation",
    "__version__",
    "callbacks",
    "clock",
    "compare",
    "data",
    "gather",
    "load",
    "models",
    "plot",
    "process_pool",
    "sample",
    "save",
    "server",
    "sweep",
    "theory",
    "tune",
]


def __getattr__(name: str) -> Any:
    """`jaxafl.plot` is imported when it is used (Matplotlib takes its time), and so is `jaxafl.theory`."""
    if name in ("plot", "theory"):
        return importlib.import_module(f"jaxafl.{name}")
    raise AttributeError(f"module 'jaxafl' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    """The public names."""
    return __all__
