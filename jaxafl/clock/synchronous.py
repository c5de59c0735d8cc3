"""Rounds that end with their slowest client, or earlier: the clock of FedAvg."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import Any, Literal

import numpy as np

from jaxafl.clock import draws
from jaxafl.clock.contract import ByOptions, Clock, Delivery, Recording
from jaxafl.clock.durations.duration import Duration, Hours, constant
from jaxafl.clock.fleet import NEVER, Fleet, LocalRun, Steps
from jaxafl.clock.idle import Awake, idle_of, take
from jaxafl.clock.options import check_recording, check_selection, fail_if
from jaxafl.device.keys import Purpose
from jaxafl.options import Number, check_whole, number, recording, static

_ROUNDING = 1e-9  # 0.07 · 100 is above 7 in floating point


def drawn_clients(fleet: Fleet, round: int, size: int, *, replacement: bool = False, weights: Any = None) -> list[int]:
    """Draws the clients of a round in draw order, or returns the recorded ones.

    Args:
        fleet: the clients.
        round: index of the round.
        size: number of clients to draw.
        replacement: draw with replacement.
        weights: weights w_i >= 0 of the clients; `None` for uniform draws.
    """

    def draw() -> list[int]:
        if size == fleet.num_clients and weights is None and not replacement:
            return list(range(size))
        shares = [fleet.share(round * size + place) for place in range(size)]
        idle = idle_of(fleet.num_clients, size, weights)
        return [idle.draw(share) if replacement else take(idle, share) for share in shares]

    return fleet.drawn("sets", round, draw)


def drawn_from(fleet: Fleet, round: int, clients: np.ndarray, size: int | None) -> list[int]:
    """Draws `size` of some clients [C] for a round, uniformly without replacement; all if there are no more."""
    priority = draws.uniform(draws.threefry(draws.stream(fleet.seed, Purpose.START), round, clients))
    return clients[np.argsort(priority, kind="stable")[:size]].tolist()


class synchronous(Clock):
    """Rounds of n clients that train from the newest version; the server waits for the slowest.

    Args:
        cohort: clients per round n, drawn without replacement; `None` takes all clients.
        durations: duration of a run in simulated seconds. A round lasts as long as its slowest run.
        replacement: draw with replacement. A client drawn k times trains once, and its update counts k times.
        extra: further clients o per round. The round ends with the n-th arrival, and the other runs are stopped.
        deadline: seconds after which a round ends with the clients that have arrived, if there are any, or else with
            the first one. An arrival at the deadline counts. The other runs are stopped. A round in which no run ever
            arrives (infinite durations) is repeated after the deadline.
        deadline_quantile: q in (0, 1], for the arrival of the ⌈qm⌉-th of the round's m runs as the deadline.
        lost: probability that an upload fails, a number or an array [N]. If all uploads of a round fail, it is repeated
            from the same version, and its time passes.
        hours: hours outside which a client is not drawn, e.g. `available(22, 6, zones=4)`; `None` for all day. A cohort
            is smaller if fewer clients are within their hours. If there are none, the round begins when the first is.
        select: draws of clients, one after another. `"uniform"`, or `"samples"`: with probability ∝ n_i.
        weights: weights w_i >= 0 instead of `select`, one per client; each draw has probability ∝ w_i.

    References:
        McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017.
    """

    cohort: int | None = static(default=None, kw_only=True)
    durations: Duration = dataclasses.field(default=constant(1.0), kw_only=True)
    replacement: bool = static(default=False, kw_only=True)
    extra: int = static(default=0, least=0, kw_only=True)
    deadline: Number | None = number(default=None, above=0, kw_only=True)
    deadline_quantile: Number | None = number(default=None, above=0, most=1, kw_only=True)
    lost: Number | None = number(default=None, least=0, below=1, per_client=True, kw_only=True)
    hours: Hours | None = dataclasses.field(default=None, kw_only=True)
    select: Literal["uniform", "samples"] = static(default="uniform", kw_only=True)
    weights: Number | None = number(default=None, least=0, per_client=True, kw_only=True)
    sets: Recording = recording(default=None)

    delivers = Delivery.MULTIPLE
    order_free = ByOptions(True, lambda clock: not clock.varies)
    takes_all = ByOptions(True, lambda clock: clock.lost is None and not getattr(clock.hours, "loses", False))

    def check(self, num_clients: int) -> None:
        if self.cohort is not None and not self.replacement:
            name = "cohort + extra" if self.extra else "cohort"
            check_whole(self.name, f"{name} among {num_clients} clients", self.cohort + self.extra, most=num_clients)
        rules = [
            (self.extra > 0 and (self.cohort is None or self.replacement), f"extra={self.extra} clients come on top of "
             "a cohort drawn without replacement: give cohort=n, and replacement=False"),
            (self.deadline is not None and self.deadline_quantile is not None,
             "give deadline or deadline_quantile, not both"),
            (self.cohort is None and self.replacement, "replacement=True draws a cohort of a given size, and "
             f"cohort=None: give cohort=n, e.g. {num_clients}, the number of clients"),
            (self.hours is not None and (self.sets is not None or self.weights is not None or self.select != "uniform"),
             "hours choose clients, and cannot go with sets, select or weights: leave one of them out"),
        ]  # fmt: skip
        fail_if(self.name, rules)
        size = self.in_flight(num_clients)
        check_recording(self, "sets", (size,), num_clients - 1, repeats=self.replacement)
        check_selection(self, num_clients, 1 if self.replacement else size)

    @property
    def varies(self) -> bool:
        """True if a round may end without all of its runs, or begin with fewer."""
        given = (self.deadline, self.deadline_quantile, self.lost, self.hours)
        return self.extra > 0 or any(one is not None for one in given)

    def arrivals(self, num_clients: int) -> int | None:
        return None if self.varies or self.replacement else self.in_flight(num_clients)

    def in_flight(self, num_clients: int) -> int:
        return num_clients if self.cohort is None else self.cohort + self.extra

    def steps(self, fleet: Fleet) -> Steps:
        size, round = self.in_flight(fleet.num_clients), 0
        lost = fleet.losses(self.lost, self.hours)
        awake = None if self.hours is None else Awake(self.hours, fleet.num_clients, fleet.seed)
        gone: set[int] = set()
        while True:
            if awake is None:
                drawn = drawn_clients(fleet, round, size, replacement=self.replacement, weights=self.weights)
            else:
                drawn = self._awake(fleet, awake, round, size)
            cohort, round = Counter(sorted(drawn)), round + 1
            runs = fleet.start_round(list(cohort))
            arriving = [run for run in runs if run.arrived < NEVER and not (lost and lost(run))]
            first = sorted(arriving)[: size - self.extra]
            begun, end = fleet.now, self._end(fleet.now, runs, first, size - self.extra)
            fleet.now = max(end, first[0].arrived if first else begun)
            taken = sorted((run for run in first if run.arrived <= fleet.now), key=lambda run: run.client)
            for run in runs if fleet.now < NEVER else ():
                if run not in taken:
                    failed = run.arrived <= fleet.now and run not in arriving
                    fleet.discard(run, "lost" if failed else "stopped")
            gone |= {run.client for run in runs if run.arrived == NEVER}
            if taken:
                counts = [cohort[run.client] for run in taken] if self.replacement else None
                yield fleet.step(taken, counts=counts)
                gone.clear()
            elif len(gone) == fleet.num_clients or fleet.now == NEVER:
                fleet.now = begun
                fleet.gone()

    def _end(self, now: float, runs: list[LocalRun], first: list[LocalRun], needed: int) -> float:
        """Returns the time at which a round ends, if an update has arrived by then.

        Args:
            now: begin of the round.
            runs: its runs.
            first: the first of them that arrive.
            needed: number of arrivals that end the round.
        """
        ends = sorted(run.arrived for run in runs)
        last = first[-1].arrived if len(first) == needed else ends[-1]
        if self.deadline is not None:
            return min(last, now + float(self.deadline))
        if self.deadline_quantile is not None:
            return min(last, ends[math.ceil(float(self.deadline_quantile) * len(ends) - _ROUNDING) - 1])
        return last

    def _awake(self, fleet: Fleet, idle: Awake, round: int, size: int) -> list[int]:
        """Returns drawn clients within their hours, at the first time at which there is one."""
        found, fleet.now = idle.awake(fleet.now)
        if not len(found):
            found, _ = idle.awake(fleet.now)
        if self.replacement:
            shares = [fleet.share(round * size + place) for place in range(size)]
            return [int(found[int(share * len(found))]) for share in shares]
        return drawn_from(fleet, round, found, size)
