"""Builders for the round-based protocols: the slow reference's schedule beside the package's, recorded draws, runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import xarray as xr

from jaxafl.clock import Schedule
from jaxafl.device.keys import Purpose, purpose_key, seed_key, threefry
from tests.oracle import simulate as oracle_simulate
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


def lookup(table: np.ndarray) -> Callable[[int, int], float]:
    """The reference's duration of a run from an array [client, run]."""
    return lambda client, run: float(table[client, run])


def sets_without_repeats(rng: np.random.Generator, rounds: int, size: int, num_clients: int) -> np.ndarray:
    """Distinct clients of each round, in random order, int [round, size]."""
    return np.argsort(rng.random((rounds, num_clients)), axis=1)[:, :size]


def in_client_order(steps: Sequence[ServerStep]) -> list[ServerStep]:
    """The arrivals of each step by client (and by place for a client that is drawn twice)."""

    def key(arrival: Arrival) -> tuple[int, int]:
        return arrival.client, arrival.dispatch

    return [ServerStep(step.step, step.time, tuple(sorted(step.arrivals, key=key))) for step in steps]


def assert_schedule(schedule: Schedule, steps: Sequence[ServerStep], *, local_steps: bool = False) -> None:
    """The schedule is the reference's: who and from where exactly, times to 1e-9. Arrivals are matched by run.

    Args:
        schedule: the package's.
        steps: the reference's (without abandoned runs).
        local_steps: compare the numbers of local steps too.
    """
    assert schedule.server_steps == len(steps)
    np.testing.assert_allclose(schedule.time, [step.time for step in steps], rtol=1e-9)
    for t, step in enumerate(steps):
        where = np.flatnonzero(schedule.mask[t])
        where = where[np.argsort(schedule.run_id[t, where])]
        arrivals = sorted(step.arrivals, key=lambda arrival: arrival.dispatch)
        columns = ["run_id", "client", "run", "version", "reference", "staleness", "multiplicity"]
        mine = [[int(getattr(schedule, name)[t, place]) for name in columns] for place in where]
        theirs = [
            [a.dispatch, a.client, a.run, a.trained_from, a.start_version, a.staleness, a.multiplicity]
            for a in arrivals
        ]
        assert mine == theirs, f"server step {t}: {columns}"
        if local_steps:
            assert schedule.local_steps[t, where].tolist() == [arrival.local_steps for arrival in arrivals], t
        np.testing.assert_allclose(schedule.started[t, where], [a.start_time for a in arrivals], rtol=1e-9)
        np.testing.assert_allclose(schedule.arrived[t, where], [a.arrival_time for a in arrivals], rtol=1e-9)


def assert_versions(result: xr.Dataset, expected: oracle_simulate.Simulation, tolerance: float) -> None:
    """x_0 .. x_T of the run are the reference's, relative to the tolerance; so are the norms ‖Δ‖, matched by client.

    For servers whose schedules `assert_schedule` compares: the updates are looked up by (client, run).
    """
    versions = np.asarray(expected.versions)
    found = result.observe_w.values
    assert found.shape == versions.shape
    np.testing.assert_allclose(found, versions, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(result.time.values, expected.times, rtol=1e-9)
    for t, record in enumerate(expected.records):
        mask = result.client_id.values[t] >= 0
        names = zip(result.client_id.values[t][mask].tolist(), result.run_index.values[t][mask].tolist(), strict=True)
        norms = dict(zip(names, result.delta_norm.values[t][mask].tolist(), strict=True))
        wanted = {(a.client, a.run): norm for a, norm in zip(record.arrivals, record.norms, strict=True)}
        assert norms.keys() == wanted.keys(), f"server step {t}"
        np.testing.assert_allclose(
            [norms[run] for run in wanted], list(wanted.values()), rtol=10 * tolerance, atol=tolerance
        )


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
