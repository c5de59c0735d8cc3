"""The clock beside the training: for servers whose replies change the work of the next runs (AsyncFedED's K), and for
runs that stop early and are charged the time of the steps they made.

The same clock functions as in `schedule.py`, in float64 time, and the same rows as in `execute.py`, made one at a time
inside the loop of the compiled program. A wave trains the runs that arrive and, on accelerators, those under way that
are not yet trained.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxafl import history
from jaxafl.clock.contract import InFlight, OnlineClock, ServerStep, Workload
from jaxafl.execute import apply_server, start_of
from jaxafl.keys import Key
from jaxafl.plan import Segments, Steps
from jaxafl.state import Config, Dataset, Program, State
from jaxafl.train import executed_steps, train

Array = jax.Array
_NEVER = -1


class OnlineState(NamedTuple):
    """A run between two server steps."""

    run: State
    clock: Any
    next_steps: Array  # int32 [N]: K of each client's next run: local steps, or epochs where `Client` counts epochs
    slot_version: Array  # int32 [S]: the version in each ring slot
    row_dispatch: Array  # int32 [R]: the run whose update is in each store row
    lost: Array  # int32: runs that were trained from, or measured against, a version that the ring no longer held: 0


def initial_online(
    program: Program, num_clients: int, clock: OnlineClock, state: State, key: Key, local_steps: Array
) -> OnlineState:
    """The state before the first server step; called with 64-bit types enabled."""
    return OnlineState(
        run=state,
        clock=clock.init(key, num_clients),
        next_steps=jnp.broadcast_to(local_steps, (num_clients,)).astype(jnp.int32),
        slot_version=jnp.full(program.slots, _NEVER, jnp.int32).at[0].set(0),
        row_dispatch=jnp.full(program.rows, _NEVER, jnp.int32),
        lost=jnp.int32(0),
    )


def advance_online(
    program: Program,
    length: int,
    wide: bool,
    clock: OnlineClock,
    config: Config,
    dataset: Dataset,
    state: OnlineState,
    start: Array,
    stop: Array,
) -> tuple[OnlineState, tuple[ServerStep, dict[str, Array]]]:
    """As `execute.advance`, with the clock in the loop; called with 64-bit types enabled.

    Args:
        program, length, config, dataset, start, stop: as in `execute.advance`.
        wide: whether the training itself uses 64-bit types.
        clock: the clock.
        state: where the run is.

    Returns:
        The new state, and the schedule, the runs started so far and the diagnostics of the steps, each [length, ...].
    """

    def one(carry: tuple[Array, OnlineState, Any]) -> tuple[Array, OnlineState, Any]:
        number, state, records = carry
        state, record = _step(program, wide, clock, config, dataset, number, state)
        return number + 1, state, history.write(records, number - start, record)

    shapes = jax.eval_shape(lambda: _step(program, wide, clock, config, dataset, start, state)[1])
    records = jax.tree.map(lambda leaf: jnp.zeros((length, *leaf.shape), leaf.dtype), shapes)
    _, state, records = jax.lax.while_loop(
        lambda carry: (carry[0] < stop) & (carry[1].run.failure.step < 0), one, (start, state, records)
    )
    return state, records


def _step(
    program: Program,
    wide: bool,
    clock: OnlineClock,
    config: Config,
    dataset: Dataset,
    number: Array,
    state: OnlineState,
) -> tuple[OnlineState, tuple[ServerStep, Array, dict[str, Array]]]:
    num_clients = state.next_steps.shape[0]
    steps_of_one = _steps_of_one(config, dataset)
    workload = Workload(state.next_steps * steps_of_one, num_clients)
    if config.client.charge == "executed":
        workload = _Executed(workload.steps, num_clients, program, wide, config, dataset, state)
    clock_state, event = clock.next(state.clock, workload)
    flight = clock.in_flight_runs(clock_state)
    order = jnp.argsort(flight.arrives).astype(jnp.int32)
    state = state._replace(clock=clock_state)
    with jax.enable_x64(wide):
        state = _train_missing(program, config, dataset, event, flight, order, state)
        step = Steps(
            segments_before=jnp.int32(0),
            time=event.time.astype(jnp.float32),
            mask=event.mask,
            row=_find(state.row_dispatch, event.dispatch),
            client=event.client,
            staleness=number - event.reference,
            local_steps=event.local_steps,
            multiplicity=event.multiplicity,
            kind=event.kind,
            start_slot=_find(state.slot_version, event.reference),
            write_slot=_free(state.slot_version, flight),
        )
        stored = history.read_many(state.run.store, step.row, program.sliced)
        if config.server.needs.replies_steps:
            stored = stored._replace(local_steps=stored.local_steps // steps_of_one[event.client])
        start = start_of(program, config, step, state.run)
        run, update, record = apply_server(program, config, dataset, step, number, stored, start, state.run)
        run = run._replace(ring=history.write(run.ring, step.write_slot, run.model))
        next_steps = state.next_steps
        if update.next_steps is not None:
            where = jnp.where(event.mask, event.client, num_clients)
            next_steps = next_steps.at[where].set(update.next_steps.astype(jnp.int32), mode="drop")
        slot_version = state.slot_version.at[step.write_slot].set(number + 1)
    state = state._replace(run=run, next_steps=next_steps, slot_version=slot_version)
    return state, (event, clock_state.dispatches, record)


def _steps_of_one(config: Config, dataset: Dataset) -> Array:
    """int32 [N]: the local steps of one of the K that a server replies: a mini-batch step, or an epoch."""
    steps = config.client.steps_per_epoch(dataset.counts) if config.client.epochs is not None else 1
    return jnp.broadcast_to(jnp.asarray(steps, jnp.int32), dataset.counts.shape)


@dataclasses.dataclass(frozen=True)
class _Executed(Workload):
    """The local steps that runs make before they stop early.

    A run is trained when it begins, to know its duration, and again when it arrives: to keep its update meanwhile
    would make the clock carry the engine's buffers.
    """

    program: Program
    wide: bool
    config: Config
    dataset: Dataset
    state: OnlineState

    def local_steps(self, client: Array, run: Array, version: Array | None = None, begins: Any = True) -> Array:
        planned = super().local_steps(client, run)
        with jax.enable_x64(self.wide):
            slot = _find(self.state.slot_version, jnp.asarray(version)[None])[0]

            def train_once(_: Array, steps: Array) -> Array:
                return executed_steps(
                    self.program, self.config, self.dataset, self.state.run, slot, client, run, planned
                )

            # a loop of at most one pass: a conditional would copy the ring
            return jax.lax.fori_loop(0, begins.astype(jnp.int32), train_once, planned)


def _train_missing(
    program: Program,
    config: Config,
    dataset: Dataset,
    event: ServerStep,
    flight: InFlight,
    order: Array,
    state: OnlineState,
) -> OnlineState:
    """Trains the arrivals that are not yet trained, and with them runs under way, earliest arrival first."""
    if program.lanes == program.capacity:
        rows = jnp.arange(program.lanes, dtype=jnp.int32)
        segment, lost = _wave(rows, event.mask, event, rows, state)
        return state._replace(
            run=train(program, config, dataset, segment, state.run),
            row_dispatch=jnp.where(event.mask, event.dispatch, _NEVER),
            lost=state.lost + lost,
        )
    ahead = jax.tree.map(lambda column: column[order], flight)
    columns = ("mask", "client", "run", "dispatch", "version", "reference", "local_steps")
    waiting = event._replace(
        **{name: jnp.concatenate([getattr(event, name), getattr(ahead, name)]) for name in columns}
    )
    untrained = waiting.mask & ~jnp.isin(waiting.dispatch, state.row_dispatch)
    live = jnp.isin(state.row_dispatch, jnp.where(waiting.mask, waiting.dispatch, _NEVER - 1))
    lanes = jnp.arange(program.lanes, dtype=jnp.int32)
    most = min(untrained.shape[0], live.shape[0])  # there may be more lanes than runs
    place = jnp.minimum(lanes, most - 1)
    first = jnp.argsort(~untrained, stable=True)[place].astype(jnp.int32)
    free = jnp.argsort(live, stable=True)[place].astype(jnp.int32)
    chosen = untrained[first] & (lanes < most)

    def wave(_: Array, state: OnlineState) -> OnlineState:
        picked = ("client", "run", "dispatch", "version", "reference", "local_steps")
        entries = waiting._replace(**{name: getattr(waiting, name)[first] for name in picked})
        segment, lost = _wave(free, chosen, entries, lanes, state)
        where = jnp.where(chosen, free, program.rows)
        return state._replace(
            run=train(program, config, dataset, segment, state.run),
            row_dispatch=state.row_dispatch.at[where].set(entries.dispatch, mode="drop"),
            lost=state.lost + lost,
        )

    # a loop of at most one pass: a conditional would copy the buffers that it passes through
    missing = jnp.any(untrained[: program.capacity]).astype(jnp.int32)
    return jax.lax.fori_loop(0, missing, wave, state)


def _wave(rows: Array, mask: Array, runs: ServerStep, lanes: Array, state: OnlineState) -> tuple[Segments, Array]:
    """The segment that trains the masked runs from beginning to end, and how many of them lack a version in the ring;
    masked entries come first."""
    count = jnp.sum(mask, dtype=jnp.int32)
    load_slot, save_slot = _find(state.slot_version, runs.version), _find(state.slot_version, runs.reference)
    held = (state.slot_version[load_slot] == runs.version) & (state.slot_version[save_slot] == runs.reference)
    segment = Segments(
        active=jnp.where(mask, runs.local_steps, 0),
        load_count=count,
        load_lane=lanes,
        load_slot=load_slot,
        load_client=runs.client,
        load_run=runs.run,
        load_staleness=jnp.zeros_like(runs.run),  # not known when a run trains ahead; `rate_schedule` is refused
        load_duration=jnp.zeros(runs.run.shape, jnp.float32),
        save_count=count,
        save_lane=lanes,
        save_slot=save_slot,
        save_row=rows,
    )
    return segment, jnp.sum(mask & ~held, dtype=jnp.int32)


def _find(table: Array, values: Array) -> Array:
    """For every value, the index at which it stands in the table."""
    order = jnp.argsort(table)
    place = jnp.searchsorted(table[order], values)
    return order[jnp.minimum(place, table.shape[0] - 1)].astype(jnp.int32)


def _free(slot_version: Array, flight: InFlight) -> Array:
    """A slot whose version nobody needs."""
    needed = jnp.concatenate([flight.version, flight.reference])
    pinned = jnp.concatenate([flight.pinned, flight.pinned])
    return jnp.argmin(jnp.isin(slot_version, jnp.where(pinned, needed, _NEVER - 1))).astype(jnp.int32)
