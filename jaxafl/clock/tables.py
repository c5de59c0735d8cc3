"""`Schedule`, the arrivals of all server steps as arrays, and functions for parts of it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxafl.clock.contract import Delivery
from jaxafl.clock.privacy import Accountant, How, Mechanism, Takings, privacy_of
from jaxafl.clock.ragged import COLUMNS, Column, Ragged
from jaxafl.options import Summarised, UserError

if TYPE_CHECKING:
    import xarray as xr


class Source(NamedTuple):
    """Clock, seed and local steps of a schedule, and the runs of the clock's state after the last server step.

    Times of runs in flight include the pauses of the server steps.
    """

    clock: Any
    seed: int
    runs: tuple[Any, ...]
    local_steps: Any


class Untaken(NamedTuple):
    """Runs that clients complete and no server step takes, [U]; see `Schedule` for the fields."""

    client: np.ndarray
    run: np.ndarray
    version: np.ndarray
    reference: np.ndarray
    local_steps: np.ndarray
    started: np.ndarray
    arrived: np.ndarray
    step: np.ndarray  # the next server step after the run ends


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Schedule(Summarised):
    """Arrivals of every server step, with their times and staleness; T server steps of at most A arrivals each.

    Versions, references and runs are numbered from the beginning of the simulation, even if `start` is not 0.

    Attributes:
        protocol: name of the clock.
        num_clients: N.
        in_flight: maximum number of runs in flight at once.
        ring_slots: number of model versions that must be kept.
        time: float64 [T], times of the server steps in simulated seconds.
        mask: bool [T, A], True for arrivals. False is padding, for which the other arrays [T, A] are undefined.
        client, run, run_id: int32 [T, A], client; index of the run among the client's runs; index among all runs.
        version: int32 [T, A], version of the run's start model.
        reference: int32 [T, A], version to which the update is relative.
        local_steps: int32 [T, A], local steps of the run.
        started, arrived: float64 [T, A], start and arrival of the run in simulated seconds.
        multiplicity: int32 [T, A], number of times the update counts.
        kind: int32 [T, A], kind of the arrival as an index into `kinds`.
        runs_begun: int32 [T], runs started up to each server step.
        runs_refused, runs_stopped, runs_lost: int32 [T], runs up to each server step whose update the server discarded,
            that the server stopped, and whose upload failed. No server step consumes them, and they are not trained,
            unless clients keep something from run to run.
        starts_skipped: int32 [T], starts at a rate up to each server step for which no client was idle.
        kinds: meanings of the kinds, if there are several.
        held: versions that server steps after the last one may still need, see `Clock.held`.
        start: index of the first server step.
        source: clock, seed and last state of a complete schedule; `None` of a part.
        untaken: runs that clients complete and no server step takes, if they were asked for.
        mechanism: function that returns the noise of the simulation, for `privacy`; `None` without a simulation.
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
    runs_refused: np.ndarray
    runs_stopped: np.ndarray
    runs_lost: np.ndarray
    starts_skipped: np.ndarray
    kinds: tuple[str, ...] = ()
    held: tuple[int, ...] = ()
    start: int = 0
    source: Source | None = None
    untaken: Untaken | None = None
    mechanism: Callable[[], Mechanism] | None = None

    def summary(self) -> dict[str, Any]:
        """Returns the protocol, the numbers of clients, server steps, arrivals and discarded runs, and the time."""
        discarded = {name: int(getattr(self, f"runs_{name}")[-1:].sum()) for name in ("refused", "stopped", "lost")}
        return {
            "protocol": self.protocol,
            "clients": self.num_clients,
            "server_steps": self.server_steps,
            "arrivals": len(self.of_arrivals("client")),
            **{name: count for name, count in discarded.items() if count},
            "time": f"{self.time[-1] if self.server_steps else 0:,.6g} s",
        }

    @property
    def runs_started(self) -> int:
        """Number of runs started up to the last server step; runs that no step consumes are usually not trained."""
        return int(self.runs_begun[-1]) if self.server_steps else 0

    @property
    def server_steps(self) -> int:
        """Number of server steps T."""
        return len(self.time)

    def of_arrivals(self, name: str) -> np.ndarray:
        """Returns a column of all arrivals in their order, [E]."""
        column = vars(self)[name]
        return column.values if isinstance(column, Ragged) else column[self.mask]

    @property
    def taken(self) -> np.ndarray:
        """Number of arrivals of each server step, int [T]."""
        mask = vars(self)["mask"]
        return mask.taken if isinstance(mask, Ragged) else mask.sum(axis=1)

    def under_way(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns client and start of the runs in flight after the last server step, int and float64 [F].

        Empty for a part of a schedule, and for clocks that do not keep runs in their state.
        """
        found = [(np.zeros(0, int), np.zeros(0))]
        clock: Any
        clock, _, known, _ = self.source or (None, 0, (), 0)
        for runs in known if self.server_steps else ():
            flying = (runs.started <= self.time[-1]) & (runs.arrived > self.time[-1])
            if not hasattr(clock, "in_flight_runs"):  # others mark idle clients by an infinite arrival
                flying &= np.isfinite(runs.arrived)
            found.append((runs.client[flying], runs.started[flying]))
        client, started = map(np.concatenate, zip(*found, strict=True))
        return client.astype(int), started

    @functools.cached_property
    def staleness(self) -> np.ndarray:
        """Staleness τ = t - s of the updates, int32 [T, A]: versions since their reference; -1 for padding."""
        steps = self.start + np.arange(self.server_steps, dtype=np.int32)[:, None]
        return np.where(self.mask, steps - self.reference, -1)

    def privacy(
        self,
        noise_multiplier: Any = None,
        *,
        delta: float,
        how: How = "participation",
        accountant: Accountant = "tight",
    ) -> xr.Dataset:
        """Computes ε(δ) of every client for an observer of all versions, from its participations.

        The noise has the standard deviation z C, with the clipping norm C of every update, and is added to the sum of
        the updates of a server step, or by every client to its update. With the squared multiplicities m_it² of client
        i in server step t (1 per update if the noise is the client's), all releases about client i are one Gaussian
        mechanism with μ_i² = Σ_t m_it² / z². A server that keeps the last update of every client has m_it = 1 in all
        server steps after the first arrival.

        Args:
            noise_multiplier: z > 0, or one per client [N] if the noise is the client's. `None` reads it from the
                server's `aggregate` or from `Client(upload=...)`.
            delta: δ in (0, 1).
            how: `"participation"` has no amplification by sampling. `"tree"` is for the noise of a binary tree over
                server steps (DP-FTRL), z C in each node. `"sampled"` takes every server step as a Poisson sample of
                all clients, which it is not with clients that arrive at any time: then it is optimistic.
            accountant: `"tight"` is exact, and of `"sampled"` needs dp-accounting (the extra `privacy`); its curve
                then has 16 steps, each an upper bound. `"rdp"` uses Rényi divergences, and has a larger ε.

        Returns:
            `epsilon` and `sensitivity` (μ_i) along `population`; `max_epsilon`, the largest ε so far, along `step` with
            its `time`. The attributes say what is assumed.

        Raises:
            ValueError: participations or weights depend on data, or z is not known.

        References:
            McMahan, Ramage, Talwar, Zhang (2018), "Learning differentially private recurrent language models", ICLR;
            Balle, Wang (2018), "Improving the Gaussian mechanism for differential privacy", ICML; Kairouz et al.
            (2021), "Practical and private (deep) learning without sampling or shuffling", ICML.

        Examples:
            >>> import jaxafl as afl
            >>> schedule = afl.clock.schedule(afl.clock.synchronous(), num_clients=4, local_steps=1, server_steps=16)
            >>> schedule.privacy(noise_multiplier=4.0, delta=1e-5).max_epsilon[-1].round(4).item()
            4.3772
        """
        if self.start:
            raise UserError("privacy: this is a part of a schedule; expected one from the first server step on")
        drawn = self.source is None or Delivery.CONTINUOUS not in self.source.clock.delivers
        mechanism = self.mechanism() if self.mechanism else Mechanism(drawn=drawn)
        return privacy_of(self.takings, mechanism, noise_multiplier, delta, how, accountant)

    @property
    def takings(self) -> Takings:
        """The arrivals that server steps take."""
        return Takings(self.client, self.run, self.multiplicity, self.mask, self.time, self.num_clients)

    def statistics(self) -> dict[str, float]:
        """Computes statistics of staleness (over arrivals, and τ_max over steps), simulated time and arrivals."""
        taken = self.taken
        arrivals = np.repeat(self.start + np.arange(len(taken)), taken) - self.of_arrivals("reference")
        worst = np.maximum.reduceat(arrivals, (np.cumsum(taken) - taken)[taken > 0]) if len(arrivals) else arrivals
        per_client = np.bincount(self.of_arrivals("client"), minlength=self.num_clients)
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


for _name in COLUMNS:
    setattr(Schedule, _name, Column(_name))


def first_steps(schedule: Schedule, count: int) -> Schedule:
    """Returns the first `count` server steps of a schedule; the schedule itself if there are no more."""
    return schedule if count == schedule.server_steps else _within(schedule, 0, count)


def cut(schedule: Schedule, start: int, stop: int) -> Schedule:
    """Returns the server steps start .. stop - 1 of a schedule; `held` are the versions that later steps need."""
    if (start, stop) == (schedule.start, schedule.start + schedule.server_steps):
        return schedule
    begin = start - schedule.start
    end = stop - schedule.start
    held = schedule.held
    if end < schedule.server_steps:
        later = _within(schedule, end, None)
        read = [later.of_arrivals(name) for name in ("version", "reference")]
        if schedule.untaken is not None:
            read += [column[schedule.untaken.step >= stop] for column in schedule.untaken[2:4]]
        held = tuple(version for version in np.unique([*held, *np.concatenate(read)]).tolist() if version <= stop)
    return replaced(_within(schedule, begin, end), held=held, start=start)


def joined(schedules: Sequence[Schedule]) -> Schedule:
    """Concatenates schedules of consecutive server steps."""
    if len(schedules) == 1:
        return schedules[0]
    columns = zip(*(_columns(one).items() for one in schedules), strict=True)
    arrays = {parts[0][0]: _concatenated([value for _, value in parts]) for parts in columns}
    listed = [one.untaken for one in schedules if one.untaken is not None]
    untaken = Untaken(*map(np.concatenate, zip(*listed, strict=True))) if listed else None
    return replaced(schedules[0], **arrays, held=schedules[-1].held, untaken=untaken, source=None)


def replaced(schedule: Schedule, **changes: Any) -> Schedule:
    """Returns a schedule with other fields. `dataclasses.replace` would build the tables of all arrivals."""
    names = [field.name for field in dataclasses.fields(schedule)]
    return type(schedule)(**({name: vars(schedule)[name] for name in names} | changes))


def _columns(schedule: Schedule) -> dict[str, np.ndarray | Ragged]:
    """Returns the fields with a value for each server step or arrival."""
    names = [field.name for field in dataclasses.fields(schedule)]
    return {name: vars(schedule)[name] for name in names if isinstance(vars(schedule)[name], np.ndarray | Ragged)}


def _concatenated(parts: Sequence[np.ndarray | Ragged]) -> np.ndarray | Ragged:
    if all(isinstance(one, Ragged) for one in parts):
        values, taken, widths = zip(*parts, strict=True)
        return Ragged(np.concatenate(values), np.concatenate(taken), widths[0])
    return np.concatenate([one.table() if isinstance(one, Ragged) else one for one in parts])


def _within(schedule: Schedule, begin: int, end: int | None) -> Schedule:
    """Returns the server steps from `begin` up to `end`, counted from those of the schedule."""
    columns = _columns(schedule).items()
    arrays = {name: one.cut(begin, end) if isinstance(one, Ragged) else one[begin:end] for name, one in columns}
    return replaced(schedule, **arrays, source=None)
