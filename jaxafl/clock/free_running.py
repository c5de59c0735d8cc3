"""Clients that start and arrive at any time: the clock of FedAsync, AsyncFedED, FedBuff and FADAS.

It is composed of the rules of `jaxafl.clock.rules`; its other options are translated to them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from jaxafl.clock import rules
from jaxafl.clock.contract import STARTS, ByOptions, Clock, Delivery, Recording
from jaxafl.clock.durations.duration import Duration, Hours
from jaxafl.clock.fleet import NEVER, Fleet, LocalRun, Steps
from jaxafl.clock.options import check_recording, check_selection, fail_if
from jaxafl.options import Number, UserError, check_whole, number, recording, static

_EXCLUSIVE = (
    ("closes", "buffer"),
    ("closes", "period"),
    ("bound", "max_staleness"),
    ("begins", "dispatch", "before_step", "rate"),
    ("hours", "weights", "select"),
)
"""Options of which `free_running` takes at most one."""
_FURTHER = {
    "on_bound": "max_staleness",
    "windows": "period",
    "interval": "rate",
    "start_skew": "dispatch",
}
"""Options that say more about another one."""


class Rules(NamedTuple):
    """When the server steps, how stale an update may be, when clients start, and which of them."""

    closes: rules.Closes
    bound: rules.Bound
    begins: rules.Begins
    select: Any


def _delivers(clock: free_running) -> Delivery:
    # whether steps may differ in their arrivals, whatever a subclass promises
    replies = free_running.arrivals(clock, 1) is not None and clock.composed.begins.by_arrival
    return STARTS | clock.composed.closes.delivers | (Delivery.REPLIES if replies else Delivery.NONE)


class free_running(Clock):
    """Clock with M_c clients in training at any time and a server step after every M arrivals.

    The earliest finisher arrives. All arrivals of one instant are delivered in client order, and the server steps that
    they complete are taken, before any client restarts. A client that has just arrived is idle and may be drawn at
    once. If all clients are in flight (M_c = N), the arrived client itself restarts.

    Its rules are objects, as in `free_running(10, after(5) | every(60.0), bound=stop("sqrt"), begins=at_rate(2.0),
    select=within(available(22, 6)), durations=uniform(1, 5))`, or the options after them.

    Args:
        concurrency: number of clients in flight M_c, at most N. With starts at a rate the most of them, and `None` is
            N.
        closes: when the server steps: `after(M)`, `every(P)`, or `after(M) | every(P)`; `None` for `buffer` and
            `period`.
        durations: duration of a run in simulated seconds.
        bound: how stale an update may be: `refuse(R)`, `stop(R)` or `wait(R)`; `None` for `max_staleness`.
        begins: when clients start: `at_arrival()`, `before_step()`, `at_step()`, `open_slots(O)`, `grace(W)` or
            `at_rate(r)`; `None` for `dispatch` and `rate`.
        buffer: arrivals per server step M; `None` is 1, or any number if `period` is given.
        dispatch: time of restarts. `"arrival"`: each arrival starts one client, drawn from the idle ones (`select`),
            from the newest version. `"step"`: the M replacements start at the server step (the clock of FADAS's
            published numbers).
        before_step: hand out the version from just before the arrival's delivery, as FADAS's Algorithm 1 literally says
            (`"arrival"` only). The arrival that completes a buffer then hands out x_t instead of x_{t+1}.
        start_skew: imitate FADAS's released code (`"step"` only), for comparison. The first M - 1 of M new runs train
            from x_{t-1}, but are stamped t, and their updates are relative to x_t.
        max_staleness: bound R >= 1 of staleness; `None` for no bound. τ is measured at the delivery. `"sqrt"`: R =
            ⌊√(t + 1)⌋ at the delivery to version t (Ringmaster with an adaptive bound).
        on_bound: treatment of the bound. `"refuse"`: an update with τ >= R is discarded; its client restarts as after
            any arrival (Ringmaster ASGD without stops). `"stop"`: in addition a run is stopped as soon as t - s >= R,
            unless it never arrives (infinite duration), and its client restarts from x_t (Ringmaster ASGD, and Rennala
            SGD with R = 1). `"wait"`, without `period`: a server step that would leave a run in flight with t - s > R
            waits for it, if it ever arrives, and takes all updates that arrive meanwhile.
        period: seconds P of server steps at P, 2P, ..., which take all updates that have arrived since the last one, or
            none; `None` for steps by `buffer` only. If both are given, the server also steps once M have arrived.
        windows: seconds between these steps. `"constant"`: P. `"poisson"`: exponential, with mean P (AREA).
        lost: probability that an upload fails, a number or an array [N]. The run takes its time, and no step takes it;
            its client restarts as after any arrival.
        hours: hours outside which a client is not drawn, e.g. `available(22, 6, zones=4)`; `None` for all day. A start
            that is due waits until an idle client is within its hours. Not with `on_bound="stop"`, `before_step`,
            `start_skew`, `rate`, or draws by weight.
        select: draws of idle clients. `"uniform"`, or `"samples"`: with probability ∝ n_i; or `uniformly()`,
            `by_weight(w)` or `within(hours)`.
        weights: weights w_i >= 0 instead of `select`, one per client; an idle client is drawn with probability ∝ w_i.
        rate: starts per second r, independent of arrivals; `None` starts a client for every arrival. An idle client is
            drawn for each start. If M_c runs are in flight, the start is skipped, and counted in `starts_skipped`.
        interval: seconds between starts at a rate. `"poisson"`: exponential, with mean 1/r. `"constant"`: 1/r. The
            first start is after one interval.

    References:
        FADAS (Wang et al., 2024), Algorithm 1; AsyncFedED (Wang et al., 2022); FedBuff (Nguyen et al., 2022).
        Maranjyan, Tyurin & Richtárik, "Ringmaster ASGD: the first asynchronous SGD with optimal time complexity", ICML
        2025; Tyurin & Richtárik, "Optimal time complexities of parallel stochastic optimization methods under a fixed
        computation model" (Rennala SGD), NeurIPS 2023. The bound follows their texts and the authors' code.
    """

    concurrency: int | None = static(default=None)
    closes: rules.Closes | None = dataclasses.field(default=None)
    durations: Duration = dataclasses.field(kw_only=True)
    bound: rules.Bound | None = dataclasses.field(default=None, kw_only=True)
    begins: rules.Begins | None = dataclasses.field(default=None, kw_only=True)
    buffer: int | None = static(default=None, kw_only=True)
    dispatch: Literal["arrival", "step"] = static(default="arrival", kw_only=True)
    before_step: bool = static(default=False, kw_only=True)
    start_skew: bool = static(default=False, kw_only=True)
    max_staleness: int | Literal["sqrt"] | None = static(default=None, kw_only=True)
    on_bound: Literal["refuse", "stop", "wait"] = static(default="refuse", kw_only=True)
    period: Number | None = number(default=None, kw_only=True, above=0)
    windows: rules.Interval = static(default="constant", kw_only=True)
    lost: Number | None = number(default=None, kw_only=True, least=0, below=1, per_client=True)
    hours: Hours | None = dataclasses.field(default=None, kw_only=True)
    select: Literal["uniform", "samples"] | rules.Selects = static(default="uniform", kw_only=True)
    weights: Number | None = number(default=None, kw_only=True, least=0, per_client=True)
    rate: Number | None = number(default=None, kw_only=True, above=0)
    interval: rules.Interval = static(default="poisson", kw_only=True)
    starts: Recording = recording(default=None)

    delivers = ByOptions(STARTS | Delivery.REPLIES, _delivers)
    implied = {"buffer": 1}
    takes_all = ByOptions(
        True,
        lambda clock: (
            clock.lost is None
            and type(clock.composed.bound).refuses is rules.Bound.refuses
            and not getattr(getattr(clock.composed.select, "hours", None), "loses", False)
        ),
    )
    references = ByOptions((), lambda clock: clock.composed.bound.references)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.buffer is None and self.period is None and self.closes is None:
            object.__setattr__(self, "buffer", 1)
        if isinstance(self.select, rules.by_samples) and type(self.select).begin is rules.Selects.begin:
            object.__setattr__(self, "select", "samples")

    @functools.cached_property
    def composed(self) -> Rules:
        """The rules of the clock as objects."""
        closes: rules.Closes = rules.after(self.buffer or 1)
        if self.period is not None:
            closes = rules.every(self.period, self.windows, self.buffer)
        begins: rules.Begins = rules.before_step() if self.before_step else rules.at_arrival()
        if self.rate is not None:
            begins = rules.at_rate(self.rate, self.interval)
        elif self.dispatch == "step":
            begins = rules.at_step(self.start_skew)
        bound = rules.Bound() if self.max_staleness is None else getattr(rules, self.on_bound)(self.max_staleness)
        select = {"uniform": rules.uniformly(), "samples": rules.by_samples()}.get(str(self.select), self.select)
        if self.hours is not None:
            select = rules.within(self.hours)
        elif self.weights is not None:
            select = rules.by_weight(self.weights)
        return Rules(self.closes or closes, self.bound or bound, self.begins or begins, select)

    def check(self, num_clients: int) -> None:
        given = [f.name for f in dataclasses.fields(self) if repr(getattr(self, f.name)) != repr(f.default)]
        for names in _EXCLUSIVE:
            if len(both := [name for name in names if name in given]) > 1:
                raise UserError(f"{self.name}: {both[0]} and {both[1]} exclude each other; give one of them")
        for name, other in _FURTHER.items():
            if name in given and other not in given:
                raise UserError(f"{self.name}: {name} has no effect without {other}; give {other}, or leave out {name}")
        (closes, bound, begins, select), flying = self.composed, self.in_flight(num_clients)
        most, keeps_up = closes.arrivals(flying), begins.newest and begins.by_arrival
        recorded, in_hours = self.starts is not None, isinstance(select, rules.within)
        shared = self.durations is not None and self.durations.transport() is not None
        fail_if(self.name, [
            (self.concurrency is None and begins.by_arrival, "concurrency is not given; give concurrency=M_c"),
            (getattr(begins, "slots", 0) > flying, f"{begins!r} never has as many open slots: concurrency is {flying}"),
            (getattr(begins, "close", "") == "last" and shared, 'grace(close="last") needs times that are known ahead; '
             'give close="end" with a shared link'),
            (isinstance(begins, rules.at_step) and (most or 1) > flying, f"a buffer of {most} can never fill: with "
             f"dispatch='step' at most concurrency={flying} updates arrive before the next step; use a buffer <= "
             "concurrency"),
            (getattr(begins, "skew", False) and self.arrivals(flying) is None, "start_skew=True needs a fixed number "
             "of arrivals: leave period and on_bound='wait' out"),
            (bound.waits and Delivery.EMPTY in closes.delivers, "period ends a step at its time, but on_bound='wait' "
             "waits for late runs: give buffer=M, or on_bound='refuse'"),
            (bound.stops and not keeps_up, f"on_bound='stop' restarts clients from the newest version, but {begins!r} "
             "does not: give on_bound='refuse'"),
            ((bound.stops or bound.waits) and recorded, f"recorded starts go with on_bound='refuse', not {bound!r}"),
            (in_hours and (bound.stops or not keeps_up or recorded), "hours choose clients, and cannot go with "
             "before_step, start_skew, on_bound='stop', starts, or a rate: leave one of them out"),
        ])  # fmt: skip
        check_whole(self.name, f"concurrency among {num_clients} clients", flying, most=num_clients)
        check_selection(self, num_clients, flying, select.always or self.rate is not None or self.begins is not None)
        if recorded:
            check_recording(self, "starts", (), num_clients - 1)

    def arrivals(self, num_clients: int) -> int | None:
        return None if self.composed.bound.waits else self.composed.closes.arrivals(num_clients)

    def in_flight(self, num_clients: int) -> int:
        return self.concurrency or num_clients

    def steps(self, fleet: Fleet) -> Steps:
        (closes, bound, begins, select), flying = self.composed, self.in_flight(fleet.num_clients)
        everyone = flying == fleet.num_clients and not select.always and begins.by_arrival
        if not everyone or self.starts is not None:  # else those restart whose runs have ended
            fleet.choose = select.begin(fleet, flying) if self.starts is None else self._recorded(fleet)
            fleet.due += [None] * flying
        begins.begin(fleet, self)
        lost = fleet.losses(self.lost, getattr(select, "hours", None))
        alarms = closes.alarms(fleet)
        fleet.alarm = next(alarms, NEVER)
        taken: list[LocalRun] = []
        for runs in fleet.instants():
            if not runs:
                if not taken and begins.by_arrival and not fleet.comes():
                    fleet.gone()  # otherwise empty windows repeat forever
                fleet.alarm = next(alarms, NEVER)
                yield fleet.step(taken)
                taken = []
                begins.steps(fleet)
            for place, run in enumerate(runs):
                begins.arrives(fleet, run)
                failed = lost is not None and lost(run)
                if failed or bound.refuses(fleet, run):
                    fleet.discard(run, "lost" if failed else "refused")
                    begins.drops(fleet, run)
                else:
                    taken.append(run)
                if closes.full(taken) and not bound.must_wait(fleet, runs[place + 1 :]):
                    yield fleet.step(taken)
                    taken = []
                    begins.steps(fleet)
            bound.settles(fleet)
            begins.settles(fleet)

    def _recorded(self, fleet: Fleet) -> Callable[[LocalRun | None], int | None]:
        """Returns the function that chooses the recorded clients."""
        idle = fleet.idle = {*range(fleet.num_clients)}

        def choose(ended: LocalRun | None) -> int:
            client: int = fleet.drawn("starts", fleet.started)
            if client not in idle:
                raise UserError(
                    f"the recorded starts name client {client} at start number {fleet.started}, but this client is busy"
                )
            idle.remove(client)
            return client

        return choose
