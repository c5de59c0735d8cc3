"""Protocols in rounds: the clocks of FedAsync's simulation, DeFedAvg-nIID and SAFA."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import Literal

import numpy as np

from jaxafl.clock import draws
from jaxafl.clock.contract import STARTS, Clock, Delivery, Recording
from jaxafl.clock.durations.duration import Duration
from jaxafl.clock.fleet import NEVER, Fleet, LocalRun, Steps
from jaxafl.clock.options import check_recording
from jaxafl.clock.synchronous import drawn_clients
from jaxafl.device.keys import Purpose
from jaxafl.options import Number, check_whole, number, recording, static

PICKED, UNDRAFTED, RESYNCHRONISED = 0, 1, 2
"""Kinds of `semi_async`: `PICKED` or `UNDRAFTED`, plus `RESYNCHRONISED` for clients that were deprecated."""
_ROUNDING = 1e-12  # relative; without it 0.1 · 30, above 3 in float64, would be rounded up to 4


class stale_rounds(Clock):
    """Rounds of J clients, each from a version drawn uniformly 0..max_staleness back (clamped at version 0).

    Args:
        participants: clients per round J, drawn uniformly.
        max_staleness: largest age of a start version; 15 in FedAsync's simulation.
        durations: duration of a run in simulated seconds. A round lasts as long as its slowest run.
        replacement: draw clients with replacement. A client drawn twice executes two runs.

    References:
        Xie et al., "Asynchronous federated optimization", 2019; "Asynchronous federated learning with non-convex client
        objective functions and heterogeneous dataset", Algorithm 1.
    """

    participants: int = static(kw_only=True)
    max_staleness: int = static(least=0, kw_only=True)
    durations: Duration = dataclasses.field(kw_only=True)
    replacement: bool = static(default=False, kw_only=True)
    sets: Recording = recording(default=None)
    stale: Recording = recording(default=None)

    delivers = Delivery.STALE | Delivery.AGED
    takes_all = True
    order_free = True

    def check(self, num_clients: int) -> None:
        if not self.replacement:
            check_whole(self.name, f"participants among {num_clients} clients", self.participants, most=num_clients)
        check_recording(self, "sets", (self.participants,), num_clients - 1, repeats=self.replacement)
        check_recording(self, "stale", (self.participants,), self.max_staleness)

    def arrivals(self, num_clients: int) -> int:
        return self.participants

    in_flight = arrivals

    def steps(self, fleet: Fleet) -> Steps:
        size = self.participants
        fleet.keeps, places, key = self.max_staleness, np.arange(size), draws.stream(fleet.seed, Purpose.STALE)
        most = np.uint64(self.max_staleness + 1)
        ages = draws.rounds(
            size, lambda round: draws.threefry(key, round, places)[0].astype(np.uint64) * most >> np.uint64(32)
        )
        while True:
            now = fleet.version
            cohort = drawn_clients(fleet, now, size, replacement=self.replacement)
            if self.sets is None:  # recorded ages belong to the recorded order
                cohort = sorted(cohort)
            versions = [max(now - age, 0) for age in fleet.drawn("stale", now, lambda: ages(fleet.version).tolist())]
            runs = fleet.start_round(cohort, versions)
            yield fleet.step(runs, time=max(run.arrived for run in runs))


class sampled(Clock):
    """DeFedAvg-nIID's rounds, which wait for updates in the send buffers of n clients drawn with replacement.

    The clients are drawn at the moment of the previous step. As soon as every drawn client has a result, the server
    steps, reads and empties their send buffers, and broadcasts the new model to all clients. All clients train all the
    time, from the newest broadcast that they have received. All runs that end at one instant are delivered, and the
    steps that they complete are taken, before any client restarts. The client that completes a round thus starts from
    the new version.

    Args:
        drawn: drawn clients per round n. A client drawn k times counts k times.
        durations: duration of a run in simulated seconds.
        receive_buffer: use of a received model. `"keep"`: any number of times. `"consume"`: once, then the client idles
            until the next broadcast.
        send_buffer: treatment of a new result if the send buffer is full. `"overwrite"`: it replaces the older one.
            `"hold"` (section 2.3): it is dropped, once the older one is taken, and the client trains on.

    References:
        "Achieving linear speedup in asynchronous federated learning with heterogeneous clients" (DeFedAvg), Algorithm
        1.
    """

    drawn: int = static(kw_only=True)
    durations: Duration = dataclasses.field(kw_only=True)
    receive_buffer: Literal["keep", "consume"] = static(default="keep", kw_only=True)
    send_buffer: Literal["overwrite", "hold"] = static(default="overwrite", kw_only=True)
    sets: Recording = recording(default=None)

    references = ("wang2024defedavg",)
    delivers = STARTS | Delivery.MULTIPLE | Delivery.PULLED

    def check(self, num_clients: int) -> None:
        check_recording(self, "sets", (self.drawn,), num_clients - 1)

    def steps(self, fleet: Fleet) -> Steps:
        sent: dict[int, list[LocalRun]] = {}  # send buffers, and the runs that they did not hold
        idle: list[LocalRun] = []  # ended runs whose clients have used the newest model
        fleet.refills = False
        awaited = self._drawn(fleet)
        for runs in fleet.instants():
            for run in runs:
                if self.send_buffer == "overwrite" and run.client in sent:
                    fleet.discard(sent.pop(run.client)[0], "late")
                sent.setdefault(run.client, []).append(run)
            while all(client in sent for client in awaited):
                taken = [sent.pop(client) for client in awaited]
                for _, *further in taken:
                    for late in further:  # not before the earlier run is taken
                        fleet.discard(late, "late")
                yield fleet.step([first for first, *_ in taken], counts=[*awaited.values()])
                awaited = self._drawn(fleet)
            idle = sorted(idle + runs, key=lambda run: run.client)
            fleet.due += [run for run in idle if self.receive_buffer == "keep" or run.version < fleet.version]
            idle = [run for run in idle if self.receive_buffer == "consume" and run.version == fleet.version]

    def _drawn(self, fleet: Fleet) -> Counter[int]:
        """Draws the clients of the next round, in client order: client -> number of times."""
        return Counter(sorted(drawn_clients(fleet, fleet.version, self.drawn, replacement=True)))


class semi_async(Clock):
    """SAFA's rounds.

    At the start of round t, every client with an arrived update receives x_t and starts. So does every deprecated
    client, with a model that lags by more than L versions; its work is abandoned. Other stragglers continue. The round
    closes when clients that were not picked last round fill its quota, or when no client trains any more; then the
    earliest of the others fill up the quota. The remaining arrivals are undrafted; runs that finish later count in the
    next round.

    Args:
        fraction: fraction of the clients in the quota ⌈fraction · N⌉, in (0, 1].
        lag: number of versions L by which a straggler may lag at the start of a round; at least 0.
        durations: duration of a run in simulated seconds.

    References:
        Wu et al., "SAFA: A semi-asynchronous protocol for fast federated learning with low overhead", IEEE TC 2021,
        Algorithm 1.
    """

    fraction: Number = number(above=0, most=1, kw_only=True)
    lag: int = static(least=0, kw_only=True)
    durations: Duration = dataclasses.field(kw_only=True)

    references = ("wu2021",)
    delivers = Delivery.STALE | Delivery.BY_CLIENT | Delivery.KINDS
    kinds = ("picked", "undrafted", "picked, resynchronised", "undrafted, resynchronised")
    takes_all = True

    def steps(self, fleet: Fleet) -> Steps:
        quota = max(1, math.ceil(float(self.fraction) * fleet.num_clients * (1 - _ROUNDING)))
        training: dict[int, LocalRun] = {}
        picked: set[int] = set()
        while True:
            late = {client for client, run in training.items() if fleet.version - run.version > self.lag}
            for client in range(fleet.num_clients):
                if client in late:
                    fleet.discard(training[client], "abandoned")
                if client in late or client not in training:
                    training[client] = fleet.start(client, flies=False)
            order = sorted(run for run in training.values() if run.arrived < NEVER)
            if not order:
                fleet.gone()
            first = [run for run in order if run.client not in picked]  # they fill the quota before the others
            end = first[quota - 1].arrived if len(first) >= quota else order[-1].arrived
            picked = {run.client for run in sorted(order, key=lambda run: run.client in picked)[:quota]}
            taken = sorted((run for run in order if run.arrived <= end), key=lambda run: run.client)
            for run in taken:
                del training[run.client]
            kinds = [
                (PICKED if client in picked or client in training else UNDRAFTED) + RESYNCHRONISED * (client in late)
                for client in range(fleet.num_clients)
            ]
            yield fleet.step(taken, kinds=kinds, time=end)
