"""Clocks: who trains when, and who arrives; see `contract`."""

from jaxafl.clock.contract import Clock, ServerStep, Workload
from jaxafl.clock.durations import (
    constant,
    exponential,
    half_normal,
    lognormal,
    recorded,
    suspension,
    three_tier,
    transmission,
    uniform,
)
from jaxafl.clock.free_running import FreeRunning, free_running
from jaxafl.clock.synchronous import Synchronous, synchronous
from jaxafl.clock.trace import trace

__all__ = [
    "Clock",
    "FreeRunning",
    "ServerStep",
    "Synchronous",
    "Workload",
    "constant",
    "exponential",
    "free_running",
    "half_normal",
    "lognormal",
    "recorded",
    "suspension",
    "synchronous",
    "three_tier",
    "trace",
    "transmission",
    "uniform",
]
