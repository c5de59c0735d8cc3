"""Clocks, which schedule training and arrivals; see `contract`, and `durations.duration` for durations."""

from jaxafl.clock.bernoulli import bernoulli
from jaxafl.clock.compass import compass
from jaxafl.clock.contract import Clock, Delivery, Runs, ServerStep, Starts, Workload
from jaxafl.clock.durations.device_trace import device_trace
from jaxafl.clock.durations.distributions import exponential, half_normal, lognormal, uniform
from jaxafl.clock.durations.duration import Distribution, Duration, constant
from jaxafl.clock.durations.fleet import available, stragglers
from jaxafl.clock.durations.link import link
from jaxafl.clock.durations.papers import mac_network, suspension, three_tier, transmission
from jaxafl.clock.durations.runs import Draw, Run, worked
from jaxafl.clock.durations.sessions import sessions
from jaxafl.clock.event_loop import Event, Verdict
from jaxafl.clock.events import Events
from jaxafl.clock.every_buffer import every_buffer
from jaxafl.clock.free_running import free_running
from jaxafl.clock.harmonic import harmonic
from jaxafl.clock.interrupting import interrupting
from jaxafl.clock.ringleader import ringleader
from jaxafl.clock.rounds import stale_rounds, synchronous
from jaxafl.clock.rounds_until_all import rounds_until_all
from jaxafl.clock.routed import routed
from jaxafl.clock.sampled import sampled
from jaxafl.clock.schedules import schedule
from jaxafl.clock.semi_async import semi_async
from jaxafl.clock.starts import no_starts
from jaxafl.clock.tables import Schedule
from jaxafl.clock.trace import recorded, trace
from jaxafl.clock.warm_up import warm_up

__all__ = [
    "Clock",
    "Delivery",
    "Distribution",
    "Draw",
    "Duration",
    "Event",
    "Events",
    "Run",
    "Runs",
    "Schedule",
    "ServerStep",
    "Starts",
    "Verdict",
    "Workload",
    "available",
    "bernoulli",
    "compass",
    "constant",
    "device_trace",
    "every_buffer",
    "exponential",
    "free_running",
    "half_normal",
    "harmonic",
    "interrupting",
    "link",
    "lognormal",
    "mac_network",
    "no_starts",
    "recorded",
    "ringleader",
    "rounds_until_all",
    "routed",
    "sampled",
    "schedule",
    "semi_async",
    "sessions",
    "stale_rounds",
    "stragglers",
    "suspension",
    "synchronous",
    "three_tier",
    "trace",
    "transmission",
    "uniform",
    "warm_up",
    "worked",
]
