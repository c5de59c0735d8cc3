"""Rounds that end with their slowest client: the clocks of FedAvg, of FedAsync's simulation, and of AFL."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.clock import selection
from jaxafl.clock.checks import check_at_most, check_durations, check_sets, check_stale
from jaxafl.clock.contract import ByOptions, Clock, Delivery, FaultCode, Recording, ServerStep, Starts, Workload
from jaxafl.clock.durations.duration import Duration, constant
from jaxafl.clock.hours import check_hours, draw_some, nth, prepare_hours, within_hours
from jaxafl.clock.starts import (
    blank_runs,
    distinct,
    drawn_clients,
    first_fault,
    is_lost,
    no_starts,
    replayed,
    start_runs,
)
from jaxafl.clock.weights import by_samples, check_weights, draws_by_weight, weights_of
from jaxafl.device.keys import Key, Purpose, below, purpose_key, threefry
from jaxafl.options import Number, number, recording, static

Array = jax.Array
_ROUNDING = 1e-9  # 0.07 · 100 is above 7 in floating point


class State(NamedTuple):
    """State of a clock between two rounds."""

    now: Array
    version: Array
    drawn: Array  # number of rounds, failed ones included
    runs: Array  # int32 [N], number of runs that each client has started
    starts: Starts
    key: Key
    hours: Any = None  # result of `prepare_hours`


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
    hours: Duration | None = dataclasses.field(default=None, kw_only=True)
    select: Literal["uniform", "samples"] = static(default="uniform", kw_only=True)
    weights: Number | None = number(default=None, least=0, per_client=True, kw_only=True)
    sets: Recording = recording(default=None)

    delivers: ClassVar[Delivery] = Delivery.MULTIPLE
    order_free = ByOptions(True, lambda clock: not clock._varies)
    takes_all = ByOptions(True, lambda clock: clock.lost is None)

    def check(self, num_clients: int) -> None:
        if self.cohort is not None and not self.replacement:
            name = "cohort + extra" if self.extra else "cohort"
            check_at_most(self.name, name, self.cohort + self.extra, num_clients)
        if self.extra and (self.cohort is None or self.replacement):
            raise ValueError(
                f"{self.name}: extra={self.extra} clients come on top of a cohort drawn without replacement: "
                f"give cohort=n, and replacement=False"
            )
        if self.deadline is not None and self.deadline_quantile is not None:
            raise ValueError(f"{self.name}: give deadline or deadline_quantile, not both")
        if self.cohort is None and self.replacement:
            raise ValueError(
                f"{self.name}: replacement=True draws a cohort of a given size, and cohort=None: give cohort=n, e.g. "
                f"{num_clients}, the number of clients"
            )
        check_sets(self.name, self.sets, self.capacity(num_clients), num_clients, repeats=self.replacement)
        check_weights(self, num_clients, 1 if self.replacement else self.capacity(num_clients))
        check_durations(self.name, self.durations, num_clients)
        check_hours(self, num_clients, sets=self.sets is not None, weights=draws_by_weight(self))

    @property
    def _varies(self) -> bool:
        """True if a round may end without all of its runs, or begin with fewer."""
        given = (self.deadline, self.deadline_quantile, self.lost, self.hours)
        return self.extra > 0 or any(one is not None for one in given)

    def prepare(self, counts: np.ndarray, size: Callable[[], tuple[int, int]]) -> synchronous:
        return by_samples(super().prepare(counts, size), counts)

    def capacity(self, num_clients: int) -> int:
        return num_clients if self.cohort is None else self.cohort + self.extra

    def ring_slots(self, num_clients: int) -> int:
        return 2  # the version that the cohort trains from, and the one being written

    def init(self, key: Key, num_clients: int) -> State:
        state = _initial(self.durations, key, num_clients)
        return state._replace(hours=prepare_hours(self.hours, key, num_clients))

    def next(self, state: State, workload: Workload) -> tuple[State, ServerStep]:
        """Computes one round: draws the cohort, and waits for its slowest client."""
        if self._varies:
            return self._early(state, workload)
        state, client, mask, multiplicity = self._cohort(state, workload.num_clients)
        state, runs = start_runs(self.durations, state, mask, client, state.runs[client], workload, exclusive=True)
        return _ended(state, ServerStep(jnp.max(runs.arrived), mask, runs, multiplicity))

    def _cohort(self, state: State, num_clients: int) -> tuple[State, Array, Array, Array | None]:
        """Draws the clients of a round in client order, a mask of the runs, and their multiplicities if they differ."""
        size = self.capacity(num_clients)
        if self.hours is not None:
            return self._within_hours(state, size, num_clients)
        weights = weights_of(self, num_clients)
        state, drawn = drawn_clients(state, self.sets, size, num_clients, replacement=self.replacement, weights=weights)
        if self.replacement:  # a client drawn twice trains once and counts twice
            return state, *distinct(drawn)
        return state, jnp.sort(drawn), jnp.ones(size, bool), None

    def _within_hours(self, state: State, size: int, num_clients: int) -> tuple[State, Array, Array, Array | None]:
        """Returns `_cohort` of the clients within their hours, at the first time at which there is one."""
        everyone = jnp.ones(num_clients, bool)
        state = state._replace(now=within_hours(self.hours, state.hours, state.now, everyone)[1])
        awake, _ = within_hours(self.hours, state.hours, state.now, everyone)
        key = purpose_key(state.key, Purpose.START)
        if not self.replacement:
            return state, *draw_some(key, state.version, awake, size), None
        draws = state.version * size + jnp.arange(size, dtype=jnp.int32)
        others = num_clients - jnp.sum(awake, dtype=jnp.int32)
        return state, *distinct(nth(awake, selection.idle_rank(key, draws, others, num_clients)))

    def _early(self, state: State, workload: Workload) -> tuple[State, ServerStep]:
        """Computes one round that may end without all of its runs."""
        size = self.capacity(workload.num_clients)

        def attempt(carry: tuple[State, ServerStep, Array, Array]) -> tuple[State, ServerStep, Array, Array]:
            state, _, gone, _ = carry
            as_round, client, begins, multiplicity = self._cohort(
                state._replace(version=state.drawn), workload.num_clients
            )
            state = as_round._replace(version=state.version)
            state, runs = start_runs(
                self.durations, state, begins, client, state.runs[client], workload, exclusive=True
            )
            arrives = begins if self.lost is None else begins & ~is_lost(self.lost, state.key, runs)
            arrived = jnp.where(arrives, runs.arrived, jnp.inf)
            ordered = jnp.sort(arrived)
            last = ordered[size - self.extra - 1]
            last = jnp.where(jnp.isinf(last), jnp.max(jnp.where(begins, runs.arrived, 0)), last)
            deadline = jnp.inf if self.deadline is None else state.now + self.deadline
            if self.deadline_quantile is not None:
                place = (
                    jnp.ceil(jnp.asarray(self.deadline_quantile) * jnp.sum(begins) - _ROUNDING).astype(jnp.int32) - 1
                )
                deadline = jnp.sort(jnp.where(begins, runs.arrived, jnp.inf))[place]
            time = jnp.maximum(jnp.minimum(last, deadline), jnp.where(jnp.isinf(ordered[0]), 0, ordered[0]))
            mask = arrives & (arrived <= time) & (jnp.argsort(jnp.argsort(arrived)) < size - self.extra)
            failed = begins & ~arrives & (runs.arrived <= time)
            place = jnp.where(begins, client, workload.num_clients)
            gone = gone.at[place].set(jnp.isinf(runs.arrived), mode="drop")
            code = jnp.where(jnp.all(gone) & ~jnp.any(mask), FaultCode.ALL_GONE, FaultCode.NONE)
            state = state._replace(starts=first_fault(state.starts, code, round=state.version, time=state.now))
            time = jnp.where(code > 0, jnp.inf, time)
            starts = state.starts._replace(
                lost=state.starts.lost + jnp.sum(failed, dtype=jnp.int32),
                stopped=state.starts.stopped + jnp.sum(begins & ~mask & ~failed, dtype=jnp.int32),
            )
            begun = state.runs.at[client].add(begins.astype(jnp.int32))
            state = state._replace(now=time, starts=starts, runs=begun, drawn=state.drawn + 1)
            ends = jnp.any(mask) | (state.starts.fault.code > 0)  # a round without arrivals might be repeated for ever
            return state, ServerStep(time, mask, runs, multiplicity), gone, ends

        multiplicity = jnp.ones(size, jnp.int32) if self.replacement else None
        none = ServerStep(state.now, jnp.zeros(size, bool), blank_runs(size), multiplicity)
        begin = (state, none, jnp.zeros(workload.num_clients, bool), jnp.bool_(False))
        state, step, *_ = jax.lax.while_loop(lambda carry: ~carry[3], attempt, begin)
        return state._replace(version=state.version + 1), step


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

    delivers: ClassVar[Delivery] = Delivery.STALE | Delivery.AGED
    takes_all: ClassVar[bool] = True
    order_free: ClassVar[bool] = True

    def check(self, num_clients: int) -> None:
        if not self.replacement:
            check_at_most(self.name, "participants", self.participants, num_clients)
        check_sets(self.name, self.sets, self.participants, num_clients, repeats=self.replacement)
        check_stale(self.name, self.stale, self.participants, self.max_staleness)
        check_durations(self.name, self.durations, num_clients)

    def capacity(self, num_clients: int) -> int:
        return self.participants

    def ring_slots(self, num_clients: int) -> int:
        return self.max_staleness + 1

    def init(self, key: Key, num_clients: int) -> State:
        return _initial(self.durations, key, num_clients)

    def held(self, state: State) -> list[Array]:
        return [jnp.maximum(state.version - jnp.arange(self.max_staleness + 1, dtype=jnp.int32), 0)]

    def next(self, state: State, workload: Workload) -> tuple[State, ServerStep]:
        """Computes one round; a client drawn twice (with replacement) executes two runs, which are counted in turn."""
        size = self.participants
        places = jnp.arange(size, dtype=jnp.int32)

        def ages() -> Array:
            key = purpose_key(state.key, Purpose.STALE)
            words, _ = threefry(key, jnp.broadcast_to(state.version, places.shape), places)
            return below(words, jnp.int32(self.max_staleness + 1))

        state, client = drawn_clients(state, self.sets, size, workload.num_clients, replacement=self.replacement)
        client = jnp.sort(client) if self.sets is None else client  # recorded ages belong to the recorded order
        state, stale = replayed(state, self.stale, state.version, FaultCode.STALE_END, ages)
        earlier = (client[:, None] == client[None, :]) & (places[None, :] < places[:, None])
        run = state.runs[client] + jnp.sum(earlier, axis=1, dtype=jnp.int32)
        mask = jnp.ones(size, bool)
        state, runs = start_runs(self.durations, state, mask, client, run, workload, exclusive=True)
        runs = runs._replace(version=jnp.maximum(state.version - stale, 0))
        return _ended(state, ServerStep(jnp.max(runs.arrived), mask, runs))


def _initial(durations: Duration, key: Key, num_clients: int) -> State:
    return State(
        now=jnp.float64(0),
        version=jnp.int32(0),
        drawn=jnp.int32(0),
        runs=jnp.zeros(num_clients, jnp.int32),
        starts=no_starts(durations, key, num_clients),
        key=key,
    )


def _ended(state: State, step: ServerStep) -> tuple[State, ServerStep]:
    """Returns the state after a server step, and the step."""
    runs = state.runs.at[step.runs.client].add(step.mask.astype(jnp.int32))
    return state._replace(now=step.time, version=state.version + 1, runs=runs), step
