"""A protocol whose first server step takes an update of every client: the beginning of IA²SGD, ACE and MIFA."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.clock.contract import (
    ByOptions,
    Clock,
    Delivery,
    FaultCode,
    InFlight,
    Runs,
    ServerStep,
    Starts,
    Workload,
)
from jaxafl.clock.ragged import without_step
from jaxafl.clock.starts import blank_runs, first_fault, first_state
from jaxafl.clock.trees import put
from jaxafl.device.keys import Key
from jaxafl.options import check_options, static

Array = jax.Array
_TAKES = Delivery.STALE | Delivery.CONTINUOUS | Delivery.MULTIPLE | Delivery.REPEATED | Delivery.EMPTY
_TAKES |= Delivery.BY_CLIENT | Delivery.REPLIES | Delivery.SEVERAL
_MOST = 1000  # steps of the protocol for each client, without which a client that never comes would be waited for


class State(NamedTuple):
    """State of the clock between two server steps."""

    inner: Any  # of the protocol
    starts: Starts
    shift: Array  # versions that the protocol has counted, and this clock has not; -1 with `first="all"`
    begins: Array  # True before the first server step
    first: ServerStep  # [N], the last update of every client before it
    updates: Array  # int32 [N], their numbers of updates before it
    given: Array  # entries of `first` that the first server step has taken


class Carry(NamedTuple):
    """State of the search for the next row of arrivals."""

    inner: Any
    first: ServerStep
    updates: Array
    row: ServerStep  # of the protocol
    heard: Array  # number of clients in `first`
    all_heard: Array  # True if all clients had been heard at the step of the protocol before
    replaced: Array  # number of updates that a later one has replaced
    steps: Array  # number of steps of the protocol
    ends: Array


class warm_up(Clock):
    """Clock that makes no version before it has an update of every client; then it is the given protocol.

    Meanwhile clients start from x_0, as the protocol lets them. The first server step takes the last update of every
    client. Earlier ones count as refused and are never trained. Staleness, server steps and evaluations count versions.
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
        Delivery.STALE | Delivery.CONTINUOUS | Delivery.SEVERAL,
        lambda clock: (clock.clock.delivers & ~Delivery.REPLIES) | Delivery.SEVERAL,
    )
    order_free = ByOptions(False, lambda clock: clock.clock.order_free)
    takes_all = ByOptions(False, lambda clock: clock.first == "all" and clock.clock.takes_all)
    event_by_event = ByOptions(False, lambda clock: clock.clock.event_by_event)

    def check(self, num_clients: int) -> None:
        if not isinstance(self.clock, Clock):
            raise TypeError(f"{self.name}: clock is {self.clock!r}; expected a clock such as free_running(...)")
        if isinstance(self.clock, warm_up):
            raise ValueError(f"{self.name}: clock is a warm_up; expected its protocol. Give the protocol itself")
        if foreign := self.clock.delivers & ~_TAKES:
            words = ", ".join(str(flag.name).lower().replace("_", " ") for flag in foreign)
            raise ValueError(
                f"{self.name}: the arrivals of {self.clock.name} are {words}; expected a clock such as free_running, "
                "synchronous or bernoulli. Give one of those"
            )
        if getattr(self.clock, "max_staleness", None) is not None:
            raise ValueError(
                f"{self.name}: max_staleness={self.clock.max_staleness} of {self.clock.name} would count the steps "  # type: ignore[attr-defined]
                "before the first version; expected a protocol without a bound. Give max_staleness=None"
            )
        check_options(self.clock, num_clients)
        self.clock.check(num_clients)

    def prepare(self, counts: np.ndarray, size: Callable[[], tuple[int, int]]) -> warm_up:
        return dataclasses.replace(self, clock=self.clock.prepare(counts, size))

    def capacity(self, num_clients: int) -> int:
        return max(num_clients, self.clock.capacity(num_clients))

    def in_flight(self, num_clients: int) -> int:
        return self.clock.in_flight(num_clients)

    def ring_slots(self, num_clients: int) -> int:
        return self.clock.ring_slots(num_clients)

    def entries(self, num_clients: int) -> int:
        return self.clock.entries(num_clients)

    def init(self, key: Key, num_clients: int) -> State:
        inner = first_state(self.clock, key, num_clients)
        early = num_clients if self.first == "all" else 0
        starts = inner.starts._replace(count=inner.starts.count + early, refused=jnp.int32(0))
        none = jnp.zeros(num_clients, bool)
        runs = blank_runs(num_clients)
        if early:  # a run of every client that takes no time
            runs = runs._replace(run_id=runs.client, arrived=runs.started)
        first = ServerStep(jnp.float64(0), none, runs).complete()
        shift = jnp.int32(-1 if early else 0)
        return State(inner, starts, shift, jnp.bool_(True), first, jnp.zeros(num_clients, jnp.int32), jnp.int32(0))

    def next(self, state: State, workload: Workload) -> tuple[State, ServerStep]:
        """Advances the protocol, up to the first version if there is none, or takes more updates of this version."""
        clients, begins, earlier = workload.num_clients, state.begins, state.starts
        early = clients if self.first == "all" else 0
        steps = workload.steps  # the runs of the protocol are counted after those at time 0
        later = Workload(steps[:, 1:], clients) if early and steps.ndim == 2 and steps.shape[1] > 1 else workload
        gives = begins if early else jnp.bool_(False)
        gives |= ~begins & (state.given < clients)

        def once(inner: Any) -> tuple[Any, ServerStep]:
            inner, row = self.clock.next(inner, later)
            row = row.complete()
            return inner, row if row.advances is not None else row._replace(advances=jnp.bool_(True))

        def advance(carry: Carry) -> Carry:
            inner, row = once(carry.inner)
            first, updates, heard, replaced = _entered(carry, row, begins)
            number, complete = carry.steps + jnp.asarray(row.advances), heard == clients
            decides = carry.all_heard if self.first == "next" else complete
            ends = ~begins | (jnp.asarray(row.advances) & decides) | (number >= _MOST * clients)
            all_heard = jnp.where(jnp.asarray(row.advances), complete, carry.all_heard)
            ends |= inner.starts.fault.code > 0
            return Carry(inner, first, updates, row, heard, all_heard, replaced, number, ends)

        blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(once, state.inner)[1])
        zero = jnp.int32(0)
        carry = Carry(state.inner, state.first, state.updates, blank, zero, jnp.bool_(False), zero, zero, gives)
        inner, first, updates, row, heard, _, replaced, count, _ = jax.lax.while_loop(
            lambda carry: ~carry.ends, advance, carry
        )
        gives |= begins
        shift = jnp.where(begins, -1 if early else count - 1, state.shift)
        starts = inner.starts._replace(
            count=inner.starts.count + early,
            refused=replaced + earlier.refused + inner.starts.refused - state.inner.starts.refused,
            fault=jax.tree.map(
                lambda old, new: jnp.where(earlier.fault.code > 0, old, new), earlier.fault, inner.starts.fault
            ),
        )
        silent = begins & (heard < clients) & (not early)
        client = jax.lax.while_loop(
            lambda one: silent & (updates[one] > 0), lambda one: one + 1, zero
        )  # XLA would copy
        code = jnp.where(silent, FaultCode.SILENT, FaultCode.NONE)
        starts = first_fault(starts, code, client=client, run=count, time=first.time)
        runs = row.runs._replace(run=row.runs.run + bool(early), run_id=row.runs.run_id + early)
        row = row._replace(runs=_shifted(runs, shift))
        given = jnp.where(gives, jnp.minimum(state.given + len(row.mask), clients), state.given)
        known = _given(first, state.given, row)
        if early:
            runs = known.runs
            steps = jax.vmap(workload.local_steps)(runs.client, runs.run).astype(jnp.int32)
            known = known._replace(runs=runs._replace(local_steps=steps))
        row = jax.tree.map(lambda new, old: jnp.where(gives, new, old), known, row)
        shift = shift.astype(jnp.int32)
        return State(inner, starts, shift, jnp.bool_(False), first, updates, given.astype(jnp.int32)), row

    def held(self, state: State) -> list[Array]:
        return [jnp.maximum(version - state.shift, 0) for version in self.clock.held(state.inner)]

    @property
    def in_flight_runs(self) -> Any:
        """Function of the state that returns the runs in flight, if the protocol can be advanced during training."""
        inner: Any = self.clock.in_flight_runs  # type: ignore[attr-defined]  # raises AttributeError if it cannot
        early = self.first == "all"

        def found(state: State) -> InFlight:
            flight = inner(state.inner)
            runs = flight.runs._replace(run=flight.runs.run + early)
            return flight._replace(runs=_shifted(runs, state.shift))

        return found

    def online_ring_slots(self, num_clients: int) -> int:
        """Returns the number of model versions that must be kept if runs are trained at their arrival."""
        return int(self.clock.online_ring_slots(num_clients))  # type: ignore[attr-defined]


def _entered(carry: Carry, row: ServerStep, where: Array) -> tuple[ServerStep, Array, Array, Array]:
    """Enters arrivals into the places of their clients if `where`.

    Returns:
        The updates of the clients, and their numbers; the numbers of clients with one, and of replaced updates.
    """

    def enter(entry: Array, found: tuple[ServerStep, Array, Array, Array]) -> tuple[ServerStep, Array, Array, Array]:
        first, updates, heard, replaced = found
        arrival = jax.tree.map(lambda column: column[entry], without_step(row))
        client, arrives = arrival.runs.client, arrival.mask
        first = put(without_step(first), client, arrival, arrives)._replace(time=first.time)
        updates = updates.at[client].add(arrives)
        again = updates[client] > 1  # read after the write, else XLA copies the array
        return first, updates, heard + (arrives & ~again), replaced + (arrives & again)

    first = carry.first._replace(time=jnp.where(where, row.time, carry.first.time))
    begin = (first, carry.updates, carry.heard, carry.replaced)
    return jax.lax.fori_loop(0, jnp.where(where, len(row.mask), 0), enter, begin)


def _given(first: ServerStep, begin: Array, row: ServerStep) -> ServerStep:
    """Returns the updates of the clients from `begin` on, all from x_0, in the form of `row`."""
    places, clients = begin + jnp.arange(len(row.mask), dtype=jnp.int32), len(first.runs.client)
    given = jax.tree.map(lambda column: column[jnp.minimum(places, clients - 1)], without_step(first))
    zero = jnp.zeros_like(places)
    runs = given.runs._replace(version=zero, reference=zero)
    advances = begin + len(row.mask) >= clients
    return given._replace(time=first.time, mask=places < clients, runs=runs, advances=advances)


def _shifted(runs: Runs, shift: Array) -> Runs:
    """Returns runs with the numbers of the versions that count."""
    runs = runs.complete()
    return runs._replace(
        version=jnp.maximum(runs.version - shift, 0), reference=jnp.maximum(jnp.asarray(runs.reference) - shift, 0)
    )
