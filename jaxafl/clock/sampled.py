"""Rounds that wait for the send buffers of drawn clients while all clients train: the clock of DeFedAvg-nIID."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.clock.checks import check_durations, check_sets
from jaxafl.clock.contract import Clock, Delivery, FaultCode, Recording, Runs, ServerStep, Starts, Workload
from jaxafl.clock.durations.duration import Duration
from jaxafl.clock.starts import blank_runs, distinct, drawn_clients, first_fault, no_starts, start_runs
from jaxafl.device.keys import Key
from jaxafl.options import recording, static

Array = jax.Array


class State(NamedTuple):
    """State of the clock between two server steps."""

    now: Array
    version: Array
    idle: Array  # bool [N], True if the client waits for a model that it may use
    fresh: Array  # bool [N], True if the model in the receive buffer is unused
    current: Runs  # [N], runs in training; arrived = inf for an idle client
    full: Array  # bool [N], True if the send buffer holds a result
    sent: Runs  # [N], runs in the send buffers
    next_run: Array
    starts: Starts
    key: Key


class sampled(Clock):
    """DeFedAvg-nIID's rounds, which wait for updates in the send buffers of n clients drawn with replacement.

    The clients are drawn at the moment of the previous step. As soon as every drawn client has a result, the server
    steps, reads and empties their send buffers, and broadcasts the new model to all clients. All clients train all the
    time, from the newest broadcast that they have received. All runs that end at one instant are delivered, and the
    steps that they complete are taken, before any client restarts. The client that completes a round thus starts from
    the new version.

    Args:
        drawn: drawn clients per round n. A client drawn k times counts k times.
        durations: duration of a run in simulated seconds.
        receive_buffer: use of a received model. `"keep"`: any number of times. `"consume"`: once, then the client idles
            until the next broadcast.
        send_buffer: treatment of a new result if the send buffer is full. `"overwrite"`: it replaces the older one.
            `"hold"` (section 2.3): it is dropped, and the client continues to train.

    References:
        "Achieving linear speedup in asynchronous federated learning with heterogeneous clients" (DeFedAvg), Algorithm
        1.
    """

    drawn: int = static(kw_only=True)
    durations: Duration = dataclasses.field(kw_only=True)
    receive_buffer: Literal["keep", "consume"] = static(default="keep", kw_only=True)
    send_buffer: Literal["overwrite", "hold"] = static(default="overwrite", kw_only=True)
    sets: Recording = recording(default=None)

    references: ClassVar[tuple[str, ...]] = ("wang2024defedavg",)
    delivers: ClassVar[Delivery] = Delivery.STALE | Delivery.CONTINUOUS | Delivery.MULTIPLE | Delivery.PULLED
    event_by_event: ClassVar[bool] = True

    def check(self, num_clients: int) -> None:
        check_sets(self.name, self.sets, self.drawn, num_clients, repeats=True)
        check_durations(self.name, self.durations, num_clients)

    def capacity(self, num_clients: int) -> int:
        return self.drawn

    def in_flight(self, num_clients: int) -> int:
        return num_clients

    def ring_slots(self, num_clients: int) -> int:
        return 2 * num_clients + 1  # per client the run in flight and the one in the send buffer

    def init(self, key: Key, num_clients: int) -> State:
        runs = blank_runs(num_clients)
        return State(
            now=jnp.float64(0),
            version=jnp.int32(0),
            idle=jnp.ones(num_clients, bool),
            fresh=jnp.ones(num_clients, bool),
            current=runs,
            full=jnp.zeros(num_clients, bool),
            sent=runs,
            next_run=runs.run,
            starts=no_starts(self.durations, key, num_clients),
            key=key,
        )

    def next(self, state: State, workload: Workload) -> tuple[State, ServerStep]:
        """Draws n clients, and advances time until each has a result in its send buffer."""
        state, drawn = drawn_clients(state, self.sets, self.drawn, workload.num_clients, replacement=True)
        awaited = jnp.any(jnp.arange(workload.num_clients)[:, None] == drawn, axis=1)
        state = jax.lax.while_loop(
            lambda state: jnp.any(awaited & ~state.full) & (state.starts.fault.code == 0),
            lambda state: self._finish(_waiting(self._start(state, workload), awaited)),
            state,
        )
        client, mask, multiplicity = distinct(drawn)
        sent = jax.tree.map(lambda column: column[client], state.sent)
        return state._replace(
            version=state.version + 1, full=state.full & ~awaited, fresh=jnp.ones_like(state.fresh)
        ), ServerStep(state.now, mask, sent, multiplicity)

    def _start(self, state: State, workload: Workload) -> State:
        """Starts idle clients from the newest broadcast, except for those that have consumed it."""
        begins = state.idle if self.receive_buffer == "keep" else state.idle & state.fresh
        clients = jnp.arange(workload.num_clients, dtype=jnp.int32)
        state, new = start_runs(self.durations, state, begins, clients, state.next_run, workload)
        endless = begins & (new.arrived == new.started)
        first = jnp.argmax(endless)
        code = jnp.where(jnp.any(endless), FaultCode.NO_TIME, FaultCode.NONE)
        which = {"run_id": new.run_id[first], "client": first.astype(jnp.int32), "run": new.run[first]}
        return state._replace(
            starts=first_fault(state.starts, code, round=state.version, **which),
            idle=state.idle & ~begins,
            fresh=state.fresh & ~begins,
            current=jax.tree.map(lambda a, b: jnp.where(begins, a, b), new, state.current),
            next_run=state.next_run + begins,
        )

    def _finish(self, state: State) -> State:
        """Advances to the next instant at which runs end, and writes their results to the send buffers."""
        now = jnp.min(state.current.arrived)
        ends = state.current.arrived == now
        written = ends if self.send_buffer == "overwrite" else ends & ~state.full
        return state._replace(
            now=now,
            idle=state.idle | ends,
            full=state.full | written,
            sent=jax.tree.map(lambda a, b: jnp.where(written, a, b), state.current, state.sent),
            current=state.current._replace(arrived=jnp.where(ends, jnp.inf, state.current.arrived)),
        )


def _waiting(state: State, awaited: Array) -> State:
    """Records a fault if an awaited run never arrives."""
    never = awaited & ~state.full & ~state.idle & jnp.isinf(state.current.arrived)
    first = jnp.argmax(never)
    code = jnp.where(jnp.any(never), FaultCode.NEVER, FaultCode.NONE)
    runs = state.current
    which = {"run_id": runs.run_id[first], "client": first, "run": runs.run[first]}
    return state._replace(starts=first_fault(state.starts, code, round=state.version, time=state.now, **which))
