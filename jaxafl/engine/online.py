"""Runs whose clock runs beside the training: for servers whose replies change the work of the next runs (AsyncFedED's
K), and for runs that stop early and are charged the time of the steps that they made.

The same clock functions as in `jaxafl.clock.schedules`, in float64 time, and the same rows as a plan's, made one at a
time inside the loop of the compiled program. A wave trains the runs that arrive and, on accelerators, those under way
that are not yet trained.
"""

from __future__ import annotations

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.clock.contract import Clock, InFlight, OnlineClock, Runs, ServerStep, Workload, first_state
from jaxafl.clock.rules import Earlier, check_next, check_steps
from jaxafl.clock.schedules import raise_fault
from jaxafl.device import as_arrays, buffers, on_device, on_host
from jaxafl.device.key_leaves import pack, unpack
from jaxafl.device.keys import Key
from jaxafl.engine.batched import over_members
from jaxafl.engine.execution import Execution, prepared
from jaxafl.engine.mesh import ALL, DATA, NUMBERS, STATE, compiled_over, spread
from jaxafl.engine.patiently import patiently
from jaxafl.engine.plan import Segments, Steps
from jaxafl.engine.problem import DeviceData, Numbers, Problem, Program, Speed
from jaxafl.engine.state import Beside, Records, State
from jaxafl.engine.step import OneStep, build_server_step, over_steps
from jaxafl.engine.train import Executed, Train, build_train
from jaxafl.engine.validate import chunk_of
from jaxafl.engine.width import local_step_of
from jaxafl.options import UserError, check_whole, static

Array = jax.Array
_NEVER = -1


def online(problem: Problem, every: int, speed: Speed) -> Execution:
    """One run with its clock beside the training."""
    clock, clients = problem.clock, problem.data.num_clients
    capacity, in_flight = clock.capacity(clients), clock.in_flight(clients)
    shares = problem.layout.shares
    if shares > 1 and (problem.server.needs.client_models or problem.layout.divided):
        raise UserError("where the clock runs beside the training, devices cannot divide the clients: use one device")
    lanes = -(-_lanes(speed.lanes, capacity, in_flight) // shares) * shares
    step = functools.partial(local_step_of, problem.model, problem.data, problem.client)
    execution = prepared(
        [problem],
        None,
        shared=False,
        length=every,
        lanes=lanes // shares,
        chunk=chunk_of(lanes // shares, speed.chunk, lambda: step().room()),
        slots=cast(OnlineClock, clock).slots_beside(clients),
        rows=capacity if lanes == capacity else in_flight + capacity,
        uniform=False,
        deterministic=speed.deterministic,
        full=type(clock).__module__.startswith("jaxafl."),  # a buffer of `free_running` is always full
    )
    with jax.enable_x64(True):
        clock_numbers = as_arrays(clock, jnp.float64)
        client = problem.client
        steps = on_device(np.asarray(client.steps if client.epochs is None else client.epochs, np.int32))
        arguments = (clock_numbers, execution.state, problem.key, steps)
        static, kinds = (execution.program, clients), (ALL, STATE, ALL, ALL)
        arguments = spread(execution.program, kinds, arguments)
        begin, _ = compiled_over(begin_online, static, kinds, arguments, STATE)
        execution.state = begin(*arguments)
        constant = (clock_numbers, execution.numbers, problem.device)
        execution.compile(advance_online, (ALL, NUMBERS, DATA, STATE), constant)
    execution.around = functools.partial(jax.enable_x64, True)
    if not type(clock).__module__.startswith("jaxafl."):
        execution.wait = functools.partial(patiently, problem)
    execution.check = functools.partial(_check, clock, clients, Earlier())
    return execution


def _check(clock: Clock, num_clients: int, earlier: Earlier, state: State, records: Records, start: int) -> None:
    """Raises where a clock has run into something, or its server steps from `start` on cannot have happened."""
    fault, (lost,) = on_host((state.beside.clock.starts.fault, state.beside.lost))
    raise_fault(jax.tree.map(lambda leaf: leaf[0], fault))
    if lost:
        raise RuntimeError(f"{lost} runs were trained from a version that the ring no longer held")
    if not type(clock).__module__.startswith("jaxafl."):  # as ahead of training
        (failed,) = on_host(state.failure.step)
        end = failed + 1 - start if failed >= 0 else None  # a run that fails takes no steps after that
        event, runs_begun = jax.tree.map(lambda leaf: leaf[0, :end], (records.event, records.runs_begun))
        check_steps(clock, num_clients, event, runs_begun, start, earlier)


def begin_online(program: Program, num_clients: int, clock: Clock, state: State, key: Key, local_steps: Array) -> State:
    """The state with its clock at the beginning; called with 64-bit types enabled.

    Args:
        program, num_clients: static.
        clock: the clock, its numbers in float64.
        state: the state without it.
        key: of the schedule.
        local_steps: int32 [] or [N], K of the first runs.
    """
    beside = Beside(
        clock=pack(first_state(clock, key, num_clients)),
        next_steps=jnp.broadcast_to(local_steps, (num_clients,)).astype(jnp.int32),
        slot_version=jnp.full(program.slots, _NEVER, jnp.int32).at[0].set(0),
        row_run=jnp.full(program.rows, _NEVER, jnp.int32),
        lost=jnp.int32(0),
    )
    return state._replace(beside=jax.tree.map(lambda leaf: leaf[None], beside))


def advance_online(
    program: Program, clock: Clock, numbers: Numbers, device: DeviceData, state: State, start: Array, stop: Array
) -> tuple[State, Records]:
    """As `advance_planned`, with the clock in the loop; called with 64-bit types enabled.

    Args:
        program, numbers, device, state, start, stop: as there.
        clock: the clock.
    """

    def member(state: State) -> tuple[State, Records]:
        return over_steps(program, _build_step(program, clock, numbers, device), start, stop, state)

    return over_members(member, 1, (0,), 0)(state)


def _build_step(program: Program, clock: Clock, numbers: Numbers, device: DeviceData) -> OneStep:
    """(number, state) -> (state, record): one server step."""
    client, num_clients = numbers.client, device.counts.shape[0]
    beside_clock, wide = cast(OnlineClock, clock), program.wide

    def step(number: Array, state: State) -> tuple[State, Records]:
        with jax.enable_x64(wide):
            train, executed_steps = build_train(program, numbers, device)
            server_step = build_server_step(program, numbers, device)
        beside = state.beside
        unit = client.steps_per_epoch(device.counts) if client.epochs is not None else jnp.int32(1)
        steps = jnp.broadcast_to(beside.next_steps * unit, (num_clients,))
        workload = Workload(steps, num_clients)
        if client.charge == "executed":
            workload = _Executed(steps, num_clients, executed_steps, wide, state)
        before = unpack(beside.clock)
        check_next(clock, num_clients, before, made := clock.next(before, workload))
        clock_state, event = made[0], made[1].complete()
        flight = beside_clock.in_flight_runs(clock_state)
        flight = flight._replace(runs=flight.runs.complete())
        order = jnp.argsort(flight.runs.arrived).astype(jnp.int32)
        with jax.enable_x64(wide):
            state = _train_missing(program, train, event, flight, order, state)
            row, slot = _row(event, number, state), _free(state, flight)
            state, outcome, info = server_step(row._replace(write_slot=slot), number, state)
            next_steps = beside.next_steps
            if outcome.next_steps is not None:
                where = jnp.where(event.mask, event.runs.client, num_clients)
                next_steps = next_steps.at[where].set(outcome.next_steps.astype(jnp.int32), mode="drop")
            held = state.beside.slot_version.at[slot].set(number + 1)
            after = state.beside._replace(clock=pack(clock_state), next_steps=next_steps, slot_version=held)
        return state._replace(beside=after), Records(info, event, clock_state.starts.count)

    return step


class _Executed(Workload):
    """The local steps that runs make before they stop early.

    A run is trained when it begins, to know its duration, and again when it arrives: to keep its update meanwhile
    would make the clock carry the engine's buffers.
    """

    executed_steps: Executed = static()
    wide: bool = static()
    run_state: State | None = None

    def local_steps(
        self, client: Array, run: Array, version: Array | None = None, begins: Array | bool = True
    ) -> Array:
        planned = super().local_steps(client, run)
        state: Any = self.run_state
        with jax.enable_x64(self.wide):
            slot = _find(state.beside.slot_version, jnp.asarray(version)[None])[0]

            def train_once(_: Array, steps: Array) -> Array:
                return self.executed_steps(state, slot, client, run, planned)

            # a loop of at most one pass: a conditional would copy the ring
            return jax.lax.fori_loop(0, jnp.asarray(begins).astype(jnp.int32), train_once, planned)


def _row(event: ServerStep, number: Array, state: State) -> Steps:
    """The event as a row of a plan, but for the slot that it writes."""
    beside = state.beside
    runs = event.runs
    return Steps(
        segments_before=jnp.int32(0),
        time=event.time.astype(jnp.float32),
        mask=event.mask,
        row=_find(beside.row_run, runs.run_id),
        lane=jnp.zeros_like(runs.client),  # nobody asks: updates are on all devices
        client=runs.client,
        staleness=number - cast(Array, runs.reference),
        local_steps=runs.local_steps,
        multiplicity=event.multiplicity,
        kind=event.kind,
        base_slot=_find(beside.slot_version, runs.reference),
        write_slot=jnp.int32(0),
    )


def _train_missing(
    program: Program, train: Train, event: ServerStep, flight: InFlight, order: Array, state: State
) -> State:
    """Trains the arrivals that are not yet trained, and with them runs under way, earliest arrival first."""
    beside, width = state.beside, program.lanes * program.shares
    if width == program.capacity:
        rows = jnp.arange(width, dtype=jnp.int32)
        mask, runs = event.mask, event.runs
        if not program.full:
            first = jnp.argsort(~mask, stable=True)
            mask, runs = jax.tree.map(lambda column: column[first], (mask, runs))
        segment, lost = _wave(rows, mask, runs, rows, state)
        after = beside._replace(row_run=jnp.where(mask, runs.run_id, _NEVER), lost=beside.lost + lost)
        return train(segment, state)._replace(beside=after)
    waiting = jax.tree.map(lambda now, later: jnp.concatenate([now, later[order]]), event.runs, flight.runs)
    mask = jnp.concatenate([event.mask, flight.mask[order]])
    untrained = mask & ~jnp.isin(waiting.run_id, beside.row_run)
    live = jnp.isin(beside.row_run, jnp.where(mask, waiting.run_id, _NEVER - 1))
    lanes = jnp.arange(width, dtype=jnp.int32)
    most = min(untrained.shape[0], live.shape[0])  # there may be more lanes than runs
    place = jnp.minimum(lanes, most - 1)
    first = jnp.argsort(~untrained, stable=True)[place].astype(jnp.int32)
    free = jnp.argsort(live, stable=True)[place].astype(jnp.int32)
    chosen = untrained[first] & (lanes < most)

    def wave(_: Array, state: State) -> State:
        beside = state.beside
        entries = jax.tree.map(lambda column: column[first], waiting)
        segment, lost = _wave(free, chosen, entries, lanes, state)
        row_run = buffers.write_many(beside.row_run, free, chosen, entries.run_id)
        after = beside._replace(row_run=row_run, lost=beside.lost + lost)
        return train(segment, state)._replace(beside=after)

    # a loop of at most one pass: a conditional would copy the buffers that it passes through
    missing = jnp.any(untrained[: program.capacity]).astype(jnp.int32)
    return jax.lax.fori_loop(0, missing, wave, state)


def _wave(rows: Array, mask: Array, runs: Runs, lanes: Array, state: State) -> tuple[Segments, Array]:
    """The segment that trains the masked runs from beginning to end, and how many of them lack a version in the ring;
    masked entries come first."""
    count, held = jnp.sum(mask, dtype=jnp.int32), state.beside.slot_version
    load_slot, save_slot = _find(held, runs.version), _find(held, runs.reference)
    there = (held[load_slot] == runs.version) & (held[save_slot] == runs.reference)
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
    return segment, jnp.sum(mask & ~there, dtype=jnp.int32)


def _find(table: Array, values: Array | None) -> Array:
    """For every value, the index at which it stands in the table."""
    order = jnp.argsort(table)
    place = jnp.searchsorted(table[order], jnp.asarray(values))
    return order[jnp.minimum(place, table.shape[0] - 1)].astype(jnp.int32)


def _free(state: State, flight: InFlight) -> Array:
    """A slot whose version nobody needs."""
    needed = jnp.concatenate([flight.runs.version, cast(Array, flight.runs.reference)])
    pinned = jnp.concatenate([flight.pinned, flight.pinned])
    unneeded = jnp.where(pinned, needed, _NEVER - 1)
    return jnp.argmin(jnp.isin(state.beside.slot_version, unneeded)).astype(jnp.int32)


def _lanes(lanes: int | None, capacity: int, in_flight: int) -> int:
    if lanes is None:
        return capacity if jax.default_backend() == "cpu" else max(capacity, min(in_flight, 32))
    return max(check_whole("run", "lanes", lanes), capacity)
