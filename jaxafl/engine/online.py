"""Runs whose clock is advanced inside the training loop: for servers whose replies change the work of the next runs
(AsyncFedED's K), and for runs that stop early and are charged the time of their executed steps.

The clock functions are those of `jaxafl.clock.schedules`, in float64 time, and each server step is one row of the loop,
computed inside the compiled program. A wave trains the arriving runs and, on accelerators, untrained runs in flight.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.clock.contract import Clock, Delivery, Fault, FaultCode, OnlineClock, Workload
from jaxafl.clock.patience import call_interruptibly
from jaxafl.clock.rules import Earlier, check_steps
from jaxafl.clock.schedules import one_step, raise_fault
from jaxafl.clock.starts import first_fault, first_state
from jaxafl.clock.versions import next_version
from jaxafl.device import as_arrays, buffers, float64_on_cpu, on_device, on_host
from jaxafl.device.keys import Key, pack, unpack
from jaxafl.engine.batched import over_members
from jaxafl.engine.check import chunk_of
from jaxafl.engine.execute import over_rows
from jaxafl.engine.execution import Execution
from jaxafl.engine.mesh import compiled_over, shard
from jaxafl.engine.prepare import prepared
from jaxafl.engine.problem import (
    BufferSizes,
    DeviceData,
    Hyperparameters,
    Loops,
    MemberHyperparameters,
    Problem,
    Program,
    Speed,
)
from jaxafl.engine.state import OnlineState, Records, State
from jaxafl.engine.step import build_server_step
from jaxafl.engine.train import build_train
from jaxafl.engine.waves import NEVER, ExecutedWorkload, free_slot, steps_of, train_arrivals, train_missing
from jaxafl.engine.width import lanes_in_memory
from jaxafl.options import UserError, check_whole

Array = jax.Array


def online(problem: Problem, every: int, speed: Speed) -> Execution:
    """Prepares one run whose clock is advanced inside the training loop."""
    clock, clients = problem.clock, problem.data.num_clients
    capacity, in_flight = clock.capacity(clients), clock.in_flight(clients)
    shares = problem.layout.shares
    remembers = problem.client.remembers
    if shares > 1 and (problem.server.needs.client_models or problem.layout.divided or remembers):
        raise UserError(
            "run: a clock that is advanced during training cannot shard clients over devices; use one device"
        )
    lanes = capacity if remembers else -(-_lanes(speed.lanes, capacity, in_flight) // shares) * shares
    why = ", as the clock is advanced during training and clients keep something from run to run" * remembers
    chunk = chunk_of(lanes // shares, speed.chunk, lambda: lanes_in_memory(problem), why)
    ring = cast(OnlineClock, clock).online_ring_slots(clients)
    store = capacity if lanes == capacity else in_flight + capacity
    execution = prepared(
        [problem],
        None,
        problem.program(Loops(steps_per_call=every, lanes_per_vmap=chunk)),
        BufferSizes(lanes // shares, ring, store),
        speed.deterministic,
        shared=False,
    )
    with jax.enable_x64(True):
        clock_numbers = as_arrays(clock, jnp.float64)
        client = problem.client
        steps = on_device(np.asarray(client.steps if client.epochs is None else client.epochs, np.int32))
        arguments = shard(problem.layout, (clock_numbers, execution.state, problem.key, steps))
        begin, _ = compiled_over(begin_online, (execution.program, clients), arguments, state=True)
        execution.state = begin(*arguments)
        execution.compile(advance_online, (clock_numbers, execution.hyperparameters, problem.device))
    execution.context = functools.partial(jax.enable_x64, True)
    if not type(clock).__module__.startswith("jaxafl."):
        execution.wait = functools.partial(_interruptibly, problem)
    execution.check = functools.partial(_check, clock, clients, Earlier())
    return execution


def _interruptibly(problem: Problem, call: Callable[[], Any], state: State, steps: range) -> Any:
    """Calls a program that contains a user-defined clock, which may never reach its next server step.

    Ctrl-C interrupts it. After some seconds, the clock is advanced step by step as well, to name that server step.

    Args:
        problem: the run.
        call: the call, which may donate the state.
        state: the state before the first server step.
        steps: the server steps.
    """
    clock, counts = problem.clock, problem.data.counts
    clock_state, planned = on_host(jax.tree.map(lambda leaf: leaf[0], (state.online.clock, state.online.next_steps)))
    unit = np.asarray(problem.client.steps_per_epoch(counts)) if problem.client.epochs is not None else 1

    def begin() -> Any:
        with float64_on_cpu():
            workload = Workload(on_device(np.asarray(planned * unit, np.int32)), len(counts))
            before = unpack(on_device(clock_state))
            return before, one_step(as_arrays(clock, jnp.float64), workload, before)

    return call_interruptibly(call, begin, clock, len(counts), problem.seed, steps)


def _check(clock: Clock, num_clients: int, earlier: Earlier, state: State, records: Records, start: int) -> None:
    """Raises for a fault of the clock, a lost version, or invalid server steps from `start` on."""
    fault, (lost,) = on_host((state.online.clock.starts.fault, state.online.lost))
    raise_online_fault(jax.tree.map(lambda leaf: leaf[0], fault), lost)
    if not type(clock).__module__.startswith("jaxafl."):  # as ahead of training
        (failed,) = on_host(state.failure.step)
        end = failed + 1 - start if failed >= 0 else None  # a run that fails takes no steps after that
        event, counts = jax.tree.map(lambda leaf: leaf[0, :end], (records.event, records.counts))
        check_steps(clock, num_clients, event, counts.started, start, earlier)


def raise_online_fault(fault: Fault, lost: Any) -> None:
    """Raises `ValueError` for a fault of the clock, and `RuntimeError` if `lost` runs had no version in the ring."""
    raise_fault(fault)
    if lost:
        raise RuntimeError(f"{lost} runs were trained from a version that the ring no longer held")


def begin_online(program: Program, num_clients: int, clock: Clock, state: State, key: Key, local_steps: Array) -> State:
    """Returns the state with its clock at the beginning; called with 64-bit types enabled.

    Args:
        program, num_clients: static.
        clock: the clock, its numbers in float64.
        state: the state without it.
        key: PRNG key of the schedule.
        local_steps: int32 [] or [N], K of the first runs; or [N, R], of all runs, for servers that do not reply.
    """
    online_state = OnlineState(
        clock=pack(first_state(clock, key, num_clients)),
        next_steps=jnp.broadcast_to(local_steps, (num_clients, *local_steps.shape[1:])).astype(jnp.int32),
        slot_version=jnp.full(len(jax.tree.leaves(state.ring)[0][0]), NEVER, jnp.int32).at[0].set(0),
        row_run=jnp.full(state.store.loss.shape[1], NEVER, jnp.int32),
        lost=jnp.int32(0),
    )
    return state._replace(online=jax.tree.map(lambda leaf: leaf[None], online_state))


def advance_online(
    program: Program,
    clock: Clock,
    members: MemberHyperparameters,
    device: DeviceData,
    state: State,
    start: Array,
    stop: Array,
    first_step: Array,
) -> tuple[State, Records]:
    """Executes server steps start .. stop - 1 of one run; called with 64-bit types enabled.

    Args:
        program: static.
        clock: the clock, its numbers in float64.
        members, device, state, start, stop, first_step: see `jaxafl.engine.execute.advance`.
    """

    def member(state: State) -> tuple[State, Records]:
        # traced once, for the shapes of its records and for the loop
        step = jax.jit(build_online_step(program, clock, members.values, device), inline=True)

        def row(number: Array, state: State, records: Records) -> tuple[State, Records]:
            state, record = step(number, state)
            return state, buffers.write(records, number - first_step, record)

        records = buffers.allocate(jax.eval_shape(step, start, state)[1], program.loops.steps_per_call)
        return over_rows(program.loops, True, row, state, records, start, stop)

    return over_members(member, 1, (0,), 0)(state)


def build_online_step(
    program: Program, clock: Clock, hyperparameters: Hyperparameters, device: DeviceData
) -> Callable[[Array, State], tuple[State, Records]]:
    """Builds step(number, state) -> (state, record): one server step."""
    client, num_clients = hyperparameters.client, device.counts.shape[0]
    online_clock = cast(OnlineClock, clock)
    keep_base = hyperparameters.server.needs.base or program.recording.needs_base
    shipped = type(clock).__module__.startswith("jaxafl.")
    always_full = shipped and Delivery.REPLIES in clock.delivers  # a buffer of `free_running` is always full

    def step(number: Array, state: State) -> tuple[State, Records]:
        x64 = state.lanes.loss.dtype == jnp.float64
        with jax.enable_x64(x64):
            train, executed_steps = build_train(program, hyperparameters, device)
            server_step = build_server_step(program, hyperparameters, device, single=True)
        before = state.online
        unit = client.steps_per_epoch(device.counts) if client.epochs is not None else jnp.int32(1)
        steps = before.next_steps * unit
        workload = Workload(steps, num_clients)
        if client.charge == "executed":
            workload = ExecutedWorkload(steps, num_clients, executed_steps, x64, state)
        clock_state, event = next_version(clock, unpack(before.clock), workload)
        flight = online_clock.in_flight_runs(clock_state) if hasattr(clock, "in_flight_runs") else None
        if flight is not None:
            flight = flight._replace(runs=flight.runs.complete())
        with jax.enable_x64(x64):
            width = len(state.lanes.step) * program.layout.shares
            if width == len(event.mask):
                state = train_arrivals(train, event, always_full, state)
            else:
                assert flight is not None
                order = jnp.argsort(flight.runs.arrived).astype(jnp.int32)
                state = train_missing(width, train, event, flight, order, state)
            row = steps_of(event, number, state)._replace(write_slot=free_slot(state, flight))
            row = row._replace(
                mask=None if always_full else row.mask,
                update_slot=None if always_full and width == len(event.mask) else row.update_slot,
                base_slot=row.base_slot if keep_base else None,
            )
            state, outcome, info = server_step(row, number, state)
            next_steps = before.next_steps
            if outcome.next_steps is not None:
                who, replies = event.runs.client, outcome.next_steps.astype(jnp.int32)
                next_steps = next_steps.at[jnp.where(event.mask, who, num_clients)].set(replies, mode="drop")
                place = jnp.argmax(event.mask & (replies < 1))
                code = jnp.where(event.mask[place] & (replies[place] < 1), FaultCode.REPLY, FaultCode.NONE)
                starts = first_fault(clock_state.starts, code, client=who[place], run=replies[place], round=number)
                clock_state = clock_state._replace(starts=starts)
            held = state.online.slot_version.at[row.write_slot].set(number + 1)
            after = state.online._replace(clock=pack(clock_state), next_steps=next_steps, slot_version=held)
        return state._replace(online=after), Records(info, None, event, clock_state.starts.counts)

    return step


def _lanes(lanes: int | None, capacity: int, in_flight: int) -> int:
    if lanes is None:
        return capacity if jax.default_backend() == "cpu" else max(capacity, min(in_flight, 32))
    return max(check_whole("run", "lanes", lanes), capacity)
