"""A protocol whose first server step takes an update of every client: the beginning of IA²SGD, ACE and MIFA."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

import numpy as np

from jaxafl.clock.contract import ByOptions, Clock, Delivery
from jaxafl.clock.durations.duration import Duration
from jaxafl.clock.fleet import Dropped, Fleet, LocalRun, ServerStep, Steps
from jaxafl.clock.options import fail_if
from jaxafl.clock.rules import Bound
from jaxafl.options import UserError, check_options, static

_TAKES = Delivery.STALE | Delivery.CONTINUOUS | Delivery.MULTIPLE | Delivery.REPEATED | Delivery.EMPTY
_TAKES |= Delivery.BY_CLIENT | Delivery.REPLIES | Delivery.SEVERAL
_MOST = 1000  # steps of the protocol for each client, without which a client that never comes would be waited for


class warm_up(Clock):
    """Clock that makes no version before it has an update of every client; then it is the given protocol.

    Meanwhile clients start from x_0, as the protocol lets them. The first server step takes the last update of every
    client. Earlier ones count as refused and are never trained. Staleness, server steps and evaluations count versions.
    Servers with tables begin like this in the papers: `mifa` and `ia2sgd` with `first="next"`, `ace` and `aced` with
    `first="all"`.

    Args:
        clock: the protocol, for example `free_running(concurrency=N, durations=...)` or `synchronous(cohort=n)`.
        first: end of the first server step. `"complete"`: the step of the protocol by which every client has arrived
            once. `"next"`: the step after it, whose updates count, too. `"all"`: time 0, with one run of every client
            from x_0 that takes no time; then the protocol begins from x_1.

    References:
        Gu et al., "Fast federated learning in the presence of arbitrary device unavailability", NeurIPS 2021; Wang et
        al., "Dual-delayed asynchronous SGD for arbitrarily heterogeneous data", 2024; Chang et al., "Mitigating
        participation imbalance bias in asynchronous federated learning", 2025. The rules follow the authors' code.
    """

    clock: Clock
    first: Literal["complete", "next", "all"] = static(default="complete", kw_only=True)

    delivers = ByOptions(
        Delivery.STALE | Delivery.CONTINUOUS | Delivery.SEVERAL,
        lambda clock: (clock.clock.delivers & ~Delivery.REPLIES) | Delivery.SEVERAL,
    )
    order_free = ByOptions(False, lambda clock: clock.clock.order_free)
    takes_all = ByOptions(False, lambda clock: clock.first == "all" and clock.clock.takes_all)

    def check(self, num_clients: int) -> None:
        foreign = self.clock.delivers & ~_TAKES
        words = ", ".join(str(flag.name).lower().replace("_", " ") for flag in foreign)
        composed = getattr(self.clock, "composed", None)
        fail_if(self.name, [
            (isinstance(self.clock, warm_up), "clock is a warm_up; expected its protocol. Give the protocol itself"),
            (bool(foreign), f"the arrivals of {self.clock.name} are {words}; expected a clock such as free_running, "
             "synchronous or bernoulli. Give one of those"),
            (composed is not None and type(composed.bound) is not Bound, "max_staleness, or another bound, would count "
             "the steps before the first version; expected a protocol without a bound. Give max_staleness=None"),
        ])  # fmt: skip
        check_options(self.clock, num_clients)
        self.clock.check(num_clients)

    def prepare(self, counts: np.ndarray, size: Callable[[], tuple[int, int]]) -> warm_up:
        return dataclasses.replace(self, clock=self.clock.prepare(counts, size))

    @property
    def durations(self) -> Duration | None:
        """Durations of the protocol."""
        return getattr(self.clock, "durations", None)

    def in_flight(self, num_clients: int) -> int:
        return self.clock.in_flight(num_clients)

    def steps(self, fleet: Fleet) -> Steps:
        clients, early = fleet.num_clients, self.first == "all"
        table = [fleet.planned_steps(client, 0) for client in range(clients)]
        inner = fleet.of_protocol(self.clock, skipped_runs=int(early))
        last: dict[int, LocalRun] = {}
        dropped: list[Dropped] = []
        count = replaced = 0
        complete = early
        if early:  # a run of every client that takes no time
            last = {one: LocalRun(0.0, one, 0, one, 0, 0, 0.0, table[one], 0.0) for one in range(clients)}
            step = ServerStep(0, 0.0, [], None, None, (0,) * 5, [], {})
        while not complete:
            complete = self.first == "next" and len(last) == clients
            step = next(inner)
            count += 1
            dropped += step.dropped
            for run in step.runs:
                if run.client in last:
                    dropped.append(Dropped(last[run.client], "refused", last[run.client].arrived))
                    replaced += 1
                last[run.client] = run
            complete |= self.first == "complete" and len(last) == clients
            if count >= _MOST * clients and not complete:
                silent = min({*range(clients)} - {*last}, default=0)
                raise UserError(
                    f"client {silent} has not arrived in {count} steps, and the first server step waits for all clients"
                )
        shift = fleet.shift = _Shift(count - 1, clients * early, replaced)
        step = shift.step(step._replace(runs=[], dropped=dropped, kinds=None, counts=None))
        yield step._replace(runs=[last[one]._replace(version=0, reference=0) for one in range(clients)])
        for step in inner:
            yield shift.step(step)


@dataclasses.dataclass
class _Shift:
    """Numbers of versions and runs that the protocol counts differently.

    Attributes:
        versions: versions that the protocol has counted, and this clock has not; -1 with a run of every client at 0.
        runs: runs that have started before those of the protocol.
        refused: updates that were refused in addition.
    """

    versions: int
    runs: int
    refused: int

    def run(self, run: LocalRun) -> LocalRun:
        """Returns a run of the protocol with the numbers that count."""
        version, reference = (max(one - self.versions, 0) for one in (run.version, run.reference))
        index, run_id = run.run + bool(self.runs), run.run_id + self.runs
        return run._replace(version=version, reference=reference, run=index, run_id=run_id)

    def step(self, step: ServerStep) -> ServerStep:
        """Returns a step of the protocol with the numbers that count."""
        started, refused, *rest = step.totals
        return step._replace(
            version=step.version - self.versions,
            runs=[self.run(run) for run in step.runs],
            dropped=[one._replace(run=self.run(one.run)) for one in step.dropped],
            totals=(started + self.runs, refused + self.refused, *rest),
        )
