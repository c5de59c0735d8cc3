"""Protocols in which all clients train: the clocks of BASGD, Malenia SGD, Ringleader ASGD, THROTTLE, routed tasks."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

from jaxafl.clock.contract import STARTS, Clock, Delivery
from jaxafl.clock.durations.duration import Duration
from jaxafl.clock.fleet import Fleet, LocalRun, Steps
from jaxafl.clock.idle import Weights
from jaxafl.clock.options import fail_if
from jaxafl.options import Number, check_whole, number, static


class every_buffer(Clock):
    """Clock with all N clients in training, and a server step once each of B buffers has an update.

    Client i fills buffer i mod B, and starts again at once from the newest model. A step takes all updates since the
    last one.

    Args:
        durations: duration of a run in simulated seconds.
        buffers: B, from 1 to N.

    References:
        Yang & Li, "BASGD: Buffered asynchronous SGD for Byzantine learning", ICML 2021, Algorithm 2.
    """

    durations: Duration = dataclasses.field(kw_only=True)
    buffers: int = static(default=2, kw_only=True)

    delivers = STARTS | Delivery.SEVERAL
    takes_all = True

    def check(self, num_clients: int) -> None:
        check_whole(self.name, f"buffers among {num_clients} clients", self.buffers, most=num_clients)

    def steps(self, fleet: Fleet) -> Steps:
        taken: list[LocalRun] = []
        filled: set[int] = set()
        for run in fleet.arrivals():
            taken.append(run)
            filled.add(run.client % self.buffers)
            if len(filled) == self.buffers:
                yield fleet.step(taken)
                taken, filled = [], set()


class harmonic(Clock):
    """Clock with all N clients in training at the newest version, and a server step once enough updates are there.

    The server steps as soon as the harmonic mean (1/N Σ 1/B_i)^(-1) > S/N, strictly, where B_i counts the updates of
    client i from x_t, and 1/0 = ∞. Then all clients start anew from x_{t+1}. An S below N waits for one update of each.

    Args:
        durations: duration of a run in simulated seconds.
        batch: S >= 0.
        stop: stop the runs from x_t at the server step. Otherwise they go on, and are refused when they end.

    References:
        Tyurin & Richtárik, "Optimal time complexities of parallel stochastic optimization methods under a fixed
        computation model", NeurIPS 2023, Method 6. The rule follows a later text of the first author.
    """

    durations: Duration = dataclasses.field(kw_only=True)
    batch: Number = number(default=0.0, least=0, kw_only=True)
    stop: bool = static(default=True, kw_only=True)

    delivers = STARTS | Delivery.SEVERAL

    def steps(self, fleet: Fleet) -> Steps:
        clients, batch = fleet.num_clients, float(self.batch)
        taken: list[LocalRun] = []
        counts: dict[int, int] = {}  # B_i > 0
        inverse = 0.0  # Σ 1 / B_i
        for runs in fleet.instants():
            for run in runs:
                if run.version < fleet.version:
                    fleet.discard(run, "refused")
                    continue
                taken.append(run)
                before = counts.get(run.client, 0)
                counts[run.client] = before + 1
                inverse = inverse + 1 / (before + 1) - (1 / before if before else 0)
                if len(counts) == clients and inverse * batch * (1 + 1e-9) < clients**2:
                    yield fleet.step(taken)
                    taken, counts, inverse = [], {}, 0.0
            if self.stop and fleet.stepped == fleet.now:
                fleet.stop_up_to(fleet.version - 1)


class ringleader(Clock):
    """Clock of Ringleader ASGD: all N clients train, and a round has N server steps, one for each client.

    First the server collects updates until it has one of every client; the clients go on from the versions that they
    hold. The update that completes this table makes the first step of the round. Then every update of a client without
    a step in this round makes a step, and the client restarts from the newest version. Updates of the others are stored
    for the next round, and their clients go on from the versions that they hold. A version is made at steps only: a
    server step takes all updates that have arrived since the last one, in order. Kinds of arrivals: `"collected"`,
    `"step"` and `"stored"`. Staleness is at most 2N - 2.

    Args:
        durations: duration of a run in simulated seconds.
        restart: version from which a client goes on without a step. `"held"`: the version that it holds, as in the
            paper. `"newest"`: the newest one, as in the authors' released simulator.

    References:
        Maranjyan & Richtárik, "Ringleader ASGD: the first asynchronous SGD with optimal time complexity under data
        heterogeneity", ICLR 2026. The rule follows the authors' poster.
    """

    durations: Duration = dataclasses.field(kw_only=True)
    restart: Literal["held", "newest"] = static(default="held", kw_only=True)

    references = ("maranjyan2026",)
    delivers = STARTS | Delivery.SEVERAL | Delivery.KINDS | Delivery.HELD
    kinds = ("collected", "step", "stored")
    takes_all = True

    def steps(self, fleet: Fleet) -> Steps:
        clients = fleet.num_clients
        table: set[int] = set()  # clients with an update in the table of this round
        ahead: set[int] = set()  # and in that of the next round
        stepped: set[int] = set()  # clients with a step in this round
        taken: list[LocalRun] = []
        kinds: list[int] = []
        for run in fleet.arrivals():
            stores = run.client in stepped
            (ahead if stores else table).add(run.client)
            steps = not stores and len(table) == clients
            taken.append(run)
            kinds.append(2 if stores else int(steps))
            if steps:
                yield fleet.step(taken, kinds=kinds)
                taken, kinds = [], []
                stepped.add(run.client)
                if len(stepped) == clients:
                    table, ahead, stepped = ahead, set(), set()
            elif self.restart == "held":
                fleet.origins[run.run_id] = (run.version,)


class rounds_until_all(Clock):
    """Clock with all N clients in training, a server step for every arrival, and rounds.

    A client that arrives restarts from the version that its update has made. The arrival by which every client has come
    once ends the round: all runs are stopped, and all clients start anew from the newest version. An arrival that is
    delivered after it at the same instant belongs to the next round. Kinds of arrivals: `"first"` of the client in the
    round, `"again"`, and `"last"` of the round.

    Args:
        durations: duration of a run in simulated seconds.

    References:
        Otsuka et al., THROTTLE, 2026, Algorithm 1.
    """

    durations: Duration = dataclasses.field(kw_only=True)

    delivers = STARTS | Delivery.KINDS
    kinds = ("first", "again", "last")
    takes_all = True

    def arrivals(self, num_clients: int) -> int:
        return 1

    def steps(self, fleet: Fleet) -> Steps:
        heard: set[int] = set()  # clients that have arrived in this round
        last = -1  # newest version from which runs are stopped
        for runs in fleet.instants():
            for run in runs:
                kind = int(run.client in heard)
                heard.add(run.client)
                if len(heard) == fleet.num_clients:
                    kind, heard, last = 2, set(), fleet.version
                yield fleet.step([run], kinds=[kind])
            fleet.stop_up_to(last)


class routed(Clock):
    """Clock with m tasks in circulation: each arrival is a server step, which sends one new task to a drawn client.

    A client works off its tasks one after another, in the order in which they were sent. A task carries the model that
    was newest when it was sent, so it ages in the queue. Its run is `started` when the client begins to train, and runs
    are numbered in the order of sending. At time 0 the m tasks are dealt by the same draw. With ties all arrivals of
    an instant are delivered, in client order, before new tasks are sent.

    Args:
        tasks: number of tasks m, at least 1; a client may have several. `None` is N.
        durations: duration of a run in simulated seconds, without the time in the queue.
        probabilities: probabilities p_i > 0 that a task is sent to client i, one per client, with sum 1; `None` is 1/N.

    References:
        Leconte, Jonckheere, Samsonov & Moulines, "Queuing dynamics of asynchronous federated learning", AISTATS 2024.
        The rule follows the abstract.
    """

    tasks: int | None = static(default=None, kw_only=True)
    durations: Duration = dataclasses.field(kw_only=True)
    probabilities: Number | None = number(default=None, above=0, most=1, per_client=True, kw_only=True)

    references = ("leconte2024",)
    delivers = STARTS | Delivery.QUEUED
    takes_all = True

    def check(self, num_clients: int) -> None:
        total = self.table(num_clients).sum()
        fail_if(self.name, [
            (abs(total - 1) > 1e-6, f"probabilities have the sum {total:.6g} over {num_clients} clients; expected 1. "
             "Divide them by their sum"),
            (self.durations.pause > 0 or self.durations.transport() is not None, "transfers that stop all clients, or "
             "share a link, do not fit queues of tasks; expected durations without them. Give "
             "mac_network(freeze=False), or link(up=...)"),
        ])  # fmt: skip

    def table(self, num_clients: int) -> np.ndarray:
        """Returns the probabilities p_i, float64 [N]."""
        given = 1 / num_clients if self.probabilities is None else self.probabilities
        return np.full(num_clients, given, np.float64)

    def arrivals(self, num_clients: int) -> int:
        return 1

    def in_flight(self, num_clients: int) -> int:
        return self.tasks or num_clients

    def steps(self, fleet: Fleet) -> Steps:
        routes = Weights(1.0 if self.probabilities is None else self.probabilities, fleet.num_clients)
        free = [0.0] * fleet.num_clients  # time at which the client has done all tasks sent so far
        fleet.refills = False

        def send() -> None:
            client = routes.draw(fleet.share(fleet.started))
            free[client] = fleet.start(client, now=max(fleet.now, free[client])).arrived

        for _ in range(self.in_flight(fleet.num_clients)):
            send()
        for runs in fleet.instants():
            for run in runs:
                yield fleet.step([run])
            for _ in runs:
                send()
