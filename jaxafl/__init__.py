"""jaxafl: a JAX-accelerated, vectorised simulator of asynchronous federated learning.

>>> import jaxafl as afl
>>> sim = afl.Simulation(
...     data=afl.data.synthetic(1.0, 1.0, clients=4, max_size=50),
...     model=afl.models.logistic(num_classes=10),
...     client=afl.Client(learning_rate=0.01, steps=5, batch_size=10),
...     server=afl.server.fedbuff(),
...     clock=afl.clock.free_running(concurrency=3, buffer=2, durations=afl.clock.constant(1.0)),
... )
>>> sim.schedule(server_steps=4).staleness.tolist()  # of the two arrivals of each step; nothing is trained
[[0, 0], [1, 0], [1, 1], [0, 0]]
>>> result = sim.run(server_steps=4, eval_every=2)
>>> result.accuracy.shape, result.eval_time.values.tolist(), bool(result.loss[-1] < result.loss[0])
((3,), [0.0, 2.0, 3.0], True)
"""

from __future__ import annotations

import importlib
from typing import Any

from jaxafl import callbacks, clock, data, models, presets, server
from jaxafl.client import Client, attack, correction, upload
from jaxafl.clock import Schedule
from jaxafl.references import version
from jaxafl.results import at, load, save, tidy
from jaxafl.server import aggregate
from jaxafl.simulation import Simulation
from jaxafl.study import Comparison, compare, tune
from jaxafl.sweep import gather, process_pool, sample, sweep

__version__ = version()
__all__ = [
    "Client",
    "Comparison",
    "Schedule",
    "Simulation",
    "__version__",
    "aggregate",
    "at",
    "attack",
    "callbacks",
    "clock",
    "compare",
    "correction",
    "data",
    "gather",
    "load",
    "models",
    "plot",
    "presets",
    "process_pool",
    "sample",
    "save",
    "server",
    "sweep",
    "theory",
    "tidy",
    "tune",
    "upload",
]


def __getattr__(name: str) -> Any:
    """Imports `jaxafl.plot` and `jaxafl.theory` on first use, since Matplotlib is slow to import."""
    if name in ("plot", "theory"):
        return importlib.import_module(f"jaxafl.{name}")
    raise AttributeError(f"module 'jaxafl' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    """Returns the public names."""
    return __all__
