"""SAFA's rounds, with a quota of arrivals and stragglers that are tolerated up to a lag."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jaxafl.clock.checks import check_durations
from jaxafl.clock.contract import Clock, Delivery, FaultCode, Runs, ServerStep, Starts, Workload
from jaxafl.clock.durations.duration import Duration
from jaxafl.clock.starts import blank_runs, first_fault, no_starts, start_runs
from jaxafl.device.keys import Key
from jaxafl.options import Number, number, static

Array = jax.Array
PICKED, UNDRAFTED, RESYNCHRONISED = 0, 1, 2
"""Values of `ServerStep.kind`: `PICKED` or `UNDRAFTED`, plus `RESYNCHRONISED` for clients that were deprecated."""
_ROUNDING = 1e-12  # relative; without it 0.1 · 30, above 3 in float64, would be rounded up to 4


class State(NamedTuple):
    """State of the clock between two rounds; arrays are per client, [N]."""

    now: Array
    version: Array
    current: Array  # bool, True if the last update has arrived, so that the client starts again
    picked: Array  # bool, True if picked in the last round
    runs: Runs  # last run of each client
    starts: Starts


class semi_async(Clock):
    """SAFA's rounds.

    At the start of round t, every client with an arrived update receives x_t and starts. So does every deprecated
    client, with a model that lags by more than L versions; its work is abandoned. Other stragglers continue. The round
    closes when clients that were not picked last round fill its quota, or when no client trains any more; then the
    earliest of the others fill up the quota. The remaining arrivals are undrafted; runs that finish later count in the
    next round.

    Args:
        fraction: fraction of the clients in the quota ⌈fraction · N⌉, in (0, 1].
        lag: number of versions L by which a straggler may lag at the start of a round; at least 0.
        durations: duration of a run in simulated seconds.

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
    takes_all: ClassVar[bool] = True

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
        """Computes one round: distributes x_t, waits for the quota, and picks arrivals."""
        deprecated = ~state.current & (state.version - state.runs.version > self.lag)
        begins = state.current | deprecated
        state, new = start_runs(self.durations, state, begins, state.runs.client, state.runs.run + begins, workload)
        runs = jax.tree.map(lambda a, b: jnp.where(begins, a, b), new, state.runs)
        quota = jnp.maximum(1, jnp.ceil(self.fraction * workload.num_clients * (1 - _ROUNDING))).astype(jnp.int32)
        # in arrival order, ties by client: clients that were not picked last round fill the quota first
        order = jnp.lexsort((runs.client, runs.arrived))
        times = runs.arrived[order]
        comes = ~jnp.isinf(times)
        priority = ~state.picked[order] & comes
        place = jnp.cumsum(priority, dtype=jnp.int32)
        left = quota - place[-1]  # quota left for clients that were picked last round
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
