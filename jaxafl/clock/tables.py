"""`Schedule`: who arrived at every server step, as arrays; and parts of one."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxafl.options import Summarised


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Schedule(Summarised):
    """Arrivals of every server step, with their times and staleness; T server steps of at most A arrivals each.

    Versions, references and runs are numbered from the begin of the run, also where these server steps begin later.

    Attributes:
        protocol: the clock's name.
        num_clients: N.
        in_flight: the most runs under way at once.
        ring_slots: versions of the global model that must be kept.
        time: float64 [T], simulated seconds at which server step t was taken.
        mask: bool [T, A], whether the entry is an arrival; the other arrays [T, A] mean nothing where it is false.
        client, run, run_id: int32 [T, A], who arrived; the index of the run among the client's; among all runs.
        version: int32 [T, A], the version that the run trained from.
        reference: int32 [T, A], the version that its update is measured against.
        local_steps: int32 [T, A].
        started, arrived: float64 [T, A], simulated seconds.
        multiplicity: int32 [T, A], how many times an update counts.
        kind: int32 [T, A], what the protocol says of the arrival: an index into `kinds`.
        runs_begun: int32 [T], runs started up to each server step.
        kinds: what the kinds mean, where there are several.
        held: versions that server steps after the last of these may still read, see `Clock.held`.
        start: the server step that is the first of these.
    """

    protocol: str
    num_clients: int
    in_flight: int
    ring_slots: int
    time: np.ndarray
    mask: np.ndarray
    client: np.ndarray
    run: np.ndarray
    run_id: np.ndarray
    version: np.ndarray
    reference: np.ndarray
    local_steps: np.ndarray
    started: np.ndarray
    arrived: np.ndarray
    multiplicity: np.ndarray
    kind: np.ndarray
    runs_begun: np.ndarray
    kinds: tuple[str, ...] = ()
    held: tuple[int, ...] = ()
    start: int = 0

    def summary(self) -> dict[str, Any]:
        """The protocol, numbers of clients, server steps and arrivals, and the simulated time."""
        return {
            "protocol": self.protocol,
            "clients": self.num_clients,
            "server_steps": self.server_steps,
            "arrivals": int(self.mask.sum()),
            "time": f"{self.time[-1] if self.server_steps else 0:,.6g} s",
        }

    @property
    def runs_started(self) -> int:
        """Runs started up to the last server step; those that no step consumed are never trained."""
        return int(self.runs_begun[-1]) if self.server_steps else 0

    @property
    def server_steps(self) -> int:
        """T."""
        return len(self.time)

    @functools.cached_property
    def staleness(self) -> np.ndarray:
        """int32 [T, A]: τ = t - s, the versions made between an update's reference and the step that applies it; -1 for
        no arrival."""
        steps = self.start + np.arange(self.server_steps, dtype=np.int32)[:, None]
        return np.where(self.mask, steps - self.reference, -1)

    def statistics(self) -> dict[str, float]:
        """Figures of the schedule: staleness over arrivals, τ_max over steps, simulated time, arrivals per client."""
        arrivals = self.staleness[self.mask]
        worst = self.staleness.max(axis=1)[self.mask.any(axis=1)]
        per_client = np.bincount(self.client[self.mask], minlength=self.num_clients)
        quantities = {
            "server_steps": self.server_steps,
            "arrivals": len(arrivals),
            "time": self.time[-1] if self.server_steps else 0.0,
            "staleness_mean": arrivals.mean() if len(arrivals) else np.nan,
            "staleness_median": np.median(arrivals) if len(arrivals) else np.nan,
            "staleness_max": arrivals.max() if len(arrivals) else np.nan,
            "max_staleness_per_step_mean": worst.mean() if len(worst) else np.nan,
            "max_staleness_per_step_median": np.median(worst) if len(worst) else np.nan,
            "clients_heard": np.count_nonzero(per_client),
            "arrivals_per_client_min": per_client.min(),
            "arrivals_per_client_max": per_client.max(),
        }
        return {name: float(value) for name, value in quantities.items()}


def first_steps(schedule: Schedule, count: int) -> Schedule:
    """The first `count` server steps of a schedule."""
    return _with_arrays(schedule, lambda name: getattr(schedule, name)[:count])


def cut(schedule: Schedule, start: int, stop: int) -> Schedule:
    """The server steps start .. stop - 1 of a schedule; the versions that it holds are those that later ones read."""
    if (start, stop) == (schedule.start, schedule.start + schedule.server_steps):
        return schedule
    begin, end = start - schedule.start, stop - schedule.start
    held = schedule.held
    if end < schedule.server_steps:
        later = schedule.mask[end:]
        read = [column[end:][later] for column in (schedule.version, schedule.reference)]
        held = tuple(version for version in np.unique([*held, *np.concatenate(read)]).tolist() if version <= stop)
    part = _with_arrays(schedule, lambda name: getattr(schedule, name)[begin:end])
    return dataclasses.replace(part, held=held, start=start)


def joined(schedules: Sequence[Schedule]) -> Schedule:
    """Schedules of server steps that follow each other, as one."""
    if len(schedules) == 1:
        return schedules[0]
    whole = _with_arrays(schedules[0], lambda name: np.concatenate([getattr(one, name) for one in schedules]))
    return dataclasses.replace(whole, held=schedules[-1].held)


def _with_arrays(schedule: Schedule, array: Callable[[str], np.ndarray]) -> Schedule:
    names = [field.name for field in dataclasses.fields(schedule)]
    arrays: dict[str, Any] = {name: array(name) for name in names if isinstance(getattr(schedule, name), np.ndarray)}
    return dataclasses.replace(schedule, **arrays)
