"""Builders for the round-based protocols: recorded draws, runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxafl.device.keys import Purpose, purpose_key, seed_key, threefry
from tests.oracle.clock import Arrival, ServerStep

KINDS = ("real", "ties", "late")


def durations(rng: np.random.Generator, num_clients: int, runs: int, kind: str) -> np.ndarray:
    """Seconds [client, run], > 0.

    Args:
        rng: randomness.
        num_clients: N.
        runs: recorded runs of each client.
        kind: `"real"` (no two instants coincide), `"ties"` (small integers), `"late"` (client 0 takes ten times as
            long as the others).
    """
    if kind == "ties":
        return rng.integers(1, 4, (num_clients, runs)).astype(float)
    seconds = rng.uniform(1, 5, (num_clients, runs))
    if kind == "late":
        seconds[0] = 25 + np.arange(runs)
    return seconds


def sets_without_repeats(rng: np.random.Generator, rounds: int, size: int, num_clients: int) -> np.ndarray:
    """Distinct clients of each round, in random order, int [round, size]."""
    return np.argsort(rng.random((rounds, num_clients)), axis=1)[:, :size]


def in_client_order(steps: Sequence[ServerStep]) -> list[ServerStep]:
    """The arrivals of each step by client (and by place for a client that is drawn twice)."""

    def key(arrival: Arrival) -> tuple[int, int]:
        return arrival.client, arrival.dispatch

    return [ServerStep(step.step, step.time, tuple(sorted(step.arrivals, key=key))) for step in steps]


def mean_and_error(values: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Mean over independent repetitions (leading axis) and its standard error."""
    array = np.asarray(values, float)
    return array.mean(axis=0), array.std(axis=0, ddof=1) / np.sqrt(len(array))


@functools.partial(jax.jit, static_argnums=1)
def _words(key: Any, purpose: Purpose, first: Any, second: Any) -> Any:
    return threefry(purpose_key(key, purpose), first, second)


def draws(seed: int, purpose: Purpose, first: Any, second: Any = 0) -> np.ndarray:
    """Computes the clock's draws in [0, 1) of a purpose at the given counters."""
    high, low = _words(seed_key(seed), purpose, np.asarray(first, np.uint32), np.asarray(second, np.uint32))
    return np.asarray(high) * 2.0**-32 + (np.asarray(low) >> 11) * 2.0**-53


def picks(seed: int, weights: Sequence[float] | None = None) -> Callable[[int, list[int]], int]:
    """The started clients among the idle ones, by the draws of the clock: `pick(start, idle)`."""

    def pick(start: int, idle: list[int]) -> int:
        share = draws(seed, Purpose.START, start)
        until = np.cumsum([1.0 if weights is None else weights[client] for client in idle])
        return idle[int(np.searchsorted(until, share * until[-1], side="right"))]

    return pick
