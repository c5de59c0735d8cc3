"""Durations of local runs; see `duration`."""

from jaxafl.clock.durations.device_trace import DeviceTrace, device_trace
from jaxafl.clock.durations.distributions import Distribution, constant, exponential, half_normal, lognormal, uniform
from jaxafl.clock.durations.duration import Draw, Duration, Product, Run, Sum, stream_keys
from jaxafl.clock.durations.mac_network import MACNetwork, mac_network
from jaxafl.clock.durations.recorded import Recorded, recorded
from jaxafl.clock.durations.suspension import Suspension, suspension
from jaxafl.clock.durations.three_tier import ThreeTier, three_tier
from jaxafl.clock.durations.transmission import Transmission, transmission

__all__ = [
    "DeviceTrace",
    "Distribution",
    "Draw",
    "Duration",
    "MACNetwork",
    "Product",
    "Recorded",
    "Run",
    "Sum",
    "Suspension",
    "ThreeTier",
    "Transmission",
    "constant",
    "device_trace",
    "exponential",
    "half_normal",
    "lognormal",
    "mac_network",
    "recorded",
    "stream_keys",
    "suspension",
    "three_tier",
    "transmission",
    "uniform",
]
