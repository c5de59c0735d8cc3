"""Clients that start and arrive at any time: the clock of FedAsync, AsyncFedED, FedBuff and FADAS."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from jaxafl.clock import selection, trees
from jaxafl.clock.checks import check_at_most, check_durations, check_starts
from jaxafl.clock.contract import (
    Clock,
    Delivery,
    FaultCode,
    InFlight,
    Recording,
    Runs,
    ServerStep,
    Starts,
    Workload,
)
from jaxafl.clock.durations.duration import Duration
from jaxafl.clock.durations.runs import Run, draw_of
from jaxafl.clock.starts import blank_runs, first_fault, invalid_code, no_starts, recorded_or, valid
from jaxafl.device.keys import Key, Purpose, purpose_key
from jaxafl.options import recording, static

Array = jax.Array
T = TypeVar("T")


class State(NamedTuple):
    """State of the clock between two server steps."""

    now: Array
    version: Array
    deliveries: Array
    waiting: Array  # number of starts that are due
    restarting: Array  # True if the starts of this instant have begun
    flight: Runs  # one row per concurrent run, [M_c]; a free row keeps its last run
    handout: Array  # [M_c], version just before the delivery of the row's arrival
    arrivals: trees.Arrivals  # arrivals of the rows
    freed: Array  # [M_c], rows in the order in which they become free, as a ring
    row: Array  # row of the next start
    busy: Array  # busy clients, see `trees.all_idle`
    runs: Array
    starts: Starts
    start_key: Key


class free_running(Clock):
    """Clock with M_c clients in training at any time and a server step after every M arrivals.

    The earliest finisher arrives. All arrivals of one instant are delivered in client order, and the server steps that
    they complete are taken, before any client restarts. A client that has just arrived is idle and may be drawn at
    once. If all clients are in flight (M_c = N), the arrived client itself restarts.

    Args:
        concurrency: number of clients in flight M_c, at most N.
        durations: duration of a run in simulated seconds.
        buffer: arrivals per server step M.
        dispatch: time of restarts. `"arrival"`: each arrival starts one client, drawn uniformly from the idle ones,
            from the newest version. `"step"`: the M replacements start at the server step (the clock of FADAS's
            published numbers).
        before_step: hand out the version from just before the arrival's delivery, as FADAS's Algorithm 1 literally says
            (`"arrival"` only). The arrival that completes a buffer then hands out x_t instead of x_{t+1}.
        start_skew: imitate FADAS's released code (`"step"` only), for comparison. The first M - 1 of M new runs train
            from x_{t-1}, but are stamped t, and their updates are relative to x_t.

    References:
        FADAS (Wang et al., 2024), Algorithm 1; AsyncFedED (Wang et al., 2022); FedBuff (Nguyen et al., 2022).
    """

    concurrency: int = static(kw_only=True)
    durations: Duration = dataclasses.field(kw_only=True)
    buffer: int = static(default=1, kw_only=True)
    dispatch: Literal["arrival", "step"] = static(default="arrival", kw_only=True)
    before_step: bool = static(default=False, kw_only=True)
    start_skew: bool = static(default=False, kw_only=True)
    starts: Recording = recording(default=None)

    delivers: ClassVar[Delivery] = Delivery.STALE | Delivery.CONTINUOUS | Delivery.REPLIES
    event_by_event: ClassVar[bool] = True

    def check(self, num_clients: int) -> None:
        check_at_most(self.name, "concurrency", self.concurrency, num_clients)
        if self.dispatch == "step" and self.buffer > self.concurrency:
            raise ValueError(
                f"a buffer of {self.buffer} can never fill: with dispatch='step' at most concurrency="
                f"{self.concurrency} updates arrive before the next server step; use a buffer <= concurrency or "
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
        check_starts(self.name, self.starts, num_clients)
        check_durations(self.name, self.durations, num_clients)

    def capacity(self, num_clients: int) -> int:
        return self.buffer

    def in_flight(self, num_clients: int) -> int:
        return self.concurrency

    def ring_slots(self, num_clients: int) -> int:
        return self.concurrency + 1 + self.start_skew

    def init(self, key: Key, num_clients: int) -> State:
        size = self.concurrency
        rows = jnp.arange(size, dtype=jnp.int32)
        return State(
            now=jnp.float64(0),
            version=jnp.int32(0),
            deliveries=jnp.int32(0),
            waiting=jnp.int32(size),
            restarting=jnp.bool_(True),
            flight=self._no_runs(size),
            handout=jnp.zeros_like(rows),
            arrivals=trees.no_arrivals(size),
            freed=rows,
            row=jnp.int32(0),
            busy=trees.all_idle(num_clients),
            runs=selection.no_runs(num_clients),
            starts=no_starts(self.durations, key, num_clients),
            start_key=purpose_key(key, Purpose.START),
        )

    def next(self, state: State, workload: Workload) -> tuple[State, ServerStep]:
        """Delivers M arrivals; clients that are due start before simulated time advances."""
        empty = ServerStep(jnp.float64(0), jnp.zeros(self.buffer, bool), self._no_runs(self.buffer))

        def advance(carry: tuple[State, ServerStep, Array]) -> tuple[State, ServerStep, Array]:
            state, step, count = carry
            return self._deliver(self._start(state, workload), step, count, workload.num_clients)

        state, step, _ = jax.lax.while_loop(lambda carry: carry[2] < self.buffer, advance, (state, empty, jnp.int32(0)))
        return state, step._replace(time=state.now)

    def in_flight_runs(self, state: State) -> InFlight:
        """Returns the runs in flight, for an online clock."""
        runs = state.flight
        arrived = trees.arrival_times(state.arrivals, self.concurrency)
        busy = jnp.isfinite(arrived)
        version = jnp.where(busy, runs.version, state.handout)
        reference = None if runs.reference is None else jnp.where(busy, runs.reference, version)
        promised = self.before_step or self.start_skew  # the next run may train from an older version than the newest
        pinned = jnp.ones_like(busy) if promised else busy
        return InFlight(busy, runs._replace(version=version, reference=reference, arrived=arrived), pinned)

    def held(self, state: State) -> list[Array]:
        flight = self.in_flight_runs(state)
        runs = flight.runs.complete()
        skewed = state.version - self.start_skew  # oldest start model of the next run
        return [jnp.where(flight.pinned, seen, skewed) for seen in (runs.version, jnp.asarray(runs.reference))]

    def online_ring_slots(self, num_clients: int) -> int:
        # a skewed run needs two versions until it arrives
        return self.concurrency * (2 if self.start_skew else 1) + 1

    def _no_runs(self, size: int) -> Runs:
        runs = blank_runs(size)
        return runs._replace(reference=runs.version) if self.start_skew else runs

    def _start(self, state: State, workload: Workload) -> State:
        """Starts one client if one is due and all arrivals of this instant have been delivered."""
        row = state.row
        known = state.starts
        begins = (state.waiting > 0) & (state.restarting | (state.arrivals.first[0] > state.now))
        client, code = self._choose(state, row, workload.num_clients)
        runs, run = selection.count_run(state.runs, client, begins)
        version = state.handout[row] if self.before_step else state.version
        reference = None
        if self.start_skew:  # all but the last of M newcomers train from the model before this step
            last = (state.waiting - 1) % self.buffer == 0
            reference = version
            version = jnp.where(last, version, jnp.maximum(version - 1, 0))
        local_steps = workload.local_steps(client, run, version, begins).astype(jnp.int32)
        drawn = draw_of(self.durations, known.prepared, Run(client, run, local_steps, known.longest, state.now))
        duration = drawn.work + drawn.hang
        fine = valid(duration)
        code = jnp.where((code > 0) | fine, code, invalid_code(duration))
        code = jnp.where(begins, code, FaultCode.NONE)
        known = first_fault(known, code, run_id=known.count, client=client, run=run, round=state.version)
        arrives = state.now + jnp.where(fine, duration, 1)
        begun = Runs(client, run, known.count, version, local_steps, state.now, arrives, reference)
        one = begins.astype(jnp.int32)
        waiting = state.waiting - one
        return state._replace(
            waiting=waiting,
            restarting=jnp.where(begins, waiting > 0, state.restarting & (waiting > 0)),
            flight=_set(state.flight, row, begun, begins),
            arrivals=trees.expect(state.arrivals, self.concurrency, row, arrives, client, begins),
            busy=trees.becomes_busy(state.busy, workload.num_clients, client, one),
            runs=runs,
            starts=known._replace(
                count=known.count + one,
                longest=jnp.where(
                    begins & fine & ~jnp.isinf(drawn.work), jnp.maximum(known.longest, drawn.work), known.longest
                ),
            ),
        )

    def _choose(self, state: State, row: Array, num_clients: int) -> tuple[Array, Array]:
        """Returns the client to start, and a fault code."""
        started = state.starts.count

        def draw() -> Array:
            if self.concurrency == num_clients:
                return state.flight.client[row]  # all clients are in flight: the arrived client itself restarts
            rank = selection.idle_rank(state.start_key, started, started - state.deliveries, num_clients)
            return trees.nth_idle(state.busy, num_clients, rank)

        client, missing = recorded_or(self.starts, started, draw)
        if self.starts is None:  # drawn clients are idle
            return client, jnp.int32(FaultCode.NONE)
        taken = jnp.where(trees.is_busy(state.busy, client), FaultCode.BUSY, FaultCode.NONE)
        return client, jnp.where(missing, FaultCode.STARTS_END, taken).astype(jnp.int32)

    def _deliver(
        self, state: State, step: ServerStep, count: Array, num_clients: int
    ) -> tuple[State, ServerStep, Array]:
        """Delivers the earliest arrival, unless starts come first."""
        earliest, client, row = state.arrivals.first
        delivers = ~state.restarting & ((state.waiting == 0) | (earliest == state.now))
        run = jax.tree.map(lambda column: column[row], state.flight)
        index = jnp.where(delivers, count, self.buffer)
        mask, runs = jax.tree.map(
            lambda column, value: column.at[index].set(value, mode="drop"), (step.mask, step.runs), (delivers, run)
        )
        count = count + delivers.astype(jnp.int32)
        stepped = delivers & (count == self.buffer)
        due = stepped * self.buffer if self.dispatch == "step" else delivers * 1
        one = delivers.astype(jnp.int32)
        gone = jnp.where(delivers & jnp.isinf(earliest), FaultCode.ALL_GONE, FaultCode.NONE)
        freed = _set(state.freed, state.deliveries % self.concurrency, row, delivers)
        state = state._replace(
            now=jnp.where(delivers, earliest, state.now),
            starts=first_fault(state.starts, gone, round=state.version, time=state.now),
            version=state.version + stepped.astype(jnp.int32),
            deliveries=state.deliveries + one,
            waiting=state.waiting + jnp.asarray(due, jnp.int32),
            handout=_set(state.handout, row, state.version, delivers),
            arrivals=trees.expect(state.arrivals, self.concurrency, row, jnp.float64(jnp.inf), client, delivers),
            freed=freed,
            row=freed[state.starts.count % self.concurrency],  # XLA copies the array if it is read before the write
            busy=trees.becomes_busy(state.busy, num_clients, client, -one),
        )
        return state, ServerStep(step.time, mask, runs), count


def _set(columns: T, row: Array, entry: T, where: Array) -> T:
    return jax.tree.map(lambda column, value: column.at[row].set(jnp.where(where, value, column[row])), columns, entry)
