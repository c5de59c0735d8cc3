"""The start of a client in `jaxafl.clock.events`, in O(log N)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxafl.clock import oldest, selection, transfers, trees
from jaxafl.clock.contract import FaultCode, Runs, Workload
from jaxafl.clock.durations.runs import Run, draw_of
from jaxafl.clock.event_loop import State, none_to_stop
from jaxafl.clock.starts import first_fault, invalid_code, valid
from jaxafl.clock.trees import put


def start(clock: Any, state: State, workload: Workload) -> State:
    """Starts one client if one is due, all arrivals of this instant have been delivered, and no run is to stop."""
    num_clients = workload.num_clients
    row = state.row
    known = state.starts
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
    drawn = draw_of(
        clock.durations.without_shared(), known.prepared, Run(client, run, local_steps, known.longest, started)
    )
    duration = drawn.work + drawn.hang
    fine = valid(duration)
    code = jnp.where((code > 0) | fine, code, invalid_code(duration))
    code = jnp.where(begins, code, FaultCode.NONE)
    known = first_fault(known, code, run_id=known.count, client=client, run=run, round=state.version)
    arrives = started + jnp.where(fine, duration, 1)
    shared, arrivals = state.transfers, state.arrivals
    if shared is None:
        arrivals = trees.expect(arrivals, len(state.freed), row, arrives, client, begins)
    else:
        shared = transfers.begin(clock, state, row, client, jnp.where(fine, duration, 1), begins)
    known_arrival = arrives if shared is None else jnp.full_like(arrives, jnp.inf)
    begun = Runs(client, run, known.count, version, local_steps, started, known_arrival, reference)
    one = begins.astype(jnp.int32)
    waiting = state.waiting - one
    weights = state.weights
    if weights is not None:
        weights = trees.weigh(weights, num_clients, client, 0.0, begins)
    in_order = state.in_order
    if in_order is not None:  # a client that never comes back cannot be waited for, nor stopped
        in_order = oldest.append(in_order, row, version, begins & jnp.isfinite(arrives))
    return state._replace(
        waiting=waiting,
        restarting=jnp.where(begins, waiting > 0, restarting & (waiting > 0)),
        flight=put(state.flight, row, begun, begins),
        arrivals=arrivals,
        busy=trees.becomes_busy(state.busy, num_clients, client, one),
        runs=runs,
        starts=known._replace(
            count=known.count + one,
            longest=jnp.where(
                begins & fine & ~jnp.isinf(drawn.work), jnp.maximum(known.longest, drawn.work), known.longest
            ),
        ),
        in_order=in_order,
        stopped=stopped,
        weights=weights,
        transfers=shared,
        rules=clock.begun(state.rules, begun, begins),
    )
