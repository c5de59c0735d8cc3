"""jaxafl: a JAX-accelerated, vectorised simulator of asynchronous federated learning."""

from jaxafl import clock, data, models, plot, server
from jaxafl.client import Client
from jaxafl.results import load, save
from jaxafl.schedule import Schedule
from jaxafl.simulation import Simulation
from jaxafl.sweep import sweep
from jaxafl.version import __version__

__all__ = [
    "Client",
    "Schedule",
    "Simulation",
    "__version__",
    "clock",
    "data",
    "load",
    "models",
    "plot",
    "save",
    "server",
    "sweep",
]
