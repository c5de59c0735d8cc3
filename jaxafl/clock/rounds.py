"""Rounds that end with their slowest client: the clocks of FedAvg, of FedAsync's simulation, and of AFL."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.clock.checks import check_at_most, check_durations, check_sets, check_stale
from jaxafl.clock.contract import Clock, Delivery, FaultCode, Recording, ServerStep, Starts, Workload
from jaxafl.clock.durations.duration import Duration, constant
from jaxafl.clock.starts import distinct, drawn_clients, no_starts, replayed, start_runs
from jaxafl.device.keys import Key, Purpose, below, purpose_key, threefry
from jaxafl.options import recording, static

Array = jax.Array


class State(NamedTuple):
    """State of a clock between two rounds."""

    now: Array
    version: Array
    runs: Array  # int32 [N], number of runs that each client has started
    starts: Starts
    key: Key


class synchronous(Clock):
    """Rounds of n clients that train from the newest version; the server waits for the slowest.

    Args:
        cohort: clients per round n, drawn uniformly without replacement; `None` takes all clients.
        durations: duration of a run in simulated seconds. A round lasts as long as its slowest run.
        replacement: draw with replacement. A client drawn k times trains once, and its update counts k times.

    References:
        McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017.
    """

    cohort: int | None = static(default=None, kw_only=True)
    durations: Duration = dataclasses.field(default=constant(1.0), kw_only=True)
    replacement: bool = static(default=False, kw_only=True)
    sets: Recording = recording(default=None)

    delivers: ClassVar[Delivery] = Delivery.MULTIPLE
    order_free: ClassVar[bool] = True

    def check(self, num_clients: int) -> None:
        if self.cohort is not None and not self.replacement:
            check_at_most(self.name, "cohort", self.cohort, num_clients)
        if self.cohort is None and self.replacement:
            raise ValueError(
                f"{self.name}: replacement=True draws a cohort of a given size, and cohort=None: give cohort=n, e.g. "
                f"{num_clients}, the number of clients"
            )
        check_sets(self.name, self.sets, self.capacity(num_clients), num_clients, repeats=self.replacement)
        check_durations(self.name, self.durations, num_clients)

    def capacity(self, num_clients: int) -> int:
        return num_clients if self.cohort is None else self.cohort

    def ring_slots(self, num_clients: int) -> int:
        return 2  # the version that the cohort trains from, and the one being written

    def init(self, key: Key, num_clients: int) -> State:
        return _initial(self.durations, key, num_clients)

    def next(self, state: State, workload: Workload) -> tuple[State, ServerStep]:
        """Computes one round: draws the cohort, and waits for its slowest client."""
        num_clients = workload.num_clients
        size = self.capacity(num_clients)
        state, client = drawn_clients(state, self.sets, size, num_clients, replacement=self.replacement)
        client = jnp.sort(client)
        mask = jnp.ones(size, bool)
        multiplicity = None
        if self.replacement:  # a client drawn twice trains once and counts twice
            client, mask, multiplicity = distinct(client)
        state, runs = start_runs(self.durations, state, mask, client, state.runs[client], workload)
        return _ended(state, ServerStep(jnp.max(runs.arrived), mask, runs, multiplicity))


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
        state, runs = start_runs(self.durations, state, mask, client, run, workload)
        runs = runs._replace(version=jnp.maximum(state.version - stale, 0))
        return _ended(state, ServerStep(jnp.max(runs.arrived), mask, runs))


def _initial(durations: Duration, key: Key, num_clients: int) -> State:
    return State(
        now=jnp.float64(0),
        version=jnp.int32(0),
        runs=jnp.zeros(num_clients, jnp.int32),
        starts=no_starts(durations, key, num_clients),
        key=key,
    )


def _ended(state: State, step: ServerStep) -> tuple[State, ServerStep]:
    """Returns the state after a server step, and the step."""
    runs = state.runs.at[step.runs.client].add(step.mask.astype(jnp.int32))
    return state._replace(now=step.time, version=state.version + 1, runs=runs), step
