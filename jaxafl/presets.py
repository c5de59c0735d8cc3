"""Published algorithms that are a server on a certain clock."""

from __future__ import annotations

from typing import NamedTuple

from jaxafl.clock import Clock, Duration, free_running
from jaxafl.options import Number
from jaxafl.server import Server, asysg, fedbuff

__all__ = ["Preset", "rennala", "ringmaster"]


class Preset(NamedTuple):
    """Server and clock of an algorithm, for `Simulation(data, model, client, *preset)`."""

    server: Server
    clock: Clock


def ringmaster(
    clients: int, durations: Duration, *, max_staleness: int, learning_rate: Number = 0.1, stop: bool = True
) -> Preset:
    """Returns Ringmaster ASGD: asynchronous SGD that applies no gradient with τ >= R.

    Args:
        clients: N, which all train all the time.
        durations: duration of a run in simulated seconds.
        max_staleness: R >= 1. Theory: max(1, ⌈σ²/ε⌉). 1 keeps fresh gradients only.
        learning_rate: η. Theory: min(1/(2RL), ε/(4Lσ²)).
        stop: stop runs whose staleness reaches R (Algorithm 2), or ignore their gradients (Algorithm 1).

    References:
        Maranjyan, Tyurin & Richtárik, "Ringmaster ASGD: the first asynchronous SGD with optimal time complexity", ICML
        2025.
    """
    clock = free_running(
        concurrency=clients, durations=durations, max_staleness=max_staleness, on_bound="stop" if stop else "refuse"
    )
    return Preset(asysg(learning_rate), clock)


def rennala(clients: int, durations: Duration, *, batch: int, learning_rate: Number = 0.1, stop: bool = True) -> Preset:
    """Returns Rennala SGD: steps on the mean of B gradients at the newest model, from whichever clients send them.

    Args:
        clients: N, which all train all the time.
        durations: duration of a run in simulated seconds.
        batch: B >= 1. Theory: max(1, ⌈σ²/ε⌉).
        learning_rate: η. Theory: 1/L.
        stop: stop the runs from the last model at each step, as the authors' code does. Otherwise they are refused when
            they end.

    References:
        Tyurin & Richtárik, "Optimal time complexities of parallel stochastic optimization methods under a fixed
        computation model", NeurIPS 2023, Method 4.
    """
    clock = free_running(
        concurrency=clients, buffer=batch, durations=durations, max_staleness=1, on_bound="stop" if stop else "refuse"
    )
    return Preset(fedbuff(learning_rate, staleness="none"), clock)
