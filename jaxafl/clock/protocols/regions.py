"""Protocols of regions with servers of their own, and transfers to a global server: of HALoS, FedAT and HierFAVG."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np

from jaxafl.clock.contract import STARTS, Clock, Delivery
from jaxafl.clock.durations.duration import Duration
from jaxafl.clock.fleet import NEVER, Fleet, LocalRun, Steps
from jaxafl.clock.options import fail_if
from jaxafl.clock.synchronous import drawn_from
from jaxafl.options import Number, UserError, as_numbers, shown, static

ARRIVES, SENDS, RISES, MERGES = range(4)
"""Events of `tiers`: an update arrives; it makes its region send, too; a transfer reaches the server, or its region."""
WITHIN, WAITS, STEPS = range(3)
"""Events of `regional_rounds`: a round in a region; a model that waits at the global server; one that it steps with."""


class _Regional(Clock):
    """Base of clocks of regions, which exchange models with a global server."""

    regions: Sequence[int] = static(kw_only=True)
    durations: Duration = dataclasses.field(kw_only=True)
    up: Number = dataclasses.field(default=0.0, kw_only=True)
    down: Number = dataclasses.field(default=0.0, kw_only=True)

    takes_all = True

    def __post_init__(self) -> None:
        given = as_numbers(self.name, "regions", self.regions)
        if given.ndim != 1:
            raise UserError(f"{self.name}: regions={shown(self.regions)}; expected one region per client, numbers [N]")
        listed = given.tolist()
        object.__setattr__(self, "regions", tuple(int(one) if one.is_integer() else one for one in listed))
        super().__post_init__()

    def check(self, num_clients: int) -> None:
        named, count = {*self.regions}, len({*self.regions})
        rules = [
            (len(self.regions) != num_clients, f"regions has {len(self.regions)} entries; expected the region of each "
             f"of the {num_clients} clients. Give a whole number per client"),
            (named != {*range(count)}, f"regions names {shown(sorted(named))}; expected 0, 1, ... without a gap, since "
             "a region without clients never sends. Number the regions that have clients"),
            (bool(self.durations.pause), "transfers that stop all clients do not fit regions that go on; expected "
             "durations without them. Give mac_network(freeze=False)"),
        ]  # fmt: skip
        for name in ("up", "down"):
            seconds = as_numbers(self.name, name, getattr(self, name))
            fits = seconds.shape in ((), (count,)) and (np.isfinite(seconds) & (seconds >= 0)).all()
            expected = f"expected finite seconds, at least 0: one number, or one for each of the {count} regions"
            rules.append((not fits, f"{name}={seconds.tolist()}; {expected}"))
        fail_if(self.name, rules)

    def transfers(self) -> list[list[float]]:
        """Returns the seconds up and down of every region."""
        count = max(self.regions) + 1
        return [np.full(count, one, float).tolist() for one in (self.up, self.down)]


class tiers(_Regional):
    """Clock of regions: all N clients train, and regions exchange models with a global server, which takes time.

    A client that arrives in region l restarts at once. If v_l, the arrivals of its region, has grown by K_s since the
    last download, the region sends. What it sends reaches the global server after `up` seconds, and the answer reaches
    that region after `down` seconds. So a region has at most one transfer on its way, and nobody ever waits.

    Every event is a server step, and a transfer is one without a run. Columns of a schedule: `region`; `event`, 0 for
    an arrival, 1 for one that makes its region send, 2 for a transfer that reaches the global server, and 3 for one
    that reaches its region; `regional_staleness`, the arrivals in the region since the start of the run. At one
    instant runs arrive first, in client order, then what goes up, then what goes down.

    Args:
        regions: region of each client, whole numbers 0 .. R - 1, [N]; each region has a client.
        durations: duration of a run in simulated seconds, within its region.
        up: seconds from a region to the global server, finite and at least 0; a number, or one per region [R].
        down: seconds from the global server to a region, in the same form.
        after: K_s >= 1, arrivals in a region between a download and the next upload; 32 in the paper.

    References:
        Kim et al., "HALoS: Hierarchical asynchronous local SGD over slow networks for geo-distributed large language
        model training", ICML 2025. The rule follows the authors' simulator.
    """

    after: int = static(default=32, kw_only=True)

    references = ("kim2025",)
    delivers = STARTS | Delivery.EMPTY | Delivery.REGIONAL

    def arrivals(self, num_clients: int) -> int:
        return 1

    def steps(self, fleet: Fleet) -> Steps:
        up, down = self.transfers()
        arrived, merged = [0] * len(up), [0] * len(up)  # v_l, now and at the last download
        begun = [0] * fleet.num_clients  # v_l at the start of each client's run
        transfers: list[tuple[float, int, int]] = []  # a heap of their ends, what they then do, and their regions
        for runs in fleet.instants():
            for run in runs:
                region = self.regions[run.client]
                staleness = arrived[region] - begun[run.client]
                begun[run.client] = arrived[region] = arrived[region] + 1
                event = SENDS if arrived[region] == merged[region] + self.after else ARRIVES
                if event == SENDS:
                    heappush(transfers, (fleet.now + up[region], RISES, region))
                yield fleet.step([run], region=region, event=event, regional_staleness=staleness)
                fleet.origins[run.run_id] = (fleet.version,)  # it restarts before others of this instant arrive
            if not runs:
                _, event, region = heappop(transfers)
                if event == RISES:
                    heappush(transfers, (fleet.now + down[region], MERGES, region))
                else:
                    merged[region] = arrived[region]
                yield fleet.step([], region=region, event=event, regional_staleness=0)
            fleet.alarm = transfers[0][0] if transfers else NEVER


class regional_rounds(_Regional):
    """Clock of rounds in regions: a region waits for its slowest client, and no region waits for another, unless asked.

    Clients of a round start together, from the model of their region. After κ rounds the region sends its model, which
    reaches the global server after `up` seconds. The answer is the version that the server makes of it; it reaches the
    region after `down` seconds, and the next round begins. With `waits` the global server answers once all regions have
    sent, and answers all of them.

    A server step takes the runs of one round, at its end, or when the model of the region reaches the global server.
    Columns of a schedule: `region`; `event`, 0 for a round within a region, 1 for a model that waits at the global
    server for other regions, and 2 for one that the global server steps with. At one instant regions are in order, and
    clients of a round in client order.

    Args:
        regions: region of each client, whole numbers 0 .. R - 1, [N]; each region has a client. For FedAT tiers, from
            the fastest to the slowest.
        durations: duration of a run in simulated seconds, within its region.
        up: seconds from a region to the global server, finite and at least 0; a number, or one per region [R].
        down: seconds from the global server to a region, in the same form.
        after: κ >= 1, rounds in a region before it sends its model; κ_2 of HierFAVG.
        cohort: clients of a round, drawn uniformly without replacement from the region; all of a smaller region, and
            of every region with `None`.
        waits: True if the global server waits for all regions.

    References:
        Chai et al., "FedAT: A high-performance and communication-efficient federated learning system with asynchronous
        tiers", SC 2021; Liu, Zhang, Song, Letaief, "Client-edge-cloud hierarchical federated learning", ICC 2020.
    """

    after: int = static(default=1, kw_only=True)
    cohort: int | None = static(default=None, kw_only=True)
    waits: bool = static(default=False, kw_only=True)

    references = ("chai2021", "liu2020")
    delivers = STARTS | Delivery.SEVERAL | Delivery.REGIONAL

    def in_flight(self, num_clients: int) -> int:
        return int(np.minimum(np.bincount(self.regions), self.cohort or num_clients).sum())

    def steps(self, fleet: Fleet) -> Steps:
        up, down = self.transfers()
        members = [np.flatnonzero(np.equal(self.regions, region)) for region in range(len(up))]
        made = [0] * len(up)  # rounds that have begun in each region
        runs: list[list[LocalRun]] = [[] for _ in up]  # of their rounds
        sent: list[int] = []  # regions that wait for an answer
        ends: list[tuple[float, int]] = []  # a heap of the times of server steps, and their regions

        def begin(region: int, now: float) -> None:
            drawn = drawn_from(fleet, made[region], members[region], self.cohort)
            runs[region] = [fleet.start(client, now=now, flies=False) for client in sorted(drawn)]
            made[region] += 1
            sends = made[region] % self.after == 0
            heappush(ends, (max(run.arrived for run in runs[region]) + up[region] * sends, region))

        for region in range(len(up)):
            begin(region, 0.0)
        while True:
            time, region = heappop(ends)
            if time == NEVER:
                fleet.gone()
            sends = made[region] % self.after == 0
            sent += [region] * sends
            answers = sends and not (self.waits and len(sent) < len(up))
            event = STEPS if answers else WAITS if sends else WITHIN
            yield fleet.step(runs[region], time=time, region=region, event=event)
            if not sends:
                begin(region, time)
            elif answers:
                for one in sorted(sent):
                    begin(one, time + down[one])
                sent.clear()
