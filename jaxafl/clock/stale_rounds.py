"""Rounds of clients that start from versions of a random age: FedAsync's own simulation, and AFL."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.checks import check_flag, check_whole
from jaxafl.clock import draws
from jaxafl.clock.checks import check_concurrency, check_durations, check_sets
from jaxafl.clock.contract import Fault, ServerStep, Workload, durations_fault, first_fault, no_fault, valid
from jaxafl.clock.durations import Duration, stream_keys
from jaxafl.keys import Key, Purpose, below, purpose_key, threefry
from jaxafl.pytrees import pytree, static

Array = jax.Array


class State(NamedTuple):
    """The clock between two rounds."""

    now: Array
    version: Array
    dispatches: Array
    runs: Array
    longest: Array
    fault: Fault
    prepared: Any
    start_key: Key
    stale_key: Key


@pytree
class StaleRounds:
    """See `stale_rounds`."""

    durations: Any
    sets: Any = None
    stale: Any = None
    participants: int = static(default=1)
    max_staleness: int = static(default=0)
    replacement: bool = static(default=False)

    name: ClassVar[str] = "stale_rounds"
    order_free: ClassVar[bool] = True  # who arrives does not depend on durations

    def check(self, num_clients: int) -> None:
        check_flag("stale_rounds", "replacement", self.replacement)
        if self.replacement:
            check_whole("stale_rounds", "participants", self.participants)
        else:
            check_concurrency("stale_rounds", "participants", self.participants, num_clients)
        check_whole("stale_rounds", "max_staleness", self.max_staleness, least=0)
        check_sets("stale_rounds", self.sets, self.participants, num_clients, repeats=self.replacement)
        if self.stale is not None:
            stale = np.asarray(self.stale)
            if stale.ndim != 2 or stale.shape[1] != self.participants or stale.dtype.kind not in "iu" or not len(stale):
                raise ValueError(
                    "stale_rounds: recorded stale versions must be an integer array [round, J] with "
                    f"J = {self.participants}, got shape {stale.shape} of {stale.dtype}"
                )
            if (stale < 0).any() or (stale > self.max_staleness).any():
                raise ValueError(
                    f"stale_rounds: recorded stale versions must be in 0..{self.max_staleness} (max_staleness), "
                    f"got {stale.min()}..{stale.max()}"
                )
        check_durations("stale_rounds", self.durations, num_clients)

    def capacity(self, num_clients: int) -> int:
        return self.participants

    def in_flight(self, num_clients: int) -> int:
        return self.participants

    def ring_slots(self, num_clients: int) -> int:
        return self.max_staleness + 1

    def init(self, key: Key, num_clients: int) -> State:
        return State(
            now=jnp.float64(0),
            version=jnp.int32(0),
            dispatches=jnp.int32(0),
            runs=jnp.zeros(num_clients, jnp.int32),
            longest=jnp.float64(0),
            fault=no_fault(),
            prepared=self.durations.prepare(stream_keys(key, self.durations), num_clients),
            start_key=purpose_key(key, Purpose.START),
            stale_key=purpose_key(key, Purpose.STALE),
        )

    def next(self, state: State, workload: Workload) -> tuple[State, ServerStep]:
        """One round; a client drawn twice (with replacement) makes two runs, one after another in the run count."""
        size, round = self.participants, state.version
        client, short_sets = self._clients(state, workload.num_clients)
        stale, short_stale = self._staleness(state)
        places = jnp.arange(size, dtype=jnp.int32)
        earlier = jnp.sum((client[:, None] == client[None, :]) & (places[None, :] < places[:, None]), axis=1)
        run = state.runs[client] + earlier.astype(jnp.int32)
        local_steps = jax.vmap(workload.local_steps)(client, run).astype(jnp.int32)
        duration, work = draws.durations_of(
            self.durations, state.prepared, client, run, local_steps, state.longest, state.now
        )
        dispatch = state.dispatches + places
        invalid = ~valid(duration)
        fault = durations_fault(duration, invalid, dispatch, client, run, round)
        code = jnp.where(short_sets, 5, jnp.where(short_stale, 7, fault.code)).astype(jnp.int32)
        duration = jnp.where(invalid, 0, duration)
        version = jnp.maximum(round - stale, 0)
        step = ServerStep(
            state.now + jnp.max(duration), jnp.ones(size, bool), client, run, dispatch, version, version, local_steps,
            jnp.full(size, state.now), state.now + duration, jnp.ones(size, jnp.int32), jnp.zeros(size, jnp.int32),
        )  # fmt: skip
        return state._replace(
            now=step.time,
            version=round + 1,
            dispatches=state.dispatches + size,
            runs=state.runs.at[client].add(1),
            longest=jnp.maximum(state.longest, jnp.max(jnp.where(invalid, 0, work))),
            fault=first_fault(state.fault, fault._replace(code=code)),
        ), step

    def fault(self, state: State) -> Fault:
        return state.fault

    def _clients(self, state: State, num_clients: int) -> tuple[Array, Array]:
        """The clients of a round in client order, and whether the recording has run out."""
        if self.sets is not None:
            sets = jnp.asarray(self.sets, jnp.int32)
            return sets[jnp.minimum(state.version, len(sets) - 1)], state.version >= len(sets)
        draw = draws.with_replacement if self.replacement else draws.without_replacement
        return jnp.sort(draw(state.start_key, state.version, self.participants, num_clients)), jnp.bool_(False)

    def _staleness(self, state: State) -> tuple[Array, Array]:
        if self.stale is not None:
            stale = jnp.asarray(self.stale, jnp.int32)
            return stale[jnp.minimum(state.version, len(stale) - 1)], state.version >= len(stale)
        places = jnp.arange(self.participants, dtype=jnp.int32)
        words, _ = threefry(state.stale_key, jnp.broadcast_to(state.version, places.shape), places)
        return below(words, jnp.int32(self.max_staleness + 1)), jnp.bool_(False)


def stale_rounds(
    *, participants: int, max_staleness: int, durations: Duration, replacement: bool = False
) -> StaleRounds:
    """Rounds of J clients, each from a version drawn uniformly 0..max_staleness back (clamped at version 0).

    Args:
        participants: J, clients per round, drawn uniformly.
        max_staleness: the oldest version (15 in FedAsync's own simulation).
        durations: how long a run takes, in simulated seconds; a round lasts as long as the slowest of the J.
        replacement: draw clients with replacement; a client drawn twice makes two runs.

    References:
        Xie et al., "Asynchronous federated optimization", 2019; "Asynchronous federated learning with non-convex client
        objective functions and heterogeneous dataset", Algorithm 1.
    """
    return StaleRounds(durations, None, None, participants, max_staleness, replacement)
