"""Published algorithms that are a server on a certain clock."""

from __future__ import annotations

from typing import NamedTuple

from jaxafl.clock import Clock, Duration, free_running
from jaxafl.options import Number
from jaxafl.server import Server, asysg, fedbuff

__all__ = ["Preset", "rennala", "ringmaster"]

REFERENCES = {"rennala": ("tyurin2023",), "ringmaster": ("maranjyan2025",)}
"""Keys of `jaxafl.references.BIBTEX` by preset."""


class Preset(NamedTuple):
    """Server and clock of an algorithm, for `Simulation(data, model, client, *preset)`."""

    server: Server
    clock: Clock


def ringmaster(
    clients: int, durations: Duration, *, max_staleness: int, learning_rate: Number = 0.1, stop: bool = True
) -> Preset:
    """Builds Ringmaster ASGD: asynchronous SGD that applies no gradient with τ >= R.

    It is `asysg` on `free_running(concurrency=N, max_staleness=R)`. One gradient per run, `Client(optax.sgd,
    learning_rate=1.0, steps=1)`. In a shell: `--server asysg --clock free_running --clock.concurrency N
    --clock.max-staleness R --clock.on-bound stop`. Checked against the authors' poster and code.

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
    """Builds Rennala SGD: steps on the mean of B gradients at the newest model, from whichever clients send them.

    It is `fedbuff` without a discount on `free_running(concurrency=N, buffer=B, max_staleness=1)`. One gradient per
    run, `Client(optax.sgd, learning_rate=1.0, steps=1)`. In a shell: `--server fedbuff --server.staleness none --clock
    free_running --clock.concurrency N --clock.buffer B --clock.max-staleness 1 --clock.on-bound stop`. Checked against
    the authors' code.

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
