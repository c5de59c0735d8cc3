"""Recorded times at which devices are active, such as FedScale's."""

from __future__ import annotations

import functools
import json
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxafl.clock.durations.duration import Draw, Duration, Run
from jaxafl.options import UserError, static

Intervals = tuple[Any, Any, Any]  # begin [..., K], end [..., K] and period [...] in seconds


class activity(Duration):
    """Hours of recorded devices: `free_running(10, hours=activity("devices.json"), durations=...)`.

    Client i is device i mod D of the file. It is active at time t if begin_k <= t mod P <= end_k for one of its
    intervals k. A client is drawn only while it is active. As a term of durations, a run waits for the next interval
    instead, and nothing is lost.

    Args:
        file: JSON of FedScale's form, `{id: {"active": [begins], "inactive": [ends], "finish_time": P}}`, in seconds.
            A pickle of FedScale becomes JSON by `json.dump(pickle.load(open("client_behave_trace", "rb")), file)`.
        loses: as hours, an update is lost if its client is not active when its run ends, as in FedScale.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file has another form.

    References:
        Lai et al., "FedScale: Benchmarking model and system performance of federated learning at scale", ICML 2022.
    """

    file: str | os.PathLike[str] = static()
    loses: bool = static(default=True)

    waits = True

    @property
    def day(self) -> float:
        """Longest period of a device in seconds."""
        return float(max(_read(self.file)[2]))

    def check(self, num_clients: int) -> None:
        _read(self.file)

    def prepare(self, keys: Sequence[Array], num_clients: int) -> Intervals:
        device = np.arange(num_clients) % len(_read(self.file)[2])
        begin, end, period = (column[device] for column in _read(self.file))
        return begin, end, period

    def hours_of(self, seed: int, num_clients: int) -> Callable[[float], np.ndarray]:
        """Returns a function now -> seconds until each client is active, float64 [N], for hours of a clock."""
        return functools.partial(_waiting, np, self.prepare((), num_clients))

    def draw(self, prepared: Intervals, run: Run) -> Draw:
        begin, end, period = (jnp.asarray(column)[run.client] for column in prepared)
        wait = _waiting(jnp, (begin, end, period), run.now)
        return Draw(jnp.zeros_like(wait), wait)


def _waiting(numpy: Any, intervals: Intervals, now: Any) -> Any:
    """Returns the seconds until the next interval, with the functions of NumPy or of JAX."""
    begin, end, period = intervals
    phase = (now % period)[..., None]
    inside = ((begin <= phase) & (phase <= end)).any(-1)
    return numpy.where(inside, 0.0, ((begin - phase) % period[..., None]).min(-1))


def _read(file: str | os.PathLike[str]) -> Intervals:
    return _parsed(os.fspath(file), os.stat(file).st_mtime_ns)


@functools.lru_cache(8)
def _parsed(file: str, changed: int) -> Intervals:
    """Reads the intervals of all devices; shorter lists repeat their last interval."""
    try:
        devices = list(json.loads(pathlib.Path(file).read_text()).values())
        rows = [[np.asarray(one[name], np.float64) for name in ("active", "inactive")] for one in devices]
        period = np.array([one["finish_time"] for one in devices], np.float64)
        longest = max(len(begin) for begin, _ in rows)
        begin, end = (
            np.stack([np.pad(row[side], (0, longest - len(row[side])), "edge") for row in rows]) for side in (0, 1)
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"activity: {file} has another form ({error!r}); expected JSON of FedScale's form, see afl.clock.activity"
        ) from error
    if not (period > 0).all() or not ((begin >= 0) & (begin <= end) & (end <= period[:, None])).all():
        raise UserError(
            f"activity: {file}: expected 0 <= active <= inactive <= finish_time for every interval, above 0"
        )
    return begin, end, period
