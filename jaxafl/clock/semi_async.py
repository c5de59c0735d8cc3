"""SAFA's rounds: a quota of arrivals, stragglers tolerated up to a lag."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.checks import check_number, check_whole
from jaxafl.clock import draws
from jaxafl.clock.checks import check_durations
from jaxafl.clock.contract import Fault, ServerStep, Workload, durations_fault, first_fault, no_fault, valid
from jaxafl.clock.durations import Duration, stream_keys
from jaxafl.keys import Key
from jaxafl.pytrees import pytree, static

Array = jax.Array

PICKED, UNDRAFTED, RESYNCHRONISED = 0, 1, 2
"""`ServerStep.kind`: how an arrival counts, plus 2 if the client was deprecated and given x at the start of the
round."""


class State(NamedTuple):
    """The clock between two rounds; per client, [N]."""

    now: Array
    version: Array
    dispatches: Array
    current: Array  # bool: its last update has arrived, so it starts anew
    picked: Array  # bool: picked in the last round
    base: Array
    run: Array
    dispatch: Array
    started: Array
    arrives: Array
    longest: Array
    fault: Fault
    prepared: Any


@pytree
class SemiAsync:
    """See `semi_async`."""

    fraction: Any
    durations: Any
    lag: int = static(default=5)

    name: ClassVar[str] = "semi_async"
    references: ClassVar[tuple[str, ...]] = ("wu2021",)

    def check(self, num_clients: int) -> None:
        check_number("semi_async", "fraction", self.fraction, above=0, most=1)
        check_whole("semi_async", "lag", self.lag, least=0)
        check_durations("semi_async", self.durations, num_clients)

    def capacity(self, num_clients: int) -> int:
        return num_clients

    def in_flight(self, num_clients: int) -> int:
        return num_clients

    def ring_slots(self, num_clients: int) -> int:
        return num_clients + 1

    def init(self, key: Key, num_clients: int) -> State:
        zero = jnp.zeros(num_clients, jnp.int32)
        times = jnp.zeros(num_clients, jnp.float64)
        return State(
            now=jnp.float64(0),
            version=jnp.int32(0),
            dispatches=jnp.int32(0),
            current=jnp.ones(num_clients, bool),
            picked=jnp.zeros(num_clients, bool),
            base=zero,
            run=zero - 1,
            dispatch=zero,
            started=times,
            arrives=times,
            longest=jnp.float64(0),
            fault=no_fault(),
            prepared=self.durations.prepare(stream_keys(key, self.durations), num_clients),
        )

    def next(self, state: State, workload: Workload) -> tuple[State, ServerStep]:
        """One round: distribute x_t, wait for the quota, pick."""
        clients = jnp.arange(workload.num_clients, dtype=jnp.int32)
        deprecated = ~state.current & (state.version - state.base > self.lag)
        state = self._start(state, workload, state.current | deprecated)
        quota = jnp.maximum(1, jnp.round(self.fraction * workload.num_clients)).astype(jnp.int32)
        # in order of arrival, ties by client: those not picked last round first fill the quota
        order = jnp.lexsort((clients, state.arrives))
        priority = ~state.picked[order]
        place = jnp.cumsum(priority, dtype=jnp.int32)
        filled = jnp.sum(priority, dtype=jnp.int32) >= quota
        times = state.arrives[order]
        closing = jnp.where(filled, times[jnp.argmax(priority & (place >= quota))], times[-1])
        others = jnp.cumsum(~priority, dtype=jnp.int32)
        left = jnp.where(filled, 0, quota - jnp.sum(priority, dtype=jnp.int32))
        picked_in_order = (priority & (place <= quota)) | (~priority & (others <= left))
        picked = jnp.zeros_like(state.picked).at[order].set(picked_in_order)
        arrived = state.arrives <= closing
        kind = jnp.where(arrived & ~picked, UNDRAFTED, PICKED) + jnp.where(deprecated, RESYNCHRONISED, 0)
        step = ServerStep(
            closing, arrived, clients, state.run, state.dispatch, state.base, state.base,
            jax.vmap(workload.local_steps)(clients, state.run).astype(jnp.int32),
            state.started, state.arrives, jnp.ones_like(clients), kind.astype(jnp.int32),
        )  # fmt: skip
        return state._replace(now=closing, version=state.version + 1, current=arrived, picked=picked), step

    def fault(self, state: State) -> Fault:
        return state.fault

    def _start(self, state: State, workload: Workload, starts: Array) -> State:
        clients = jnp.arange(workload.num_clients, dtype=jnp.int32)
        run = state.run + starts
        local_steps = jax.vmap(workload.local_steps)(clients, run).astype(jnp.int32)
        duration, work = draws.durations_of(
            self.durations, state.prepared, clients, run, local_steps, state.longest, state.now
        )
        dispatch = jnp.where(starts, state.dispatches + jnp.cumsum(starts, dtype=jnp.int32) - 1, state.dispatch)
        invalid = starts & ~valid(duration)
        fault = durations_fault(duration, invalid, dispatch, clients, run, state.version)
        return state._replace(
            dispatches=state.dispatches + jnp.sum(starts, dtype=jnp.int32),
            base=jnp.where(starts, state.version, state.base),
            run=run,
            dispatch=dispatch,
            started=jnp.where(starts, state.now, state.started),
            arrives=jnp.where(starts, state.now + jnp.where(invalid, 0, duration), state.arrives),
            longest=jnp.maximum(state.longest, jnp.max(jnp.where(starts & ~invalid, work, 0))),
            fault=first_fault(state.fault, fault),
        )


def semi_async(*, fraction: Any, lag: int, durations: Duration) -> SemiAsync:
    """SAFA's rounds.

    At the start of round t every client whose update has arrived, and every one whose model lags by more than L
    versions (deprecated: its work is abandoned), receives x_t and starts; tolerable stragglers go on. The round closes
    when its quota is filled by clients that were not picked last round, or when nobody trains any more; then the
    earliest of the others fill up to the quota. Whoever else has arrived is undrafted; those that finish later count in
    the next round.

    Args:
        fraction: the quota is max(1, fraction · N rounded) clients; in (0, 1].
        lag: L >= 0, the versions by which a straggler may lag at the start of a round.
        durations: how long a run takes, in simulated seconds.

    References:
        Wu et al., "SAFA: A semi-asynchronous protocol for fast federated learning with low overhead", IEEE TC 2021,
        Algorithm 1.
    """
    return SemiAsync(fraction, durations, lag)
