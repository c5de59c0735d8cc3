"""Rules of which `free_running` is composed.

They say when the server steps (`Closes`), how stale an update may be (`Bound`), when clients start (`Begins`), and
which of them (`Selects`). A custom rule inherits from one of these.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

from jaxafl.clock import draws
from jaxafl.clock.contract import ByOptions, Delivery
from jaxafl.clock.durations.duration import Hours
from jaxafl.clock.fleet import NEVER, Fleet, LocalRun
from jaxafl.clock.idle import Awake, idle_of, take
from jaxafl.device.keys import Purpose
from jaxafl.options import Number, Part, number, static

Interval: TypeAlias = Literal["constant", "poisson"]


# ---- when the server steps


class Closes(Part):
    """Base of rules for the time of server steps.

    Attributes:
        delivers: further properties of the arrivals.
    """

    delivers: ClassVar[Delivery] = Delivery.NONE

    def arrivals(self, num_clients: int) -> int | None:
        """Returns the number of arrivals of every server step, or `None` if it may vary."""
        return None

    def full(self, taken: Sequence[LocalRun]) -> bool:
        """Returns True if the server steps with these arrivals, at the last of them."""
        return False

    def alarms(self, fleet: Fleet) -> Iterator[float]:
        """Returns the times at which the server steps whatever has arrived, in simulated seconds; by default none."""
        return iter(())


class after(Closes):
    """A server step after every M arrivals; `after(5) | every(60.0)`, or after a period, whichever comes first.

    Args:
        buffer: M, at least 1.
    """

    buffer: int = static(default=1)

    def arrivals(self, num_clients: int) -> int | None:
        return self.buffer

    def full(self, taken: Sequence[LocalRun]) -> bool:
        return len(taken) >= self.buffer

    def __or__(self, other: every) -> every:
        return dataclasses.replace(other, buffer=self.buffer)


class every(Closes):
    """A server step at P, 2P, ... seconds, or at random times, with all that has arrived since the last one.

    Args:
        period: P in simulated seconds, above 0.
        windows: seconds between these steps. `"constant"`: P. `"poisson"`: exponential, with mean P.
        buffer: arrivals M at which the server also steps; `None` for steps by time only.
    """

    period: Number = number(above=0)
    windows: Interval = static(default="constant")
    buffer: int | None = static(default=None)

    delivers = Delivery.EMPTY

    def full(self, taken: Sequence[LocalRun]) -> bool:
        return self.buffer is not None and len(taken) >= self.buffer

    def alarms(self, fleet: Fleet) -> Iterator[float]:
        period = float(self.period)
        return _times(fleet, Purpose.WINDOW, self.windows, lambda intervals: intervals * period)


def _times(fleet: Fleet, purpose: Purpose, interval: Interval, seconds: Callable[[float], float]) -> Iterator[float]:
    """Yields times that are one interval apart, the first of them after one interval.

    Args:
        fleet: the clients, for the seed.
        purpose: purpose of the draws.
        interval: `"constant"`, or `"poisson"` for exponential intervals.
        seconds: function (number of mean intervals) -> seconds.
    """
    gaps, time = draws.shares(draws.stream(fleet.seed, purpose), draws.exponential), 0.0
    for index in itertools.count():
        if interval == "constant":  # a sum of intervals would collect rounding
            time = seconds(index + 1)
        else:
            time += seconds(gaps(index))
        yield time


# ---- how stale an update may be


class Bound(Part):
    """Base of bounds of staleness; this one has none.

    Attributes:
        stops: True if runs may be stopped.
        waits: True if server steps may wait for runs.
    """

    stops: ClassVar[bool] = False
    waits: ClassVar[bool] = False

    def refuses(self, fleet: Fleet, run: LocalRun) -> bool:
        """Returns True if the server discards the update of an arriving run."""
        return False

    def must_wait(self, fleet: Fleet, coming: Sequence[LocalRun]) -> bool:
        """Returns True if the server must not step yet; `coming`: runs of this instant that come after this one."""
        return False

    def settles(self, fleet: Fleet) -> None:
        """May stop runs, after all arrivals of an instant."""


class _Limit(Bound):
    """Base of bounds R, which may grow with the versions."""

    staleness: int | Literal["sqrt"] = static()

    def at(self, version: int) -> int:
        """Returns R at a version."""
        return math.isqrt(version + 1) if self.staleness == "sqrt" else int(self.staleness)


class refuse(_Limit):
    """Updates with a staleness τ >= R are discarded; their clients restart as after any arrival.

    Args:
        staleness: R >= 1; `"sqrt"`: R = ⌊√(t + 1)⌋ at the delivery to version t.
    """

    references = ("maranjyan2025", "tyurin2023")

    def refuses(self, fleet: Fleet, run: LocalRun) -> bool:
        return fleet.version - run.reference >= self.at(fleet.version)


class stop(refuse):
    """In addition a run is stopped as soon as t - s >= R, and its client restarts from x_t.

    Runs that never arrive (infinite durations) go on.

    Args:
        staleness: R >= 1; `"sqrt"`: R = ⌊√(t + 1)⌋ at version t.
    """

    stops = True

    def settles(self, fleet: Fleet) -> None:
        if fleet.stepped == fleet.now:  # else no run has become staler
            fleet.stop_up_to(fleet.version - self.at(fleet.version))


class wait(_Limit):
    """A server step that would leave a run in flight with t - s > R waits for it, if it ever arrives.

    Args:
        staleness: R >= 1; `"sqrt"`: R = ⌊√(t + 1)⌋ at the version t that the step makes.
    """

    waits = True

    def must_wait(self, fleet: Fleet, coming: Sequence[LocalRun]) -> bool:
        first = fleet.oldest()
        versions = [run.version for run in filter(None, (*coming, first))]
        return fleet.version + 1 - min(versions, default=fleet.version) > self.at(fleet.version + 1)


# ---- when clients start


class Begins(Part):
    """Base of rules for the starts of clients; with this one each arrival starts a client, from the newest version.

    Attributes:
        newest: True if every run starts from the newest version.
        by_arrival: False if starts do not depend on arrivals.
    """

    newest: ClassVar[bool] = True
    by_arrival: ClassVar[bool] = True

    def begin(self, fleet: Fleet, clock: Any) -> None:
        """Prepares the fleet of one schedule; `fleet.due` has the first starts. State is kept in the fleet."""

    def arrives(self, fleet: Fleet, run: LocalRun) -> None:
        """Is called for an arriving run before the server decides on its update."""

    def drops(self, fleet: Fleet, run: LocalRun) -> None:
        """Is called once the server has discarded an update, or its upload has failed."""

    def steps(self, fleet: Fleet) -> None:
        """Is called after a server step."""

    def settles(self, fleet: Fleet) -> None:
        """Is called after all arrivals of an instant, and the stops that follow from them."""


class at_arrival(Begins):
    """Each arrival starts a client, from the newest version."""


class before_step(Begins):
    """Each arrival starts a client, from the version just before the arrival, as FADAS's Algorithm 1 literally says."""

    newest = False

    def arrives(self, fleet: Fleet, run: LocalRun) -> None:
        fleet.origins[run.run_id] = (fleet.version,)


class at_step(Begins):
    """The clients of a server step's arrivals are replaced together at the step.

    Args:
        skew: imitate FADAS's released code. The first M - 1 of M new runs train from x_{t-1}, but are stamped t, and
            their updates are relative to x_t.
    """

    skew: bool = static(default=False)

    newest = ByOptions(True, lambda rule: not rule.skew)

    def begin(self, fleet: Fleet, clock: Any) -> None:
        fleet.refills = False
        fleet.keeps = int(self.skew)

    def drops(self, fleet: Fleet, run: LocalRun) -> None:
        fleet.due.append(run)

    def steps(self, fleet: Fleet) -> None:
        fleet.due += fleet.taken

    def settles(self, fleet: Fleet) -> None:
        size = fleet.size or 1
        for left, run in enumerate(reversed(fleet.due) if self.skew else ()):
            fleet.origins[run.run_id] = max(fleet.version - (left % size > 0), 0), fleet.version  # type: ignore[union-attr]


class _Together(Begins):
    """Base of rules by which clients that have arrived wait, and start together in client order."""

    def start_time(self, fleet: Fleet) -> float:
        """Returns the time at which the clients of `fleet.waiting` start."""
        raise NotImplementedError

    def begin(self, fleet: Fleet, clock: Any) -> None:
        def start(first: float) -> None:
            fleet.due += sorted(fleet.waiting, key=operator.attrgetter("client"))
            fleet.waiting.clear()

        fleet.refills, fleet.begin_starts = False, start

    def arrives(self, fleet: Fleet, run: LocalRun) -> None:
        fleet.waiting.append(run)

    def settles(self, fleet: Fleet) -> None:
        if fleet.waiting:
            fleet.next_starts = self.start_time(fleet)


class open_slots(_Together):
    """All open slots are filled, from the newest version, as soon as there are enough.

    A slot opens with an arrival. One slot is `at_arrival()`; M slots are rounds of M clients.

    Args:
        slots: open slots at which clients start, at most M_c.
    """

    slots: int = static()

    def start_time(self, fleet: Fleet) -> float:
        return fleet.now if len(fleet.waiting) >= self.slots else NEVER


class grace(_Together):
    """Clients that arrive within a window start together at its end, from the newest version.

    An arrival opens a window if none is open. If no run is in flight, also because the last were stopped, the window
    closes at once. A window of 0 is `at_arrival()`, and infinity gives rounds.

    Args:
        window: W in simulated seconds, at least 0.
        close: `"end"`: the clients start W after the first arrival. `"last"`: at the last arrival of the window, which
            only a simulator knows (DeepMind's released code).

    References:
        Liu et al., "Asynchronous Local-SGD training for language modeling", 2024, Algorithm 2.
    """

    window: Number = number(least=0, infinite=True)
    close: Literal["end", "last"] = static(default="end")

    def start_time(self, fleet: Fleet) -> float:
        end = fleet.waiting[0].arrived + float(self.window)
        last = not fleet.in_flight()
        if self.close == "last" and not last:
            last = min((run.arrived for run in fleet.flying()), default=NEVER) > end
        return fleet.now if last else end


class at_rate(Begins):
    """Clients start at a rate, independently of arrivals, unless `concurrency` runs are in flight.

    Args:
        rate: starts per simulated second r, above 0.
        interval: seconds between starts. `"poisson"`: exponential, with mean 1/r. `"constant"`: 1/r. The first start is
            after one interval.
    """

    rate: Number = number(above=0)
    interval: Interval = static(default="poisson")

    by_arrival = False

    def begin(self, fleet: Fleet, clock: Any) -> None:
        rate, most = float(self.rate), clock.in_flight(fleet.num_clients)
        times = _times(fleet, Purpose.OPENING, self.interval, lambda intervals: intervals / rate)

        def start(first: float) -> None:
            full = fleet.in_flight() >= most
            if full and first == NEVER:
                fleet.gone()
            fleet.next_starts = next(times)
            if full:
                fleet.skipped += 1
            else:
                fleet.due.append(None)

        fleet.refills = False
        fleet.due.clear()
        fleet.next_starts, fleet.begin_starts = next(times), start


# ---- who starts


class Selects(Part):
    """Base of rules for the choice of an idle client; this one draws it uniformly, or by `weights` if it has some.

    Attributes:
        always: True if the rule has an effect even if all clients can be in flight.
    """

    always: ClassVar[bool] = False

    def begin(self, fleet: Fleet, most_busy: int) -> Callable[[LocalRun | None], int | None]:
        """Returns the function (ended run) -> client to start, or `None` if nobody can, of one schedule.

        The function makes the client busy. `fleet.idle` is set to an object, such as a set, whose `add(client)` is
        called when a client is idle again.
        """
        idle = fleet.idle = idle_of(fleet.num_clients, most_busy, getattr(self, "weights", None))
        return lambda ended: take(idle, fleet.share(fleet.started))


class uniformly(Selects):
    """Draws an idle client uniformly."""


class by_weight(Selects):
    """Draws an idle client with a probability proportional to its weight.

    Args:
        weights: w_i >= 0, one per client.
    """

    weights: Number = number(least=0, per_client=True)


class by_samples(Selects):
    """Draws an idle client with a probability proportional to its number of samples n_i."""


class within(Selects):
    """Draws an idle client within its hours; a start that is due waits until there is one.

    Args:
        hours: the hours, e.g. `available(22, 6, zones=4)`.
    """

    hours: Hours = dataclasses.field()

    always = True

    def begin(self, fleet: Fleet, most_busy: int) -> Callable[[LocalRun | None], int | None]:
        idle = fleet.idle = Awake(self.hours, fleet.num_clients, fleet.seed)

        def choose(ended: LocalRun | None) -> int | None:
            found, time = idle.awake(fleet.now)
            fleet.wakes = NEVER if len(found) else time
            if not len(found):
                return None
            client = int(found[int(fleet.share(fleet.started) * len(found))])
            idle.remove(client)
            return client

        return choose
