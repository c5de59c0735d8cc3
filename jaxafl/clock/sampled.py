"""Rounds that wait for the send buffers of drawn clients, while all clients train: the clock of DeFedAvg-nIID."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.checks import check_choice, check_whole
from jaxafl.clock import draws
from jaxafl.clock.checks import check_durations, check_sets
from jaxafl.clock.contract import Fault, ServerStep, Workload, durations_fault, first_fault, no_fault, valid
from jaxafl.clock.durations import Duration, stream_keys
from jaxafl.keys import Key, Purpose, purpose_key
from jaxafl.pytrees import pytree, static

Array = jax.Array


class Runs(NamedTuple):
    """One run per client, [N]."""

    run: Array
    dispatch: Array
    version: Array
    local_steps: Array
    started: Array
    arrives: Array


class State(NamedTuple):
    """The clock between two server steps."""

    now: Array
    version: Array
    dispatches: Array
    idle: Array  # bool [N]: due to start as soon as it has a model that it may use
    fresh: Array  # bool [N]: the model in the receive buffer has not been used
    current: Runs  # what each client trains; arrives = inf while it is idle
    full: Array  # bool [N]: whether the send buffer holds a result
    sent: Runs  # the result in the send buffer
    next_run: Array
    longest: Array
    fault: Fault
    prepared: Any
    start_key: Key


@pytree
class Sampled:
    """See `sampled`."""

    durations: Any
    sets: Any = None
    drawn: int = static(default=1)
    receive_buffer: str = static(default="keep")
    send_buffer: str = static(default="overwrite")

    name: ClassVar[str] = "sampled"
    references: ClassVar[tuple[str, ...]] = ("wang2024defedavg",)

    def check(self, num_clients: int) -> None:
        check_whole("sampled", "drawn", self.drawn)
        check_choice("sampled", "receive_buffer", self.receive_buffer, ("keep", "consume"))
        check_choice("sampled", "send_buffer", self.send_buffer, ("overwrite", "hold"))
        check_sets("sampled", self.sets, self.drawn, num_clients, repeats=True)
        check_durations("sampled", self.durations, num_clients)

    def capacity(self, num_clients: int) -> int:
        return self.drawn

    def in_flight(self, num_clients: int) -> int:
        return num_clients

    def ring_slots(self, num_clients: int) -> int:
        return 2 * num_clients + 1  # the run under way and the one in the send buffer

    def init(self, key: Key, num_clients: int) -> State:
        zero = jnp.zeros(num_clients, jnp.int32)
        times = jnp.zeros(num_clients, jnp.float64)
        runs = Runs(zero, zero, zero, zero, times, jnp.full(num_clients, jnp.inf, jnp.float64))
        return State(
            now=jnp.float64(0),
            version=jnp.int32(0),
            dispatches=jnp.int32(0),
            idle=jnp.ones(num_clients, bool),
            fresh=jnp.ones(num_clients, bool),
            current=runs,
            full=jnp.zeros(num_clients, bool),
            sent=runs,
            next_run=zero,
            longest=jnp.float64(0),
            fault=no_fault(),
            prepared=self.durations.prepare(stream_keys(key, self.durations), num_clients),
            start_key=purpose_key(key, Purpose.START),
        )

    def next(self, state: State, workload: Workload) -> tuple[State, ServerStep]:
        """Draws n clients and lets time pass until each has a result in its send buffer."""
        clients = workload.num_clients
        if self.sets is not None:
            sets = jnp.asarray(self.sets, jnp.int32)
            drawn, missing = sets[jnp.minimum(state.version, len(sets) - 1)], state.version >= len(sets)
        else:
            drawn = draws.with_replacement(state.start_key, state.version, self.drawn, clients)
            missing = jnp.bool_(False)
        short = no_fault()._replace(code=jnp.where(missing, 5, 0).astype(jnp.int32), round=state.version)
        state = state._replace(fault=first_fault(state.fault, short))
        awaited = jnp.zeros(clients, bool).at[drawn].set(True)
        state = jax.lax.while_loop(
            lambda state: jnp.any(awaited & ~state.full),
            lambda state: self._finish(self._start(state, workload)),
            state,
        )
        client, mask, multiplicity = draws.distinct(drawn)
        sent = jax.tree.map(lambda column: column[client], state.sent)
        step = ServerStep(
            state.now, mask, client, sent.run, sent.dispatch, sent.version, sent.version, sent.local_steps,
            sent.started, sent.arrives, multiplicity, jnp.zeros_like(client),
        )  # fmt: skip
        return state._replace(
            version=state.version + 1, full=state.full & ~awaited, fresh=jnp.ones_like(state.fresh)
        ), step

    def fault(self, state: State) -> Fault:
        return state.fault

    def _start(self, state: State, workload: Workload) -> State:
        """Idle clients start from the newest broadcast, those with a used model only if they may use it again."""
        starts = state.idle if self.receive_buffer == "keep" else state.idle & state.fresh
        clients = jnp.arange(workload.num_clients, dtype=jnp.int32)
        local_steps = jax.vmap(workload.local_steps)(clients, state.next_run).astype(jnp.int32)
        # only those who start count for the longest run so far, so they are put first
        order = jnp.argsort(~starts, stable=True)
        duration, work = draws.durations_of(
            self.durations,
            state.prepared,
            clients[order],
            state.next_run[order],
            local_steps[order],
            state.longest,
            state.now,
        )
        back = jnp.argsort(order)
        duration, work = duration[back], work[back]
        dispatch = state.dispatches + jnp.cumsum(starts, dtype=jnp.int32) - 1
        invalid = starts & ~valid(duration)
        fault = durations_fault(duration, invalid, dispatch, clients, state.next_run, state.version)
        new = Runs(
            state.next_run, dispatch, jnp.broadcast_to(state.version, clients.shape), local_steps,
            jnp.broadcast_to(state.now, clients.shape), state.now + jnp.where(invalid, 0, duration),
        )  # fmt: skip
        return state._replace(
            dispatches=state.dispatches + jnp.sum(starts, dtype=jnp.int32),
            idle=state.idle & ~starts,
            fresh=state.fresh & ~starts,
            current=jax.tree.map(lambda a, b: jnp.where(starts, a, b), new, state.current),
            next_run=state.next_run + starts,
            longest=jnp.maximum(state.longest, jnp.max(jnp.where(starts & ~invalid, work, 0))),
            fault=first_fault(state.fault, fault),
        )

    def _finish(self, state: State) -> State:
        """The next instant at which runs end: their results go to the send buffers."""
        now = jnp.min(state.current.arrives)
        ends = state.current.arrives == now
        written = ends if self.send_buffer == "overwrite" else ends & ~state.full
        return state._replace(
            now=now,
            idle=state.idle | ends,
            full=state.full | written,
            sent=jax.tree.map(lambda a, b: jnp.where(written, a, b), state.current, state.sent),
            current=state.current._replace(arrives=jnp.where(ends, jnp.inf, state.current.arrives)),
        )


def sampled(
    *, drawn: int, durations: Duration, receive_buffer: str = "keep", send_buffer: str = "overwrite"
) -> Sampled:
    """DeFedAvg-nIID's rounds: n clients are drawn with replacement, and each must have a finished update in its send
    buffer.

    The clients are drawn at the moment of the previous step; as soon as every drawn client has a result, the server
    steps, reads and empties their send buffers, and broadcasts the new model to all. All clients train all the time,
    from the newest broadcast that they have received. All runs that end at one instant are delivered and the steps they
    complete are taken before anyone restarts, so the client whose result completes a round starts from the new version.

    Args:
        drawn: n; a client drawn k times counts k times.
        durations: how long a run takes, in simulated seconds.
        receive_buffer: `"keep"`: a received model may be used again; `"consume"`: once, then the client idles until the
            next broadcast.
        send_buffer: `"overwrite"`: a newer result replaces an older one; `"hold"` (section 2.3): a result is written
            only into an empty buffer; one that finds it full is dropped (never consumed), and the client goes on
            training.

    References:
        "Achieving linear speedup in asynchronous federated learning with heterogeneous clients" (DeFedAvg), Algorithm
        1.
    """
    return Sampled(durations, None, drawn, receive_buffer, send_buffer)
