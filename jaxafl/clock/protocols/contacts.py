"""Protocols in which the server contacts clients at fixed times: the clocks of AUDG and PSURDG, FAVANO and QuAFL."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxafl.clock import draws
from jaxafl.clock.contract import Clock, Delivery, Recording
from jaxafl.clock.durations.duration import Duration
from jaxafl.clock.fleet import NEVER, Fleet, LocalRun, Steps
from jaxafl.clock.options import check_recording
from jaxafl.clock.synchronous import drawn_clients
from jaxafl.device.keys import Purpose
from jaxafl.options import Number, UserError, check_whole, number, recording, static

_ROUNDING = 1e-9  # relative; a step that ends exactly at a contact counts


class bernoulli(Clock):
    """Ticks at which client i's upload succeeds with probability p_i, and then its download with probability q_i.

    A client offers the same update at every tick until an upload succeeds; then it downloads x_{t+1} and trains again.
    If that download fails it keeps its version, offers the same update again, and the download is retried after its
    next successful upload. Tick t acts on x_t and its time is t + 1; a tick without arrivals is a server step. With q =
    1 the staleness is geometric with mean 1/p_i - 1; with failing downloads the mean is 1/(p_i q_i) - 1.

    Args:
        upload: probability p that an upload succeeds, in [0, 1]; a number or one per client [N].
        download: probability q that a download succeeds, in [0, 1]; a number or one per client [N].

    References:
        "The impact analysis of delays in asynchronous federated learning with data heterogeneity for edge
        intelligence", section II and eq. (1).
    """

    upload: Number = number(least=0, most=1, per_client=True)
    download: Number = number(default=1.0, least=0, most=1, per_client=True)
    uploads: Recording = recording(default=None)
    downloads: Recording = recording(default=None)

    references = ("hao2025",)
    delivers = Delivery.STALE | Delivery.REPEATED | Delivery.EMPTY | Delivery.BY_CLIENT
    takes_all = True

    def check(self, num_clients: int) -> None:
        check_recording(self, "uploads", (num_clients,), 1)
        check_recording(self, "downloads", (num_clients,), 1)

    def steps(self, fleet: Fleet) -> Steps:
        clients = np.arange(fleet.num_clients)

        def successes(name: str, odds: Number) -> Callable[[int], np.ndarray]:
            key = draws.stream(fleet.seed, Purpose[name.upper()])
            shares = draws.rounds(len(clients), lambda tick: draws.uniform(draws.threefry(key, clients, tick)))
            return lambda tick: np.asarray(fleet.drawn(f"{name}s", tick, lambda: shares(tick) < odds), bool)

        uploaded, downloaded = successes("upload", self.upload), successes("download", self.download)
        offered = [fleet.start(client) for client in clients.tolist()]
        for tick in itertools.count():
            uploads = uploaded(tick)
            fresh = np.flatnonzero(uploads & downloaded(tick)).tolist()
            step = fleet.step([offered[client] for client in np.flatnonzero(uploads).tolist()], time=tick + 1.0)
            for client in fresh:
                offered[client] = fleet.start(client)
            yield fleet.recounted(step)


class interrupting(Clock):
    """Contacts of s clients, drawn uniformly without replacement, in fixed periods.

    A contacted client hands in the local steps that it has completed since its last restart, at most K (its number of
    local steps, `Client(steps=K)`), and restarts. A step in progress is lost; a step that ends exactly at the contact
    counts. The other clients continue up to K steps, then wait. The first contact is at one period.

    Args:
        period: simulated seconds between contacts.
        contacted: clients per contact s.
        durations: duration of a run in simulated seconds, as a function of its local steps. Terms with `per="step"` are
            the time of one local step, drawn for every run; other terms are a latency before the first step.

    References:
        Leconte et al., "FAVAS: Federated averaging with asynchronous clients", 2023; Zakerinia et al.,
        "Communication-efficient federated learning with data and client heterogeneity" (QuAFL), 2022.
    """

    period: Number = number(above=0, kw_only=True)
    contacted: int = static(kw_only=True)
    durations: Duration = dataclasses.field(kw_only=True)
    sets: Recording = recording(default=None)

    delivers = Delivery.STALE | Delivery.PULLED | Delivery.PARTIAL
    takes_all = True

    def check(self, num_clients: int) -> None:
        check_whole(self.name, f"contacted among {num_clients} clients", self.contacted, most=num_clients)
        check_recording(self, "sets", (self.contacted,), num_clients - 1, repeats=False)
        if self.durations.waits:
            raise ValueError(
                f"{self.name} needs durations that are a latency plus a time per local step, and those of "
                f"{self.durations!r:.100} wait until the device is available: give device_trace(availability=False)"
            )

    def arrivals(self, num_clients: int) -> int:
        return self.contacted

    def steps(self, fleet: Fleet) -> Steps:
        seconds: Any = fleet.seconds
        if not seconds.has_steps((2, int(seconds.steps.max()))):
            raise UserError(
                f"{self.name}: durations={self.durations!r:.100} are not a latency plus a time per local step; "
                'expected such durations. Give one term with per="step" in a product'
            )
        current = [_begin(fleet, client) for client in range(fleet.num_clients)]
        while True:
            now = (fleet.version + 1) * float(self.period)
            contacted = sorted(drawn_clients(fleet, fleet.version, self.contacted))
            taken, complete = [], []
            for client in contacted:
                run = current[client]
                latency, per_step, hang = _lasting(fleet, run)
                taken.append(_contact(run, now, latency, per_step, hang))
                if per_step < NEVER:
                    complete.append(latency + per_step * run.local_steps)
            fleet.longest = max([fleet.longest, *complete])
            step = fleet.step(taken, time=now)
            for client in contacted:
                current[client] = _begin(fleet, client)
            yield fleet.recounted(step)


def _begin(fleet: Fleet, client: int) -> LocalRun:
    """Starts a run that ends at a contact. Its client works up to K local steps of it."""
    run = fleet.start(client, timed=False)
    latency, per_step, hang = _lasting(fleet, run)
    run = fleet.known[run.run_id] = run._replace(work=latency + per_step * run.local_steps - hang)
    return run


def _lasting(fleet: Fleet, run: LocalRun) -> tuple[float, float, float]:
    """Returns the seconds of a run before its first local step, those of a local step, and those in which it hangs."""
    latency, first = fleet.seconds.of_steps(run.client, run.run, run.started, fleet.longest)  # type: ignore[union-attr]
    if first == NEVER:  # the run completes no step
        return 0.0, NEVER, 0.0
    seconds, work = fleet.seconds.of(run.client, run.run, run.local_steps, run.started, fleet.longest)  # type: ignore[union-attr]
    return fleet.valid(latency, *run[1:4]), fleet.valid(first - latency, *run[1:4]), seconds - work


def _contact(run: LocalRun, now: float, latency: float, per_step: float, hang: float) -> LocalRun:
    """Returns a run with the local steps that it has completed by now."""
    working, made = now - run.started - latency, 0
    if working >= 0 and per_step < NEVER:
        fit = run.local_steps if per_step == 0 else math.floor(working / per_step * (1 + _ROUNDING))
        made = min(run.local_steps, fit)
    work = min(now - run.started, latency + per_step * run.local_steps - hang)
    return run._replace(arrived=now, local_steps=made, work=work)
