"""Waves of training for a clock that is advanced inside the loop: segments and steps computed on the device."""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp

from jaxafl.clock.contract import InFlight, Runs, ServerStep, Workload
from jaxafl.device import buffers
from jaxafl.engine.plan import Segments, Steps
from jaxafl.engine.state import State
from jaxafl.engine.train import ExecutedSteps, Train
from jaxafl.options import static

Array = jax.Array
NEVER = -1
"""No version, and no run."""


class ExecutedWorkload(Workload):
    """Workload of the local steps that runs make before they stop early.

    A run is trained when it begins, to know its duration, and again when it arrives: to keep its update meanwhile
    would make the clock carry the engine's buffers.
    """

    executed_steps: ExecutedSteps = static()
    x64: bool = static()
    run_state: State | None = None

    def local_steps(
        self, client: Array, run: Array, version: Array | None = None, begins: Array | bool = True
    ) -> Array:
        planned = super().local_steps(client, run)
        state: Any = self.run_state
        with jax.enable_x64(self.x64):
            slot = index_in(state.online.slot_version, jnp.asarray(version)[None])[0]

            def trained(steps: Array) -> Array:
                return self.executed_steps(state, slot, client, run, jnp.asarray(version), steps)

            return buffers.changed_if(jnp.asarray(begins), trained, planned)


def steps_of(event: ServerStep, number: Array, state: State) -> Steps:
    """Returns the event as `Steps` of a plan, without the slot that it writes."""
    online_state = state.online
    runs = event.runs
    return Steps(
        segments_before=None,
        time=event.time.astype(jnp.float32),
        mask=event.mask,
        update_slot=index_in(online_state.row_run, runs.run_id),
        lane=None,
        client=runs.client,
        staleness=number - cast(Array, runs.reference),
        local_steps=runs.local_steps,
        multiplicity=event.multiplicity,
        kind=event.kind,
        base_slot=index_in(online_state.slot_version, runs.reference),
        write_slot=jnp.int32(0),
    )


def train_arrivals(train: Train, event: ServerStep, always_full: bool, state: State) -> State:
    """Trains the arrivals, in as many lanes; slot i of the store gets arrival i if every step is full."""
    if state.memory is not None:
        return _train_in_turn(train, event, state)
    slots, mask, runs = jnp.arange(len(event.mask), dtype=jnp.int32), event.mask, event.runs
    if not always_full:
        first = jnp.argsort(~mask, stable=True)
        mask, runs = jax.tree.map(lambda column: column[first], (mask, runs))
    return _held(runs, mask, _wave(train, slots, mask, runs, slots, state))


def _train_in_turn(train: Train, event: ServerStep, state: State) -> State:
    """Trains the arrivals if clients keep something from run to run: those of one client one after another."""
    runs, mask = event.runs, event.mask
    lanes = jnp.arange(len(mask), dtype=jnp.int32)
    before = mask & (runs.client[:, None] == runs.client) & (runs.run[:, None] > runs.run)
    turn = jnp.where(mask, jnp.sum(before, axis=1, dtype=jnp.int32), NEVER)

    def wave(index: Array, state: State) -> State:
        rows = jnp.argsort(turn != index, stable=True).astype(jnp.int32)
        entries = jax.tree.map(lambda column: column[rows], runs)
        return _wave(train, rows, turn[rows] == index, entries, lanes, state)

    return _held(runs, mask, jax.lax.fori_loop(0, jnp.max(turn) + 1, wave, state))


def train_missing(width: int, train: Train, event: ServerStep, flight: InFlight, order: Array, state: State) -> State:
    """Trains arrivals that are not trained yet, and with them runs in flight, earliest arrival first."""
    before = state.online
    waiting = jax.tree.map(lambda now, later: jnp.concatenate([now, later[order]]), event.runs, flight.runs)
    mask = jnp.concatenate([event.mask, flight.mask[order]])
    untrained = mask & ~jnp.isin(waiting.run_id, before.row_run)
    live = jnp.isin(before.row_run, jnp.where(mask, waiting.run_id, NEVER - 1))
    lanes = jnp.arange(width, dtype=jnp.int32)
    most = min(untrained.shape[0], live.shape[0])  # there may be more lanes than runs
    place = jnp.minimum(lanes, most - 1)
    first = jnp.argsort(~untrained, stable=True)[place].astype(jnp.int32)
    free = jnp.argsort(live, stable=True)[place].astype(jnp.int32)
    chosen = untrained[first] & (lanes < most)

    def wave(state: State) -> State:
        entries = jax.tree.map(lambda column: column[first], waiting)
        row_run = buffers.write_many(state.online.row_run, free, chosen, entries.run_id)
        state = _wave(train, free, chosen, entries, lanes, state)
        return state._replace(online=state.online._replace(row_run=row_run))

    return buffers.changed_if(jnp.any(untrained[: len(event.mask)]), wave, state)


def _held(runs: Runs, mask: Array, state: State) -> State:
    """Returns the state in which entry i of the store has the update of run i."""
    return state._replace(online=state.online._replace(row_run=jnp.where(mask, runs.run_id, NEVER)))


def _wave(train: Train, rows: Array, mask: Array, runs: Runs, lanes: Array, state: State) -> State:
    """Trains the runs of which `mask` is True, and counts those whose version is not in the ring.

    Entries with a True `mask` come first.
    """
    count, held = jnp.sum(mask, dtype=jnp.int32), state.online.slot_version
    load_slot, save_slot = index_in(held, runs.version), index_in(held, runs.reference)
    there = (held[load_slot] == runs.version) & (held[save_slot] == runs.reference)
    segment = Segments(
        active=jnp.where(mask, runs.local_steps, 0),
        load_count=count,
        load_lane=lanes,
        load_slot=load_slot,
        load_client=runs.client,
        load_run=runs.run,
        load_staleness=None,  # these three are not known when a run trains ahead: `Client.moments_ahead`
        load_duration=None,
        load_server_step=None,
        load_version=runs.version,
        load_started=runs.started.astype(jnp.float32),
        save_count=count,
        save_lane=lanes,
        save_slot=save_slot,
        save_row=rows,
    )
    lost = state.online.lost + jnp.sum(mask & ~there, dtype=jnp.int32)
    return train(segment, state)._replace(online=state.online._replace(lost=lost))


def index_in(table: Array, values: Array | None) -> Array:
    """Returns the index of every value in the table."""
    order = jnp.argsort(table)
    place = jnp.searchsorted(table[order], jnp.asarray(values))
    return order[jnp.minimum(place, table.shape[0] - 1)].astype(jnp.int32)


def free_slot(state: State, flight: InFlight | None) -> Array:
    """Returns a ring slot whose version no run needs; `flight`: `None` if all runs train from the newest version."""
    if flight is None:
        return jnp.argmin(state.online.slot_version).astype(jnp.int32)
    needed = jnp.concatenate([flight.runs.version, cast(Array, flight.runs.reference)])
    pinned = jnp.concatenate([flight.pinned, flight.pinned])
    unneeded = jnp.where(pinned, needed, NEVER - 1)
    return jnp.argmin(jnp.isin(state.online.slot_version, unneeded)).astype(jnp.int32)
