"""Clocks: who trains when, and who arrives; see `contract`, and `durations.duration` for durations of one's own."""

from jaxafl.clock.bernoulli import Bernoulli, bernoulli
from jaxafl.clock.contract import Clock, ServerStep, Workload
from jaxafl.clock.durations import (
    constant,
    device_trace,
    exponential,
    half_normal,
    lognormal,
    mac_network,
    recorded,
    suspension,
    three_tier,
    transmission,
    uniform,
)
from jaxafl.clock.durations.duration import Composable, Draw, Run
from jaxafl.clock.free_running import FreeRunning, free_running
from jaxafl.clock.interrupting import Interrupting, interrupting
from jaxafl.clock.sampled import Sampled, sampled
from jaxafl.clock.semi_async import SemiAsync, semi_async
from jaxafl.clock.stale_rounds import StaleRounds, stale_rounds
from jaxafl.clock.synchronous import Synchronous, synchronous
from jaxafl.clock.trace import trace

__all__ = [
    "Bernoulli",
    "Clock",
    "Composable",
    "Draw",
    "FreeRunning",
    "Interrupting",
    "Run",
    "Sampled",
    "SemiAsync",
    "ServerStep",
    "StaleRounds",
    "Synchronous",
    "Workload",
    "bernoulli",
    "constant",
    "device_trace",
    "exponential",
    "free_running",
    "half_normal",
    "interrupting",
    "lognormal",
    "mac_network",
    "recorded",
    "sampled",
    "semi_async",
    "stale_rounds",
    "suspension",
    "synchronous",
    "three_tier",
    "trace",
    "transmission",
    "uniform",
]
