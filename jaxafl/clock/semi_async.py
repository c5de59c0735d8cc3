"""SAFA's rounds: a quota of arrivals, stragglers tolerated up to a lag."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.clock.checks import check_durations
from jaxafl.clock.contract import Clock, Delivery, FaultCode, Runs, ServerStep, Starts, Workload
from jaxafl.clock.durations.duration import Duration
from jaxafl.clock.starts import blank_runs, first_fault, no_starts, start_together
from jaxafl.device.keys import Key
from jaxafl.options import Number, number, static

Array = jax.Array
PICKED, UNDRAFTED, RESYNCHRONISED = 0, 1, 2
"""`ServerStep.kind`: how an arrival counts, plus 2 if the client was deprecated and given x at the start of the
round."""
_ROUNDING = 1e-12  # relative; 0.1 · 30 is above 3 in float64, and means 3


class State(NamedTuple):
    """The clock between two rounds; per client, [N]."""

    now: Array
    version: Array
    current: Array  # bool: its last update has arrived, so it starts anew
    picked: Array  # bool: picked in the last round
    runs: Runs  # the last of each
    starts: Starts


class semi_async(Clock):
    """SAFA's rounds.

    At the start of round t every client whose update has arrived, and every one whose model lags by more than L
    versions (deprecated: its work is abandoned), receives x_t and starts; tolerable stragglers go on. The round closes
    when its quota is filled by clients that were not picked last round, or when nobody trains any more; then the
    earliest of the others fill up to the quota. Whoever else has arrived is undrafted; those that finish later count in
    the next round.

    Args:
        fraction: the quota is ⌈fraction · N⌉ clients; in (0, 1].
        lag: L >= 0, the versions by which a straggler may lag at the start of a round.
        durations: how long a run takes, in simulated seconds.

    References:
        Wu et al., "SAFA: A semi-asynchronous protocol for fast federated learning with low overhead", IEEE TC 2021,
        Algorithm 1.
    """

    fraction: Number = number(above=0, most=1, kw_only=True)
    lag: int = static(least=0, kw_only=True)
    durations: Duration = dataclasses.field(kw_only=True)

    references: ClassVar[tuple[str, ...]] = ("wu2021",)
    delivers: ClassVar[Delivery] = Delivery.STALE | Delivery.BY_CLIENT | Delivery.KINDS
    kinds: ClassVar[tuple[str, ...]] = ("picked", "undrafted", "picked, resynchronised", "undrafted, resynchronised")

    def check(self, num_clients: int) -> None:
        check_durations(self.name, self.durations, num_clients)

    def capacity(self, num_clients: int) -> int:
        return num_clients

    def init(self, key: Key, num_clients: int) -> State:
        return State(
            now=jnp.float64(0),
            version=jnp.int32(0),
            current=jnp.ones(num_clients, bool),
            picked=jnp.zeros(num_clients, bool),
            runs=blank_runs(num_clients)._replace(run=jnp.full(num_clients, -1, jnp.int32)),
            starts=no_starts(self.durations, key, num_clients),
        )

    def next(self, state: State, workload: Workload) -> tuple[State, ServerStep]:
        """One round: distribute x_t, wait for the quota, pick."""
        deprecated = ~state.current & (state.version - state.runs.version > self.lag)
        who = state.current | deprecated
        state, new = start_together(self.durations, state, who, state.runs.client, state.runs.run + who, workload)
        runs = jax.tree.map(lambda a, b: jnp.where(who, a, b), new, state.runs)
        quota = jnp.maximum(1, jnp.ceil(self.fraction * workload.num_clients * (1 - _ROUNDING))).astype(jnp.int32)
        # in order of arrival, ties by client: those not picked last round first fill the quota
        order = jnp.lexsort((runs.client, runs.arrived))
        times = runs.arrived[order]
        comes = ~jnp.isinf(times)
        priority = ~state.picked[order] & comes
        place = jnp.cumsum(priority, dtype=jnp.int32)
        left = quota - place[-1]  # for the others
        last = jnp.max(jnp.where(comes, times, state.now))
        gone = jnp.where(jnp.any(comes), FaultCode.NONE, FaultCode.ALL_GONE)
        closing = jnp.where(left > 0, last, times[jnp.argmax(priority & (place >= quota))])
        others = jnp.cumsum(~priority & comes, dtype=jnp.int32)
        picked_in_order = (priority & (place <= quota)) | (~priority & comes & (others <= left))
        picked = jnp.zeros_like(state.picked).at[order].set(picked_in_order)
        arrived = runs.arrived <= closing
        kind = jnp.where(arrived & ~picked, UNDRAFTED, PICKED) + jnp.where(deprecated, RESYNCHRONISED, 0)
        step = ServerStep(closing, arrived, runs, kind=kind.astype(jnp.int32))
        starts = first_fault(state.starts, gone, round=state.version, time=state.now)
        return State(closing, state.version + 1, arrived, picked, runs, starts), step
