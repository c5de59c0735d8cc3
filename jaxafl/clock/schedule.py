"""`Schedule`, the arrivals of all server steps as arrays, and functions for parts of it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from jaxafl.clock.accounts.contract import How, Mechanism
from jaxafl.clock.contract import Delivery
from jaxafl.clock.fleet import REASONS, LocalRun
from jaxafl.options import Summarised, UserError

if TYPE_CHECKING:
    import xarray as xr

FLYING, WAITING = "flying", "waiting"
COMPLETED = ("refused", "lost", "late")
"""Reasons of runs that clients complete and no server step takes."""
PER_STEP = ("time", "runs_begun", "runs_refused", "runs_stopped", "runs_lost", "starts_skipped")
"""Columns of server steps of every schedule."""
PER_ARRIVAL = (*LocalRun._fields, "multiplicity", "kind")
"""Columns of arrivals of every schedule."""


class Source(NamedTuple):
    """Clock, seed and local steps of a complete schedule."""

    clock: Any
    seed: int
    local_steps: Any


class Unused(NamedTuple):
    """Runs that no server step takes, [U]; see `Schedule` for the fields.

    The reason is `"refused"`, `"stopped"`, `"lost"`, `"late"` (the client sends another run), `"abandoned"`
    (the client gives it up), or at the end of a complete schedule `"flying"` for a run in flight, and `"waiting"` for
    one that has ended, and that a later server step may take or replace. Clients complete those that were refused, lost
    or late.
    """

    client: np.ndarray
    run: np.ndarray
    run_id: np.ndarray
    version: np.ndarray
    reference: np.ndarray
    local_steps: np.ndarray
    started: np.ndarray
    ended: np.ndarray
    work: np.ndarray  # up to the end of the run, or to the last server step
    step: np.ndarray  # the next server step after the run ends, or after it is given up
    reason: np.ndarray

    def where(self, chosen: np.ndarray) -> Unused:
        """Returns the chosen runs; `chosen` is a mask or indices."""
        return Unused(*(column[chosen] for column in self))

    @property
    def completed(self) -> Unused:
        """The runs that clients complete."""
        return self.where(np.isin(self.reason, COMPLETED))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Schedule(Summarised):
    """Arrivals of every server step, with their times and staleness.

    T server steps have E arrivals in all, and at most A each. The columns of arrivals are stored one after another, and
    `of_arrivals` returns them so, [E]. As attributes they are tables [T, A], padded with zeros. Versions, references
    and runs are numbered from the beginning of the simulation, even if `start` is not 0.

    Attributes:
        protocol: name of the clock.
        num_clients: N.
        in_flight: maximum number of runs in flight at once.
        taken: int [T], number of arrivals of each server step.
        per_step: the columns of server steps, each [T].
        per_arrival: the columns of arrivals, each [E].
        unused: runs that no server step takes.
        kinds: meanings of the kinds, if there are several.
        by_client: True if entry i of a table is client i.
        held: versions that server steps after the last one may still need.
        start: index of the first server step.
        waits: True if a run may wait at first, as for hours, and works up to its end. Otherwise it works first.
        source: clock, seed and local steps of a complete schedule; `None` of a part.
        mechanism: function that returns the noise of the simulation, for `privacy`; `None` without a simulation.
        traffic: function that returns the bytes of an upload and of a download, for `energy`.
        time: float64 [T], times of the server steps in simulated seconds.
        mask: bool [T, A], True for arrivals. False is padding.
        client, run, run_id: int32 [T, A], client; index of the run among the client's runs; index among all runs.
        version: int32 [T, A], version of the run's start model.
        reference: int32 [T, A], version to which the update is relative.
        local_steps: int32 [T, A], local steps of the run.
        started, arrived: float64 [T, A], start and arrival of the run in simulated seconds.
        work: float64 [T, A], simulated seconds in which the client works.
        multiplicity: int32 [T, A], number of times the update counts.
        kind: int32 [T, A], kind of the arrival as an index into `kinds`, of every client if `by_client`.
        runs_begun: int32 [T], runs started up to each server step, with those whose model is on its way to a region.
        runs_refused, runs_stopped, runs_lost: int32 [T], runs up to each server step whose update the server discarded,
            that the server stopped, and whose upload failed. No server step consumes them, and they are not trained,
            unless clients keep something from run to run.
        starts_skipped: int32 [T], starts at a rate up to each server step for which no client was idle.
    """

    protocol: str
    num_clients: int
    in_flight: int
    taken: np.ndarray
    per_step: dict[str, np.ndarray]
    per_arrival: dict[str, np.ndarray]
    unused: Unused
    kinds: tuple[str, ...] = ()
    by_client: bool = False
    held: tuple[int, ...] = ()
    start: int = 0
    waits: bool = False
    source: Source | None = None
    mechanism: Callable[[], Mechanism] | None = None
    traffic: Callable[[], tuple[int, int]] | None = None

    def __getattr__(self, name: str) -> np.ndarray:
        """Returns a column of server steps [T], or of arrivals as a table [T, A]."""
        if name in vars(self).get("per_step", ()):
            return self.per_step[name]
        if name in vars(self).get("per_arrival", ()):
            return vars(self).setdefault(name, self.table(name))  # which is found there from now on
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def summary(self) -> dict[str, Any]:
        """Returns the protocol, the numbers of clients, server steps, arrivals and discarded runs, and the time."""
        discarded = {name: int(self.per_step[f"runs_{name}"][-1:].sum()) for name in REASONS}
        return {
            "protocol": self.protocol,
            "clients": self.num_clients,
            "server_steps": self.server_steps,
            "arrivals": int(self.taken.sum()),
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
        return len(self.taken)

    @property
    def ring_slots(self) -> int:
        """Number of model versions that are needed at once."""
        versions = np.concatenate([self.of_arrivals("version"), self.of_arrivals("reference")])
        last = np.arange(self.start + self.server_steps + 1)
        np.maximum.at(last, versions, np.tile(np.repeat(self.start + np.arange(self.server_steps), self.taken), 2))
        ends = np.bincount(last, minlength=len(last))
        return 1 + int((np.arange(1, len(last) + 1) - np.cumsum(ends)).max())

    def of_arrivals(self, name: str) -> np.ndarray:
        """Returns a column of all arrivals in their order, [E]."""
        return self.per_arrival[name]

    def table(self, name: str) -> np.ndarray:
        """Returns a column of arrivals as an array [T, A], with zeros for padding."""
        found = np.zeros(self.mask.shape, self.per_arrival[name].dtype)
        found[self.mask] = self.per_arrival[name]
        if self.by_client and name == "client":
            found[:] = np.arange(self.num_clients)
        return found

    @functools.cached_property
    def mask(self) -> np.ndarray:
        """True for arrivals, bool [T, A]."""
        if not self.by_client:
            return np.arange(self.taken.max(initial=0)) < self.taken[:, None]
        mask = np.zeros((self.server_steps, self.num_clients), bool)
        mask[np.repeat(np.arange(self.server_steps), self.taken), self.per_arrival["client"]] = True
        return mask

    @functools.cached_property
    def staleness(self) -> np.ndarray:
        """Staleness τ = t - s of the updates, int32 [T, A]: versions since their reference; -1 for padding."""
        steps = self.start + np.arange(self.server_steps, dtype=np.int32)[:, None]
        return np.where(self.mask, steps - self.table("reference"), np.int32(-1))

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """Values of the clock itself by name, one per server step [T] or per arrival [E]."""
        every = self.per_step | self.per_arrival
        return {name: every[name] for name in every if name not in PER_STEP + PER_ARRIVAL}

    def privacy(self, noise_multiplier: Any = None, *, delta: float, how: How = "participation") -> xr.Dataset:
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
                all clients, which it is not with clients that arrive at any time: then it is optimistic. It needs
                dp-accounting (the extra `privacy`), and its curve has 16 steps, each an upper bound.

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
        from jaxafl.clock.accounts.privacy import privacy_of

        if self.source is None:
            raise UserError("privacy: this is a part of a schedule, as of a training; expected that of sim.schedule(T)")
        drawn = Delivery.CONTINUOUS not in self.source.clock.delivers
        mechanism = self.mechanism() if self.mechanism else Mechanism(drawn=drawn)
        return privacy_of(self, mechanism, noise_multiplier, delta, how)

    def energy(
        self,
        watts: Any,
        idle_watts: Any = 0.0,
        joule_per_byte: Any = 0.0,
        intensity: Any = 0.0,
        *,
        period: float | None = None,
        size: tuple[float, float] | None = None,
    ) -> xr.Dataset:
        """Computes the energy and the carbon of every client, up to the last server step at T.

        joules = watts · busy + idle_watts · (T - busy) + joule_per_byte · (bytes up + down). Busy are the seconds of
        work of all runs up to T: also of those that were refused, lost or late, of stopped ones until the stop, and of
        those in flight until T. Transfers of `link` are work. A run works first, and hangs afterwards. With durations
        that wait (hours, sessions, measured availability) it works in its last seconds, a run whose client has left
        does not work, and work that `sessions(cut="restart")` throws away does not count. Every run downloads a model.
        Updates that a server step takes, refused and lost ones, and those that wait for a step are uploaded at the end
        of the run; `sampled` uploads those that it draws, each time. All clients need `idle_watts` when they do not
        work, also those that never take part. The server is not counted.

        grams = Σ kWh · intensity, with the intensity at the time of the work, or of the end of the run for bytes.

        Args:
            watts: power of a working client, >= 0, one number or one per client [N].
            idle_watts: power of a client that does not work, in the same form.
            joule_per_byte: energy of a byte at the client, in the same form.
            intensity: grams of CO₂ per kWh, >= 0: a number, one per client [N], or `(times, values)`, a value [K], or
                [K, N] per client, from each time on, in seconds from 0. With one more time than values, the last one
                is the end.
            period: seconds after which the intensity repeats; `None` if it does not.
            size: bytes of an upload and of a download; `None` takes those of the simulation.

        Returns:
            `busy_seconds`, `joules` and `grams` along `population`; the attribute `seconds` is T.

        Raises:
            ValueError: a number is negative, the intensity ends before T, the clock has no durations, or bytes are not
                known.

        Examples:
            >>> import jaxafl as afl
            >>> clock = afl.clock.synchronous(durations=afl.clock.constant([1.0, 2.5]))
            >>> schedule = afl.clock.schedule(clock, num_clients=2, local_steps=1, server_steps=2)
            >>> schedule.energy(watts=10, idle_watts=2, joule_per_byte=1e-6, size=(1e6, 1e6)).joules.values.tolist()
            [30.0, 54.0]
        """
        from jaxafl.clock.accounts.energy import energy_of

        if size is None and np.any(joule_per_byte) and self.traffic is None:
            raise UserError(
                "energy: the bytes of a run are not known; expected size=(up, down), or a simulation's schedule"
            )
        size = size or (self.traffic() if self.traffic and np.any(joule_per_byte) else (0.0, 0.0))
        return energy_of(self, watts, idle_watts, joule_per_byte, intensity, period, size)

    def statistics(self) -> dict[str, float]:
        """Computes statistics of staleness (over arrivals, and τ_max over steps), simulated time and arrivals."""
        nothing = np.full(int(not self.taken.any()), np.nan)
        ages = np.append(nothing, self.staleness[self.mask])
        worst = np.append(nothing, self.staleness.max(axis=1, initial=-1)[self.taken > 0])
        per_client = np.bincount(self.per_arrival["client"], minlength=self.num_clients)
        quantities = {
            "server_steps": self.server_steps,
            "arrivals": per_client.sum(),
            "time": self.time[-1] if self.server_steps else 0.0,
            "staleness_mean": ages.mean(),
            "staleness_median": np.median(ages),
            "staleness_max": ages.max(),
            "max_staleness_per_step_mean": worst.mean(),
            "max_staleness_per_step_median": np.median(worst),
            "clients_heard": np.count_nonzero(per_client),
            "arrivals_per_client_min": per_client.min(),
            "arrivals_per_client_max": per_client.max(),
        }
        return {name: float(value) for name, value in quantities.items()}


def cut(schedule: Schedule, start: int, stop: int) -> Schedule:
    """Returns the server steps start .. stop - 1 of a schedule; `held` are the versions that later steps need."""
    begin, end, held = start - schedule.start, stop - schedule.start, schedule.held
    if (begin, end) == (0, schedule.server_steps):
        return schedule
    if end < schedule.server_steps:
        later = _within(schedule, end, None)
        arrivals, unused = later.per_arrival, later.unused
        read = arrivals["version"], arrivals["reference"], unused.version, unused.reference
        held = tuple(version for version in np.unique([*held, *np.concatenate(read)]).tolist() if version <= stop)
    return dataclasses.replace(_within(schedule, begin, end), held=held, start=start)


def joined(schedules: Sequence[Schedule]) -> Schedule:
    """Concatenates schedules of consecutive server steps."""
    if len(schedules) == 1:
        return schedules[0]

    names = "taken", "per_step", "per_arrival", "unused"
    tables = [{name: getattr(one, name) for name in names} for one in schedules]
    whole = jax.tree.map(lambda *parts: np.concatenate(parts), *tables)
    return dataclasses.replace(schedules[0], **whole, held=schedules[-1].held, source=None)


def steps_of(parts: Sequence[Schedule], start: int, stop: int) -> Schedule:
    """Returns the server steps start .. stop - 1 of a schedule that is given in consecutive parts."""
    within = [part for part in parts if part.start < stop and start < part.start + part.server_steps]
    return cut(joined(within or parts[:1]), start, stop)


def _within(schedule: Schedule, begin: int, end: int | None) -> Schedule:
    """Returns the server steps from `begin` up to `end`, counted from those of the schedule."""
    begin, end, _ = slice(begin, end).indices(schedule.server_steps)
    ends = np.concatenate([[0], np.cumsum(schedule.taken)])
    runs, steps = slice(ends[begin], ends[end]), slice(begin, end)
    step = schedule.unused.step - schedule.start
    return dataclasses.replace(
        schedule,
        taken=schedule.taken[steps],
        per_step={name: one[steps] for name, one in schedule.per_step.items()},
        per_arrival={name: one[runs] for name, one in schedule.per_arrival.items()},
        unused=schedule.unused.where((step >= begin) & (step < end)),
        source=None,
    )
