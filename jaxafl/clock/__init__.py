"""Clocks, which schedule training and arrivals; see `contract`, and `durations.duration` for durations."""

from jaxafl.clock.contract import Clock, Delivery
from jaxafl.clock.durations.device_trace import device_trace
from jaxafl.clock.durations.distributions import (
    exponential,
    half_normal,
    lognormal,
    mixture,
    normal,
    pareto,
    uniform,
)
from jaxafl.clock.durations.duration import Distribution, Draw, Duration, Hours, Run, constant, worked
from jaxafl.clock.durations.fleet import activity, available, stragglers
from jaxafl.clock.durations.link import link
from jaxafl.clock.durations.papers import mac_network, suspension, three_tier, transmission
from jaxafl.clock.durations.sessions import sessions
from jaxafl.clock.fleet import Fleet, LocalRun, ServerStep
from jaxafl.clock.free_running import free_running
from jaxafl.clock.live import Live, schedule
from jaxafl.clock.protocols.compass import compass
from jaxafl.clock.protocols.contacts import bernoulli, interrupting
from jaxafl.clock.protocols.events import every_buffer, harmonic, ringleader, rounds_until_all, routed
from jaxafl.clock.protocols.regions import regional_rounds, tiers
from jaxafl.clock.protocols.rounds import sampled, semi_async, stale_rounds
from jaxafl.clock.protocols.trace import recorded, trace
from jaxafl.clock.protocols.warm_up import warm_up
from jaxafl.clock.rules import (
    Begins,
    Bound,
    Closes,
    Selects,
    after,
    at_arrival,
    at_rate,
    at_step,
    before_step,
    by_samples,
    by_weight,
    every,
    grace,
    open_slots,
    refuse,
    stop,
    uniformly,
    wait,
    within,
)
from jaxafl.clock.schedule import Schedule
from jaxafl.clock.synchronous import synchronous

__all__ = [
    "Begins",
    "Bound",
    "Clock",
    "Closes",
    "Delivery",
    "Distribution",
    "Draw",
    "Duration",
    "Fleet",
    "Hours",
    "Live",
    "LocalRun",
    "Run",
    "Schedule",
    "Selects",
    "ServerStep",
    "activity",
    "after",
    "at_arrival",
    "at_rate",
    "at_step",
    "available",
    "before_step",
    "bernoulli",
    "by_samples",
    "by_weight",
    "compass",
    "constant",
    "device_trace",
    "every",
    "every_buffer",
    "exponential",
    "free_running",
    "grace",
    "half_normal",
    "harmonic",
    "interrupting",
    "link",
    "lognormal",
    "mac_network",
    "mixture",
    "normal",
    "open_slots",
    "pareto",
    "recorded",
    "refuse",
    "regional_rounds",
    "ringleader",
    "rounds_until_all",
    "routed",
    "sampled",
    "schedule",
    "semi_async",
    "sessions",
    "stale_rounds",
    "stop",
    "stragglers",
    "suspension",
    "synchronous",
    "three_tier",
    "tiers",
    "trace",
    "transmission",
    "uniform",
    "uniformly",
    "wait",
    "warm_up",
    "within",
    "worked",
]
