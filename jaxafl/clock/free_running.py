"""Clients that train without pause: the clock of FedAsync, AsyncFedED, FedBuff and FADAS."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.checks import check_choice, check_flag, check_whole
from jaxafl.clock import selection
from jaxafl.clock.checks import check_concurrency, check_durations, check_starts
from jaxafl.clock.contract import Fault, InFlight, ServerStep, Workload, first_fault, no_fault, valid
from jaxafl.clock.durations import Duration, Run, stream_keys
from jaxafl.keys import Key, Purpose, purpose_key
from jaxafl.pytrees import pytree, static

Array = jax.Array
_LATE = jnp.iinfo(jnp.int32).max


class Flight(NamedTuple):
    """One row per concurrent run, [M_c]; the run under way or, where `busy` is false, the last one."""

    busy: Array
    client: Array
    run: Array
    dispatch: Array
    version: Array
    reference: Array
    local_steps: Array
    started: Array
    arrives: Array
    freed: Array  # the order in which rows became free
    handout: Array  # the version that was current just before the row's arrival was delivered


class State(NamedTuple):
    """The clock between two server steps."""

    now: Array
    version: Array
    dispatches: Array
    deliveries: Array
    waiting: Array  # starts that are due
    restarting: Array  # the starts of this instant have begun
    flight: Flight
    busy: Array  # sorted busy clients, [M_c] ([0] when all clients are in flight)
    runs: Array
    longest: Array
    fault: Fault
    prepared: Any
    start_key: Key


@pytree
class FreeRunning:
    """See `free_running`."""

    durations: Any
    starts: Any = None
    concurrency: int = static(default=1)
    buffer: int = static(default=1)
    dispatch: str = static(default="arrival")
    before_step: bool = static(default=False)
    start_skew: bool = static(default=False)

    name: ClassVar[str] = "free_running"

    def check(self, num_clients: int) -> None:
        check_concurrency("free_running", "concurrency", self.concurrency, num_clients)
        check_whole("free_running", "buffer", self.buffer)
        check_choice("free_running", "dispatch", self.dispatch, ("arrival", "step"))
        check_flag("free_running", "before_step", self.before_step)
        check_flag("free_running", "start_skew", self.start_skew)
        if self.dispatch == "step" and self.buffer > self.concurrency:
            raise ValueError(
                f"a buffer of {self.buffer} can never fill: with dispatch='step' at most concurrency="
                f"{self.concurrency} updates arrive before the next server step; use a buffer <= concurrency or "
                "dispatch='arrival'"
            )
        if self.before_step and self.dispatch != "arrival":
            raise ValueError(
                "before_step=True needs dispatch='arrival': with 'step' nobody starts before the server step"
            )
        if self.start_skew and self.dispatch != "step":
            raise ValueError(
                "start_skew=True needs dispatch='step': it is how FADAS's released code starts M newcomers"
            )
        check_starts("free_running", self.starts, num_clients)
        check_durations("free_running", self.durations, num_clients)

    def capacity(self, num_clients: int) -> int:
        return self.buffer

    def in_flight(self, num_clients: int) -> int:
        return self.concurrency

    def ring_slots(self, num_clients: int) -> int:
        return self.concurrency + 1 + self.start_skew

    def init(self, key: Key, num_clients: int) -> State:
        rows = jnp.arange(self.concurrency, dtype=jnp.int32)
        zero = jnp.zeros_like(rows)
        everyone = self.concurrency == num_clients
        never = jnp.full(self.concurrency, jnp.inf, jnp.float64)
        no_time = jnp.zeros(self.concurrency, jnp.float64)
        none = jnp.int32(0)
        return State(
            now=jnp.float64(0),
            version=none,
            dispatches=none,
            deliveries=jnp.int32(self.concurrency),
            waiting=jnp.int32(self.concurrency),
            restarting=jnp.bool_(True),
            flight=Flight(rows < 0, rows, zero, zero, zero, zero, zero, no_time, never, rows, zero),
            busy=jnp.zeros(0, jnp.int32) if everyone else selection.no_busy(self.concurrency, num_clients),
            runs=selection.no_runs(num_clients),
            longest=jnp.float64(0),
            fault=no_fault(),
            prepared=self.durations.prepare(stream_keys(key, self.durations), num_clients),
            start_key=purpose_key(key, Purpose.START),
        )

    def next(self, state: State, workload: Workload) -> tuple[State, ServerStep]:
        """Delivers arrivals until M have come; whoever is due to start does so when the clock leaves the instant."""
        zeros = jnp.zeros(self.buffer, jnp.int32)
        times = jnp.zeros(self.buffer, jnp.float64)
        empty = ServerStep(
            jnp.float64(0), zeros < 0, zeros, zeros, zeros, zeros, zeros, zeros, times, times, zeros + 1, zeros
        )

        def advance(carry: tuple[State, ServerStep, Array]) -> tuple[State, ServerStep, Array]:
            state, step, count = carry
            state = self._start(state, workload)
            return self._deliver(state, step, count, workload.num_clients)

        state, step, _ = jax.lax.while_loop(lambda carry: carry[2] < self.buffer, advance, (state, empty, jnp.int32(0)))
        return state, step._replace(time=state.now)

    def fault(self, state: State) -> Fault:
        return state.fault

    def in_flight_runs(self, state: State) -> InFlight:
        """The runs under way, for a driver that trains beside the clock."""
        flight = state.flight
        version = jnp.where(flight.busy, flight.version, flight.handout)
        reference = jnp.where(flight.busy, flight.reference, version)
        promised = self.before_step or self.start_skew  # who starts next trains from an older version than the newest
        pinned = jnp.ones_like(flight.busy) if promised else flight.busy
        return InFlight(
            flight.busy, flight.client, flight.run, flight.dispatch, version, reference, flight.local_steps,
            flight.arrives, pinned,
        )  # fmt: skip

    def slots_beside(self, num_clients: int) -> int:
        """A skewed run needs two versions, and keeps both until it arrives."""
        return self.concurrency * (2 if self.start_skew else 1) + 1

    def _start(self, state: State, workload: Workload) -> State:
        """Starts one client, if any is due and all arrivals of this instant have been delivered."""
        flight = state.flight
        starts = (state.waiting > 0) & (state.restarting | (jnp.min(flight.arrives) > state.now))
        row = jnp.argmin(jnp.where(flight.busy, _LATE, flight.freed))
        client, code = self._choose(state, row, workload.num_clients)
        runs, run = selection.count_run(state.runs, client, starts)
        version = flight.handout[row] if self.before_step else state.version
        trained_from = version
        if self.start_skew:  # all but the last of M newcomers train from the model before this step
            last = (state.waiting - 1) % self.buffer == 0
            trained_from = jnp.where(last, version, jnp.maximum(version - 1, 0))
        local_steps = workload.local_steps(client, run, trained_from, starts).astype(jnp.int32)
        drawn = self.durations.draw(state.prepared, Run(client, run, local_steps, state.longest, state.now))
        duration = drawn.work + drawn.hang
        invalid = ~valid(duration)
        code = jnp.where(code > 0, code, jnp.where(jnp.isnan(duration), 1, jnp.where(invalid, 4, 0)).astype(jnp.int32))
        arrives = state.now + jnp.where(invalid, 0, duration)
        entry = Flight(
            jnp.bool_(True), client, run, state.dispatches, trained_from, version, local_steps, state.now, arrives,
            flight.freed[row], flight.handout[row],
        )  # fmt: skip
        one = starts.astype(jnp.int32)
        waiting = state.waiting - one
        failed = Fault(jnp.where(starts, code, 0), state.dispatches, client, run, state.version)
        return state._replace(
            dispatches=state.dispatches + one,
            waiting=waiting,
            restarting=jnp.where(starts, waiting > 0, state.restarting & (waiting > 0)),
            flight=_set(flight, row, entry, starts),
            busy=jnp.where(starts, selection.insert(state.busy, client), state.busy) if state.busy.size else state.busy,
            runs=runs,
            longest=jnp.where(starts & ~invalid, jnp.maximum(state.longest, drawn.work), state.longest),
            fault=first_fault(state.fault, failed),
        )

    def _choose(self, state: State, row: Array, num_clients: int) -> tuple[Array, Array]:
        """The client to start, and a fault code."""
        fine = jnp.int32(0)
        num_busy = jnp.sum(state.flight.busy, dtype=jnp.int32)
        if self.starts is not None:
            recorded = jnp.asarray(self.starts, jnp.int32)
            inside = state.dispatches < recorded.shape[0]
            client = recorded[jnp.minimum(state.dispatches, recorded.shape[0] - 1)]
            taken = jnp.any(state.flight.busy & (state.flight.client == client))
            return client, jnp.where(~inside, 2, jnp.where(taken, 3, fine)).astype(jnp.int32)
        if not state.busy.size:
            return state.flight.client[row], fine  # all clients are in flight: the arrived client itself restarts
        return selection.idle_client(state.start_key, state.dispatches, state.busy, num_busy, num_clients), fine

    def _deliver(
        self, state: State, step: ServerStep, count: Array, num_clients: int
    ) -> tuple[State, ServerStep, Array]:
        """Delivers the earliest arrival, unless starts come first."""
        flight = state.flight
        earliest = jnp.min(flight.arrives)
        delivers = ~state.restarting & ((state.waiting == 0) | (earliest == state.now))
        row = jnp.argmin(jnp.where(flight.arrives == earliest, flight.client, _LATE))
        client = flight.client[row]
        entry = (
            delivers, client, flight.run[row], flight.dispatch[row], flight.version[row], flight.reference[row],
            flight.local_steps[row], flight.started[row], earliest, jnp.int32(1), jnp.int32(0),
        )  # fmt: skip
        index = jnp.where(delivers, count, self.buffer)
        filled = [old.at[index].set(new, mode="drop") for old, new in zip(step[1:], entry, strict=True)]
        count = count + delivers.astype(jnp.int32)
        stepped = delivers & (count == self.buffer)
        due = stepped * self.buffer if self.dispatch == "step" else delivers * 1
        waiting = state.waiting + jnp.asarray(due, jnp.int32)
        freed = jax.tree.map(lambda column: column[row], flight)._replace(
            busy=jnp.bool_(False), arrives=jnp.float64(jnp.inf), freed=state.deliveries, handout=state.version
        )
        state = state._replace(
            now=jnp.where(delivers, earliest, state.now),
            version=state.version + stepped.astype(jnp.int32),
            deliveries=state.deliveries + delivers.astype(jnp.int32),
            waiting=waiting,
            flight=_set(flight, row, freed, delivers),
            busy=jnp.where(delivers, selection.remove(state.busy, client, num_clients), state.busy)
            if state.busy.size
            else state.busy,
        )
        return state, ServerStep(step.time, *filled), count


def free_running(
    *,
    concurrency: int,
    durations: Duration,
    buffer: int = 1,
    dispatch: str = "arrival",
    before_step: bool = False,
    start_skew: bool = False,
) -> FreeRunning:
    """M_c clients train at any time; the server steps after every M arrivals.

    The earliest finisher arrives. All arrivals of one instant are delivered, in client order, and the server steps they
    complete are taken, before anyone restarts. A client that has just arrived is idle, so it may be drawn at once; when
    all clients are in flight (M_c = N) the arrived client itself restarts.

    Args:
        concurrency: M_c, clients in flight, at most N.
        durations: how long a run takes, in simulated seconds.
        buffer: M, arrivals per server step.
        dispatch: `"arrival"`: each arrival starts one client, drawn uniformly from the idle ones, from the newest
            version. `"step"`: the M replacements start together at the server step (the clock behind FADAS's published
            numbers).
        before_step: FADAS's Algorithm 1 read literally (`"arrival"` only): a replacement receives the version that was
            current just before its arrival was delivered, so also the arrival that completes a buffer hands out x_t,
            not x_{t+1}.
        start_skew: FADAS's released code (`"step"` only): of M newcomers the first M - 1 train from x_{t-1}, but are
            stamped t and their update is measured against x_t. For comparison only.

    References:
        FADAS (Wang et al., 2024), Algorithm 1; AsyncFedED (Wang et al., 2022); FedBuff (Nguyen et al., 2022).
    """
    return FreeRunning(durations, None, concurrency, buffer, dispatch, before_step, start_skew)


def _set(flight: Flight, row: Array, entry: Flight, where: Array) -> Flight:
    return jax.tree.map(lambda column, value: column.at[row].set(jnp.where(where, value, column[row])), flight, entry)
