"""Replay of recorded durations, and of protocols with recorded draws."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxafl.clock.contract import Clock
from jaxafl.clock.durations.duration import POINTS, Draw, Duration, Run, Times, worked
from jaxafl.options import as_numbers, in_order, static

C = TypeVar("C", bound=Clock)


class recorded(Duration):
    """Durations replayed from an array [client, run] in seconds (seconds per local step with `per="step"`).

    Runs are counted per client in start order. Clients may have different numbers of recorded runs, at least one each:
    give lists of different lengths, or NaN after a client's last run. A run with an infinite duration never arrives. A
    schedule that needs an unrecorded run raises an error that names the run.

    Args:
        times: recorded durations in seconds, at least 0; an array [client, run] or a list of one list per client.
        per: unit of the times. `"run"`: seconds per run. `"step"`: seconds per local step, multiplied by the run's
            number of local steps.

    Raises:
        TypeError: `times` contains values that are not numbers.
    """

    times: Array | np.ndarray
    per: Literal["run", "step"] = static(default="run")

    terms = 0

    def __post_init__(self) -> None:
        times = in_order("recorded durations", "times", self.times)
        if isinstance(times, list | tuple | np.ndarray):
            if getattr(times, "dtype", "O") == "O" and all(np.ndim(row) == 1 for row in times):
                # rows may have different lengths; NaN after the last run of a client
                times = list(zip(*itertools.zip_longest(*times, fillvalue=np.nan), strict=True))
            object.__setattr__(self, "times", as_numbers("recorded durations", "times", times))
        super().__post_init__()

    def check(self, num_clients: int) -> None:
        times = np.asarray(self.times)
        if times.ndim != 2 or times.shape[0] != num_clients or times.shape[1] == 0:
            raise ValueError(
                f"recorded durations must be an array [client, run] with {num_clients} clients and at least one run "
                f"each, got shape {times.shape}"
            )
        runs = np.maximum(_counts(times), 1)
        wrong = ~(times >= 0) & (np.arange(times.shape[1]) < runs[:, None])
        if wrong.any():
            client, run = np.argwhere(wrong)[0]
            raise ValueError(
                f"recorded durations must be numbers >= 0 (infinity: the run never arrives); {wrong.sum()} are not, "
                f"the first of them is {times[client, run]} (client {client}, run {run})"
            )

    def prepare(self, keys: Sequence[Array], num_clients: int) -> Array:
        return jnp.float64(self.times)

    def draw(self, prepared: Array, run: Run) -> Draw:
        time = prepared.at[run.client, run.run].get(mode="fill")  # with NaN
        return worked(time * run.local_steps if self.per == "step" else time)

    def step_times(self, num_clients: int, seed: int = 0) -> Times:
        times = np.asarray(self.times, np.float64)
        counts = _counts(times)[:, None]
        most = times.shape[1]
        if (counts < most).any():  # resamples every client's runs with equal weights to a common number of columns
            most = max(most, POINTS)
            place = ((np.arange(most) + 0.5) / most * counts).astype(int)
            times = np.take_along_axis(times, place, axis=1)
        return (np.zeros_like(times), times) if self.per == "step" else (times, np.zeros_like(times))


def trace(protocol: C | type[C], *, durations: Any = None, per: Literal["run", "step"] = "run", **recordings: Any) -> C:
    """Returns a protocol with its random draws replaced by recorded ones.

    Args:
        protocol: a clock, e.g. `free_running(...)`; or a clock's class, with its other options by name:
            `trace(free_running, concurrency=6, durations=table)`.
        durations: durations in seconds, [client, run], with runs counted per client in start order (see `recorded`);
            `None` keeps the protocol's durations.
        per: unit of the durations. `"run"`: seconds per run. `"step"`: seconds per local step.
        **recordings: recorded draws by name. `starts` [start] for `free_running` (the first M_c are in flight at time
            0); `sets` [round, n] for `synchronous`, `sampled`, `interrupting` and `stale_rounds`; `stale` [round, J]
            for `stale_rounds`; `uploads` and `downloads` [tick, client] for `bernoulli`.

    Returns:
        A clock of the same protocol.

    Raises:
        ValueError: a recording has rows of different lengths.
        TypeError: the protocol has no draw of a recording's name, or durations are not numbers.
    """
    if durations is not None:
        recordings["durations"] = durations if isinstance(durations, Duration) else recorded(durations, per)
    return protocol(**recordings) if isinstance(protocol, type) else dataclasses.replace(protocol, **recordings)


def _counts(times: np.ndarray) -> np.ndarray:
    """Returns the number of recorded runs per client, int [client], up to the last run that is not NaN."""
    return np.max(np.where(np.isnan(times), 0, np.arange(1, times.shape[1] + 1)), axis=1, initial=0)
