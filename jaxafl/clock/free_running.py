"""Clients that start and arrive at any time: the clock of FedAsync, AsyncFedED, FedBuff and FADAS."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.clock import selection, trees
from jaxafl.clock.checks import check_at_most, check_bound, check_room, check_starts
from jaxafl.clock.contract import ByOptions, Delivery, FaultCode, InFlight, Recording, Runs
from jaxafl.clock.durations.duration import Duration
from jaxafl.clock.event_loop import Event, State, Verdict
from jaxafl.clock.events import Events
from jaxafl.clock.hours import check_hours, nth, prepare_hours, within_hours
from jaxafl.clock.openings import Interval, Opening, end_of, first_opening, first_window, next_window
from jaxafl.clock.starts import is_lost, recorded_or
from jaxafl.clock.weights import by_samples, check_weights, draws_by_weight, weights_of
from jaxafl.device.keys import Key
from jaxafl.options import Number, number, recording, static

Array = jax.Array


class Rules(NamedTuple):
    """State of the protocol."""

    window: Array | Opening | None  # next window
    key: Key | None  # of the schedule, if uploads may fail
    hours: Any  # result of `prepare_hours`
    opening: Opening | None  # next start, if they come at a rate


class free_running(Events):
    """Clock with M_c clients in training at any time and a server step after every M arrivals.

    The earliest finisher arrives. All arrivals of one instant are delivered in client order, and the server steps that
    they complete are taken, before any client restarts. A client that has just arrived is idle and may be drawn at
    once. If all clients are in flight (M_c = N), the arrived client itself restarts.

    Args:
        concurrency: number of clients in flight M_c, at most N. With `rate` the most of them, and `None` is N.
        durations: duration of a run in simulated seconds.
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
            and its client restarts from x_t (Ringmaster ASGD, and Rennala SGD with R = 1). `"wait"`, without `period`:
            a server step that would leave a run in flight with t - s > R waits for it, and takes all updates that
            arrive meanwhile.
        period: seconds P of server steps at P, 2P, ..., which take all updates that have arrived since the last one, or
            none; `None` for steps by `buffer` only. If both are given, the server also steps once M have arrived.
        windows: seconds between these steps. `"constant"`: P. `"poisson"`: exponential, with mean P (AREA).
        max_arrivals: most arrivals of one server step, with `period` or `on_bound="wait"`. More are an error. `None`
            is M with `period` and `buffer`, and N otherwise.
        lost: probability that an upload fails, a number or an array [N]. The run takes its time and is not trained;
            its client restarts as after any arrival.
        hours: hours outside which a client is not drawn, e.g. `available(22, 6, zones=4)`; `None` for all day. A start
            that is due waits until an idle client is within its hours. Not with `on_bound="stop"`, `before_step`,
            `start_skew`, `rate`, or draws by weight.
        select: draws of idle clients. `"uniform"`, or `"samples"`: with probability ∝ n_i.
        weights: weights w_i >= 0 instead of `select`, one per client; an idle client is drawn with probability ∝ w_i.
        rate: starts per second r, whenever runs arrive; `None` starts a client for every arrival. An idle client is
            drawn for each start. If M_c runs are in flight, the start is skipped, and counted in `starts_skipped`.
        interval: seconds between starts at a rate. `"poisson"`: exponential, with mean 1/r. `"constant"`: 1/r. The
            first start is after one interval.

    References:
        FADAS (Wang et al., 2024), Algorithm 1; AsyncFedED (Wang et al., 2022); FedBuff (Nguyen et al., 2022).
        Maranjyan, Tyurin & Richtárik, "Ringmaster ASGD: the first asynchronous SGD with optimal time complexity", ICML
        2025; Tyurin & Richtárik, "Optimal time complexities of parallel stochastic optimization methods under a fixed
        computation model" (Rennala SGD), NeurIPS 2023. The bound follows their texts and the authors' code.
    """

    concurrency: int | None = static(default=None, kw_only=True)
    durations: Duration = dataclasses.field(kw_only=True)
    buffer: int | None = static(default=None, kw_only=True)
    dispatch: Literal["arrival", "step"] = static(default="arrival", kw_only=True)
    before_step: bool = static(default=False, kw_only=True)
    start_skew: bool = static(default=False, kw_only=True)
    max_staleness: int | Literal["sqrt"] | None = static(default=None, kw_only=True)
    on_bound: Literal["refuse", "stop", "wait"] = static(default="refuse", kw_only=True)
    period: Number | None = number(default=None, kw_only=True, above=0)
    windows: Interval = static(default="constant", kw_only=True)
    max_arrivals: int | None = static(default=None, kw_only=True)
    lost: Number | None = number(default=None, kw_only=True, least=0, below=1, per_client=True)
    hours: Duration | None = dataclasses.field(default=None, kw_only=True)
    select: Literal["uniform", "samples"] = static(default="uniform", kw_only=True)
    weights: Number | None = number(default=None, kw_only=True, least=0, per_client=True)
    rate: Number | None = number(default=None, kw_only=True, above=0)
    interval: Interval = static(default="poisson", kw_only=True)
    starts: Recording = recording(default=None)

    delivers = ByOptions(Events.delivers | Delivery.REPLIES, lambda clock: clock._delivers)
    implied: ClassVar[dict[str, Any]] = {"buffer": 1}
    event_by_event: ClassVar[bool] = True
    _discards = property(lambda clock: clock.max_staleness is not None and clock.on_bound != "wait")
    takes_all = ByOptions(True, lambda clock: clock.lost is None and not clock._discards)
    references = ByOptions((), lambda clock: ("maranjyan2025", "tyurin2023") if clock._discards else ())

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.buffer is None and self.period is None:
            object.__setattr__(self, "buffer", 1)

    def check(self, num_clients: int) -> None:
        super().check(num_clients)
        if self.period is not None and self.buffer == 1:
            raise ValueError(
                f"{self.name}: with buffer=1 the server steps at every arrival, whatever the period is: give "
                "buffer=None for steps by time alone, or a larger buffer"
            )
        if self.concurrency is None and self.rate is None:
            raise ValueError(f"{self.name}: the number of clients in flight is not given; give concurrency=M_c")
        flying = self.in_flight(num_clients)
        check_at_most(self.name, "concurrency", flying, num_clients)
        if self.dispatch == "step" and self._size > flying:
            raise ValueError(
                f"a buffer of {self._size} can never fill: with dispatch='step' at most concurrency="
                f"{flying} updates arrive before the next server step; use a buffer <= concurrency or "
                "dispatch='arrival'"
            )
        if self.before_step and self.dispatch != "arrival":
            raise ValueError(
                f"{self.name}: before_step=True needs dispatch='arrival', got {self.dispatch!r}: with 'step' no client "
                "starts before the server step"
            )
        if self.start_skew and self.dispatch != "step":
            raise ValueError(
                f"{self.name}: start_skew=True needs dispatch='step', got {self.dispatch!r}: it is how FADAS's "
                "released code starts M newcomers"
            )
        check_bound(self)
        if self.max_arrivals is not None and not self.varies:
            raise ValueError(
                f"{self.name}: max_arrivals bounds the server steps of period=... and on_bound='wait'; give buffer=M"
            )
        if self.varies and self.dispatch != "arrival":
            raise ValueError(
                f"{self.name}: with period=... or on_bound='wait' clients restart at their arrival: give "
                f"dispatch='arrival', not {self.dispatch!r}"
            )
        if self.varies:
            check_room(self, num_clients, self._size)
        if self.tracks_oldest and self.starts is not None:
            raise ValueError(f"{self.name}: recorded starts go with on_bound='refuse', not {self.on_bound!r}")
        check_weights(self, num_clients, flying, self.rate is not None)
        check_starts(self.name, self.starts, num_clients)
        older = {"before_step=True": self.before_step, "start_skew=True": self.start_skew}
        others = {"on_bound='stop'": self.on_bound == "stop", "starts": self.starts is not None}
        others |= {"rate": self.rate is not None, "weights": draws_by_weight(self)}
        check_hours(self, num_clients, **older, **others)

    @property
    def varies(self) -> bool:
        return self.period is not None or self.on_bound == "wait"

    @property
    def _size(self) -> int:
        """M, without `period`."""
        return self.buffer or 1

    @property
    def _delivers(self) -> Delivery:
        """Properties of the arrivals with these options."""
        empty = Delivery.EMPTY if self.period is not None else Delivery.NONE
        return Events.delivers | empty | (Delivery.NONE if self.varies or self.rate is not None else Delivery.REPLIES)

    @property
    def tracks_oldest(self) -> bool:
        return self.on_bound != "refuse"

    def capacity(self, num_clients: int) -> int:
        if self.varies:
            return self.max_arrivals or (self.period is not None and self.buffer) or num_clients
        return self._size

    def in_flight(self, num_clients: int) -> int:
        return self.concurrency or num_clients

    def ring_slots(self, num_clients: int) -> int:
        return self.in_flight(num_clients) + 1 + self.start_skew

    def prepare(self, counts: np.ndarray, size: Callable[[], tuple[int, int]]) -> free_running:
        return by_samples(super().prepare(counts, size), counts)

    def client_weights(self, num_clients: int) -> Array | None:
        return weights_of(self, num_clients)

    def begin(self, key: Key, num_clients: int) -> Rules:
        window = None if self.period is None else first_window(self.period, self.windows, key)
        opening = None if self.rate is None else first_opening(self.rate, self.interval, key)
        hours = prepare_hours(self.hours, key, num_clients)
        return Rules(window, None if self.lost is None else key, hours, opening)

    def next_start(self, rules: Rules) -> Array | None:
        return None if rules.opening is None else rules.opening.time

    def after_start(self, rules: Rules) -> Rules:
        return rules._replace(opening=cast(Opening, rules.opening).after(self.rate, self.interval))

    def _bound(self, version: Array) -> Array | int:
        """Returns R at a version; 0 for no bound."""
        if self.max_staleness == "sqrt":
            return jnp.floor(jnp.sqrt(version + jnp.float64(1))).astype(jnp.int32)
        return self.max_staleness or 0

    def arrives(self, rules: Rules, event: Event) -> Verdict:
        run = event.run
        late = lost = jnp.bool_(False)
        if self.max_staleness is not None and self.on_bound != "wait":
            reference = run.version if run.reference is None else run.reference
            late = event.version - reference >= self._bound(event.version)
        if rules.key is not None and self.lost is not None:
            lost = is_lost(self.lost, rules.key, run)
        if self.period is not None and self.buffer is None:
            return Verdict(rules, False, late, lost)
        closes = event.taken + (~late & ~lost) >= self._size
        if self.on_bound == "wait":
            closes &= event.version + 1 - event.oldest <= self._bound(event.version + 1)
        return Verdict(rules, closes, late, lost)

    def last_stopped(self, rules: Rules, version: Array) -> Array | None:
        return version - self._bound(version) if self.on_bound == "stop" else None

    def alarm(self, rules: Rules) -> Array | None:
        return None if rules.window is None else end_of(rules.window, self.period)

    def rings(self, rules: Rules) -> Rules:
        return rules._replace(window=next_window(cast(Any, rules.window), self.period))

    def replaced(self, takes: Array, closes: Array) -> Array:
        if self.rate is not None:
            return jnp.int32(0)
        return jnp.where(takes, closes * self._size, 1) if self.dispatch == "step" else super().replaced(takes, closes)

    def some_wait(self, num_clients: int) -> bool:
        refuses = self.max_staleness is not None or self.lost is not None
        everyone = self.in_flight(num_clients) == num_clients and self.starts is None and self.hours is None
        return refuses and everyone and self.dispatch == "step"

    def choose(self, state: State, num_clients: int) -> tuple[Array, Array]:
        if self.hours is not None:
            awake, _ = self._awake(state, num_clients)
            others = num_clients - jnp.sum(awake, dtype=jnp.int32)
            rank = selection.idle_rank(state.start_key, state.starts.count, others, num_clients)
            return jnp.minimum(nth(awake, rank), num_clients - 1), jnp.int32(FaultCode.NONE)
        drawn = functools.partial(super().choose, state, num_clients)
        if self.starts is None:
            return drawn()
        client, missing = recorded_or(self.starts, state.starts.count, lambda: drawn()[0])
        taken = jnp.where(trees.is_busy(state.busy, client), FaultCode.BUSY, FaultCode.NONE)
        return client, jnp.where(missing, FaultCode.STARTS_END, taken).astype(jnp.int32)

    def opens(self, state: State, num_clients: int) -> Array | None:
        return None if self.hours is None else self._awake(state, num_clients)[1]

    def _awake(self, state: State, num_clients: int) -> tuple[Array, Array]:
        """Returns `within_hours` of the idle clients."""
        idle = trees.idle_clients(state.busy, num_clients)
        return within_hours(self.hours, state.rules.hours, state.now, idle)

    def start_version(self, state: State) -> tuple[Array, Array | None]:
        if self.before_step:
            return state.handout[state.row], None
        if not self.start_skew:
            return super().start_version(state)
        # all but the last of M newcomers train from the model before this step
        last = (state.waiting - 1) % self._size == 0
        return jnp.where(last, state.version, jnp.maximum(state.version - 1, 0)), state.version

    def in_flight_runs(self, state: State) -> InFlight:
        flight = super().in_flight_runs(state)
        promised = self.before_step or self.start_skew  # the next run may train from an older version than the newest
        return flight._replace(pinned=flight.pinned | promised)

    def held(self, state: State) -> list[Array]:
        return super().held(state._replace(version=state.version - self.start_skew))  # oldest start of the next run

    def online_ring_slots(self, num_clients: int) -> int:
        # a skewed run needs two versions until it arrives
        return self.in_flight(num_clients) * (2 if self.start_skew else 1) + 1

    def _no_runs(self, size: int) -> Runs:
        runs = super()._no_runs(size)
        return runs._replace(reference=runs.version) if self.start_skew else runs
