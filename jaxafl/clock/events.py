"""Base of clocks that advance event by event: starts, arrivals and stops, each in O(log N)."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp

from jaxafl.clock import oldest, selection, transfers, trees
from jaxafl.clock.checks import check_durations
from jaxafl.clock.contract import Clock, Delivery, FaultCode, InFlight, Runs, ServerStep, Workload
from jaxafl.clock.event_loop import Carry, Event, State, Verdict, deliver
from jaxafl.clock.event_start import start
from jaxafl.clock.starts import blank_runs, no_starts
from jaxafl.device.keys import Key, Purpose, purpose_key
from jaxafl.options import UserError, shown

Array = jax.Array
_ROW = 16  # arrivals that `next` returns at most if server steps differ in their numbers of arrivals


class Events(Clock):
    """Base of clocks with M_c runs in flight, in which every event is an arrival, a start, a stop or an alarm.

    All arrivals of one instant are delivered in client order, and the server steps that they complete are taken. Then
    runs are stopped, then clients start. A protocol is a subclass that defines `capacity`, `in_flight` and `arrives`,
    and overrides further methods as needed. The default starts one client after every arrival, from the newest version:
    an idle client drawn uniformly, or the arrived one if all N clients are in flight.

    Subclasses have the option `durations`, the duration of a run in simulated seconds.
    """

    delivers: ClassVar[Delivery] = Delivery.STALE | Delivery.CONTINUOUS
    event_by_event: ClassVar[bool] = True

    # ---- the protocol

    def begin(self, key: Key, num_clients: int) -> Any:
        """Returns the protocol's first state, a pytree."""
        return ()

    def arrives(self, rules: Any, event: Event) -> Verdict:
        """Decides what an arrival does."""
        raise NotImplementedError(f"the clock {self.name} has no arrives(rules, event)")

    def replaced(self, takes: Array, closes: Array) -> Array:
        """Returns the number of clients to start after an arrival that the server takes, or that closes a step."""
        return jnp.int32(1)

    def choose(self, state: State, num_clients: int) -> tuple[Array, Array]:
        """Returns the client to start, and a fault code."""
        started = state.starts.count
        if (
            self.in_flight(num_clients) == num_clients and self.next_start(state.rules) is None
        ):  # all clients are in flight: those that ended restart
            client = state.flight.client[state.row]
            stops = self.last_stopped(state.rules, state.version) is not None
            if stops and not self.some_wait(num_clients):  # in client order, stopped ones among them
                client = trees.nth_idle(state.busy, num_clients, jnp.int32(0))
            return client, jnp.int32(FaultCode.NONE)
        if state.weights is not None:
            client = selection.weighted_client(state.start_key, started, state.weights, num_clients)
            return client, jnp.int32(FaultCode.NONE)
        rank = selection.idle_rank(state.start_key, started, started - state.ended, num_clients)
        return trees.nth_idle(state.busy, num_clients, rank), jnp.int32(FaultCode.NONE)

    def opens(self, state: State, num_clients: int) -> Array | None:
        """Returns the time from which an idle client may start, float64; `None` if clients may start at any time."""
        return None

    def some_wait(self, num_clients: int) -> bool:
        """Returns True if clients may wait for a server step while others restart, although M_c = N."""
        return False

    def start_version(self, state: State) -> tuple[Array, Array | None]:
        """Returns the version that the next run starts from, and its reference; `None` for the same version."""
        return state.version, None

    def client_weights(self, num_clients: int) -> Array | None:
        """Returns the weights of the clients in draws of idle ones, float64 [N]; `None` for uniform draws."""
        return None

    def begins(self, state: State, client: Array) -> Array:
        """Returns the time at which a run begins that the server sends out now, float64."""
        return state.now

    def begun(self, rules: Any, run: Runs, where: Array) -> Any:
        """Returns the protocol's state after a client has been sent a run, if `where`."""
        return rules

    @property
    def varies(self) -> bool:
        """True if server steps differ in their numbers of arrivals."""
        return Delivery.SEVERAL in self.delivers

    @property
    def tracks_oldest(self) -> bool:
        """True if `arrives` or `last_stopped` needs the oldest run in flight; start versions must not decrease then."""
        return False

    def last_stopped(self, rules: Any, version: Array) -> Array | None:
        """Returns the newest start version of the runs to stop, int32; -1 for none.

        The clients of stopped runs restart at once. Requires `tracks_oldest`.
        """
        return None

    def alarm(self, rules: Any) -> Array | None:
        """Returns the next time at which the server steps without an arrival, float64; an arrival then comes first."""
        return None

    def rings(self, rules: Any) -> Any:
        """Returns the protocol's state after an alarm."""
        return rules

    def next_start(self, rules: Any) -> Array | None:
        """Returns the next time at which a client starts whatever arrives, float64; arrivals and alarms come first."""
        return None

    def after_start(self, rules: Any) -> Any:
        """Returns the protocol's state after such a start, or after one that is skipped as M_c runs are in flight."""
        return rules

    # ---- the clock

    def check(self, num_clients: int) -> None:
        check_durations(self.name, cast(Any, self).durations, num_clients)

    def init(self, key: Key, num_clients: int) -> State:
        size = self.in_flight(num_clients)
        rows = jnp.arange(size, dtype=jnp.int32)
        weights = self.client_weights(num_clients)
        if weights is not None and getattr(weights, "shape", None) != (num_clients,):
            about = f"`client_weights` of the clock {self.name} must return None or an array [{num_clients}]"
            raise UserError(f"{about}, a weight for each client; it returned {shown(weights)}")
        rules = self.begin(key, num_clients)
        at_rate = self.next_start(rules) is not None
        state = State(
            now=jnp.float64(0),
            version=jnp.int32(0),
            taken=jnp.int32(0),
            ended=jnp.int32(0),
            waiting=jnp.int32(0 if at_rate else size),
            restarting=jnp.bool_(not at_rate),
            flight=self._no_runs(size),
            handout=jnp.zeros_like(rows),
            arrivals=trees.no_arrivals(size),
            freed=rows,
            row=jnp.int32(0),
            origin=(jnp.int32(0), None),
            busy=trees.all_idle(num_clients),
            runs=selection.no_runs(num_clients),
            starts=no_starts(cast(Any, self).durations, key, num_clients),
            start_key=purpose_key(key, Purpose.START),
            rules=rules,
            in_order=oldest.no_runs(size) if self.tracks_oldest else None,
            stopped=None,
            weights=None if weights is None else trees.weights_of(weights),
            transfers=transfers.no_transfers(self, size),
        )
        state = state._replace(origin=self.start_version(state))
        if self.last_stopped(state.rules, state.version) is None or size == num_clients:
            return state
        return state._replace(stopped=trees.none_idle(num_clients))

    def next(self, state: State, workload: Workload) -> tuple[State, ServerStep]:
        """Advances to the next server step; clients that are due start before simulated time advances."""
        step = self.row(workload.num_clients)
        state = state._replace(origin=self.start_version(state))  # a subclass may have changed the state

        def advance(carry: Carry) -> Carry:
            state, step, _ = carry
            return deliver(self, start(self, state, workload), step, workload.num_clients)

        state, step, _ = jax.lax.while_loop(lambda carry: ~carry[2], advance, (state, step, jnp.bool_(False)))
        return state, step._replace(time=state.now)

    def entries(self, num_clients: int) -> int:
        most = self.capacity(num_clients)
        return min(most, _ROW) if self.varies else most

    def row(self, num_clients: int) -> ServerStep:
        """Returns an empty row of arrivals. Server steps of any number of arrivals are several short rows."""
        most, size = self.capacity(num_clients), self.entries(num_clients)
        kind = jnp.zeros(size, jnp.int32) if self.kinds else None
        advances = jnp.bool_(False) if size < most else None
        runs = self._no_runs(size)
        return ServerStep(jnp.float64(0), jnp.zeros(size, bool), runs, kind=kind, advances=advances)

    def in_flight_runs(self, state: State) -> InFlight:
        """Returns the runs in flight, for an online clock."""
        runs = state.flight
        arrived = trees.arrival_times(state.arrivals, len(runs.client))
        busy = transfers.in_flight(state)
        version = jnp.where(busy, runs.version, state.handout)
        reference = None if runs.reference is None else jnp.where(busy, runs.reference, version)
        return InFlight(busy, runs._replace(version=version, reference=reference, arrived=arrived), busy)

    def online_ring_slots(self, num_clients: int) -> int:
        """Returns the number of model versions that must be kept if runs are trained at their arrival."""
        return self.in_flight(num_clients) + 1

    def held(self, state: State) -> list[Array]:
        flight = self.in_flight_runs(state)
        runs = flight.runs.complete()
        return [jnp.where(flight.pinned, seen, state.version) for seen in (runs.version, jnp.asarray(runs.reference))]

    def _no_runs(self, size: int) -> Runs:
        return blank_runs(size)
