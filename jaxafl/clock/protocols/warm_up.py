"""A protocol whose first server step takes an update of every client: the beginning of IA²SGD, ACE and MIFA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from jaxafl.clock.contract import STARTS, ByOptions, Clock, Delivery
from jaxafl.clock.durations.duration import Duration
from jaxafl.clock.fleet import Dropped, Fleet, LocalRun, ServerStep, Steps
from jaxafl.clock.options import fail_if
from jaxafl.clock.rules import Bound
from jaxafl.options import UserError, static

_TAKES = STARTS | Delivery.MULTIPLE | Delivery.REPEATED | Delivery.EMPTY
_TAKES |= Delivery.BY_CLIENT | Delivery.REPLIES | Delivery.SEVERAL
_MOST = 1000  # steps of the protocol for each client, without which a client that never comes would be waited for


class warm_up(Clock):
    """Clock that makes no version before it has an update of every client; then it is the given protocol.

    Meanwhile clients start from x_0, as the protocol lets them. The first server step takes the last update of every
    client. Earlier ones count as refused. Staleness, server steps and evaluations count versions.
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
        STARTS | Delivery.SEVERAL,
        lambda clock: (clock.clock.delivers & ~Delivery.REPLIES) | Delivery.SEVERAL,
    )
    order_free = ByOptions(False, lambda clock: clock.clock.order_free)
    chooses_steps = ByOptions(False, lambda clock: clock.clock.chooses_steps)
    takes_all = ByOptions(False, lambda clock: clock.first == "all" and clock.clock.takes_all)

    def check(self, num_clients: int) -> None:
        foreign = self.clock.delivers & ~_TAKES
        rules = self.composed
        fail_if(self.name, [
            (isinstance(self.clock, warm_up), "clock is a warm_up; expected its protocol. Give the protocol itself"),
            (bool(foreign), f"the arrivals of {self.clock.name} are {foreign.words}; expected a clock such as "
             "free_running, synchronous or bernoulli. Give one of those"),
            (rules is not None and type(rules.bound) is not Bound, "max_staleness, or another bound, would count "
             "the steps before the first version; expected a protocol without a bound. Give max_staleness=None"),
        ])  # fmt: skip
        self.clock.check(num_clients)

    @property
    def durations(self) -> Duration | None:
        """Durations of the protocol."""
        return getattr(self.clock, "durations", None)

    @property
    def composed(self) -> Any:
        """Rules of the protocol."""
        return self.clock.composed

    def in_flight(self, num_clients: int) -> int:
        return self.clock.in_flight(num_clients)

    def steps(self, fleet: Fleet) -> Steps:
        clients, inner = fleet.num_clients, self.clock.steps(fleet)
        fleet.clock = self.clock
        last: dict[int, LocalRun] = {}  # of each client

        def completes(runs: Sequence[LocalRun]) -> bool:
            """Returns True if a step of the protocol makes the first version."""
            whole = len(last) == clients
            for run in runs:
                if (old := last.get(run.client)) and old.run != run.run:  # the same one may be taken again
                    fleet.totals["refused"] += 1
                    fleet.dropped.append(Dropped(old, "refused", old.arrived))
                last[run.client] = run
            return whole if self.first == "next" else len(last) == clients

        if self.first == "all":  # a run of every client that takes no time, and whose duration is not drawn
            for one in range(clients):
                last[one] = LocalRun(0.0, one, 0, one, 0, 0, 0.0, fleet.planned_steps(one, 0), 0.0)
            step = ServerStep(0, 0.0, [], [], [], (clients, 0, 0, 0, 0), [], {})
            fleet.version = fleet.early = 1
            fleet.before = clients
            if fleet.seconds is not None and fleet.seconds.steps.shape[1] > 1:
                fleet.seconds.steps = fleet.seconds.steps[:, 1:]
        else:
            fleet.completes = completes
            for _ in range(_MOST * clients):
                step = next(inner)
                if fleet.version:
                    break
            else:
                silent = min({*range(clients)} - {*last}, default=0)
                raise UserError(f"client {silent} has not arrived, and the first server step waits for all clients")
            fleet.completes = None
        runs = [last[one] for one in range(clients)]
        yield step._replace(runs=runs, kinds=[0] * clients, counts=[1] * clients)
        yield from inner
