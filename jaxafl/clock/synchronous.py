"""Rounds in which the server waits for everyone: the clock of FedAvg."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.checks import check_flag, check_whole
from jaxafl.clock import draws
from jaxafl.clock.checks import check_concurrency, check_durations, check_sets
from jaxafl.clock.contract import Fault, ServerStep, Workload, durations_fault, first_fault, no_fault, valid
from jaxafl.clock.durations import Duration, stream_keys
from jaxafl.keys import Key, Purpose, purpose_key
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


@pytree
class Synchronous:
    """See `synchronous`."""

    durations: Any
    sets: Any = None
    cohort: int | None = static(default=None)
    replacement: bool = static(default=False)

    name: ClassVar[str] = "synchronous"
    order_free: ClassVar[bool] = True  # who arrives does not depend on durations

    def check(self, num_clients: int) -> None:
        check_flag("synchronous", "replacement", self.replacement)
        if self.cohort is not None:
            if self.replacement:
                check_whole("synchronous", "cohort", self.cohort)
            else:
                check_concurrency("synchronous", "cohort", self.cohort, num_clients)
        elif self.replacement:
            raise ValueError("replacement=True needs a cohort size: cohort=n")
        check_sets("synchronous", self.sets, self.capacity(num_clients), num_clients, repeats=self.replacement)
        check_durations("synchronous", self.durations, num_clients)

    def capacity(self, num_clients: int) -> int:
        return num_clients if self.cohort is None else self.cohort

    def in_flight(self, num_clients: int) -> int:
        return self.capacity(num_clients)

    def ring_slots(self, num_clients: int) -> int:
        return 2  # the version that the cohort trains from, and the one being written

    def init(self, key: Key, num_clients: int) -> State:
        none = jnp.int32(0)
        return State(
            now=jnp.float64(0),
            version=none,
            dispatches=none,
            runs=jnp.zeros(num_clients, jnp.int32),
            longest=jnp.float64(0),
            fault=no_fault(),
            prepared=self.durations.prepare(stream_keys(key, self.durations), num_clients),
            start_key=purpose_key(key, Purpose.START),
        )

    def next(self, state: State, workload: Workload) -> tuple[State, ServerStep]:
        """One round: draw the cohort, wait for its slowest client."""
        size = self.capacity(workload.num_clients)
        drawn, missing = self._draw(state, workload.num_clients, size)
        client, mask, multiplicity = jnp.sort(drawn), jnp.ones(size, bool), jnp.ones(size, jnp.int32)
        if self.replacement:  # a client drawn twice trains once and counts twice
            client, mask, multiplicity = draws.distinct(drawn)
        run = state.runs[client]
        local_steps = jax.vmap(workload.local_steps)(client, run).astype(jnp.int32)
        duration, work = draws.durations_of(
            self.durations, state.prepared, client, run, local_steps, state.longest, state.now
        )
        dispatch = state.dispatches + jnp.cumsum(mask, dtype=jnp.int32) - 1
        invalid = mask & ~valid(duration)
        fault = durations_fault(duration, invalid, dispatch, client, run, state.version)
        fault = fault._replace(code=jnp.where(missing, 5, fault.code).astype(jnp.int32))
        duration = jnp.where(mask & ~invalid, duration, 0)
        now = state.now + jnp.max(duration)
        version = jnp.full(size, state.version, jnp.int32)
        step = ServerStep(
            now, mask, client, run, dispatch, version, version, local_steps,
            jnp.full(size, state.now), state.now + duration, multiplicity, jnp.zeros(size, jnp.int32),
        )  # fmt: skip
        return state._replace(
            now=now,
            version=state.version + 1,
            dispatches=state.dispatches + jnp.sum(mask, dtype=jnp.int32),
            runs=state.runs.at[client].add(mask.astype(jnp.int32)),
            longest=jnp.maximum(state.longest, jnp.max(jnp.where(mask & ~invalid, work, 0))),
            fault=first_fault(state.fault, fault),
        ), step

    def fault(self, state: State) -> Fault:
        return state.fault

    def _draw(self, state: State, num_clients: int, size: int) -> tuple[Array, Array]:
        """The clients of a round (repeats only with replacement), and whether the recorded sets have run out."""
        present = jnp.bool_(False)
        if self.sets is not None:
            sets = jnp.asarray(self.sets, jnp.int32)
            return sets[jnp.minimum(state.version, sets.shape[0] - 1)], state.version >= sets.shape[0]
        draw = draws.with_replacement if self.replacement else draws.without_replacement
        return draw(state.start_key, state.version, size, num_clients), present


def synchronous(*, cohort: int | None = None, durations: Duration, replacement: bool = False) -> Synchronous:
    """Rounds of n clients: all train from the newest version and the server waits for the slowest.

    Args:
        cohort: n, drawn uniformly without replacement in every round; `None` takes all clients.
        durations: how long a run takes, in simulated seconds; a round lasts as long as its slowest run.
        replacement: draw with replacement; a client drawn k times trains once and its update counts k times.

    References:
        McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017.
    """
    return Synchronous(durations, None, cohort, replacement)
