"""The start of a client in `jaxafl.clock.events`, in O(log N)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxafl.clock import oldest, selection, transfers, trees
from jaxafl.clock.contract import Workload
from jaxafl.clock.durations.runs import Run
from jaxafl.clock.event_loop import State, none_to_stop
from jaxafl.clock.starts import start_run
from jaxafl.clock.trees import put


def start(clock: Any, state: State, workload: Workload) -> State:
    """Starts one client if one is due, all arrivals of this instant have been delivered, and no run is to stop."""
    num_clients = workload.num_clients
    row = state.row
    passed = transfers.next_event(clock, state).time > state.now
    if (alarm := clock.alarm(state.rules)) is not None:
        passed &= alarm > state.now
    passed &= none_to_stop(clock, state)
    begins = (state.waiting > 0) & (state.restarting | passed)
    restarting = state.restarting
    if (opens := clock.opens(state, num_clients)) is not None:
        begins &= opens <= state.now
        restarting &= opens <= state.now  # else time would not advance to the hours of a client
    client, code = clock.choose(state, num_clients)
    stopped = state.stopped
    if stopped is not None:
        some, first = trees.count_idle(stopped, num_clients) > 0, trees.nth_idle(stopped, num_clients, jnp.int32(0))
        client = jnp.where(some, first, client)
        stopped = trees.becomes_busy(stopped, num_clients, client, (some & begins).astype(jnp.int32))
    runs, run = selection.count_run(state.runs, client, begins)
    version, reference = state.origin
    local_steps = workload.local_steps(client, run, version, begins).astype(jnp.int32)
    started = clock.begins(state, client)
    known, begun, duration = start_run(
        clock.durations.without_shared(),
        state.starts,
        Run(client, run, local_steps, state.starts.longest, started),
        version,
        begins=begins,
        code=code,
        round=state.version,
        reference=reference,
    )
    shared, arrivals = state.transfers, state.arrivals
    if shared is None:
        arrivals = trees.expect(arrivals, len(state.freed), row, begun.arrived, client, begins)
    else:
        shared = transfers.begin(clock, state, row, client, duration, begins)
        begun = begun._replace(arrived=jnp.full_like(begun.arrived, jnp.inf))
    one = begins.astype(jnp.int32)
    waiting = state.waiting - one
    weights = state.weights
    if weights is not None:
        weights = trees.weigh(weights, num_clients, client, 0.0, begins)
    in_order = state.in_order
    if in_order is not None:  # a client that never comes back cannot be waited for, nor stopped
        in_order = oldest.append(in_order, row, version, begins & jnp.isfinite(duration))
    return state._replace(
        waiting=waiting,
        restarting=jnp.where(begins, waiting > 0, restarting & (waiting > 0)),
        flight=put(state.flight, row, begun, begins),
        arrivals=arrivals,
        busy=trees.becomes_busy(state.busy, num_clients, client, one),
        runs=runs,
        starts=known,
        in_order=in_order,
        stopped=stopped,
        weights=weights,
        transfers=shared,
        rules=clock.begun(state.rules, begun, begins),
    )
