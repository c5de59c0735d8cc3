"""Members with plans of their own (other seeds, other clock numbers), advanced in lockstep.

In a row every member trains one segment and takes the server steps that it can; the loop bounds are those of the
slowest member, known from the plans, and whatever a member does not take part in is a dropped write. (A plain `vmap`
would batch every predicate: it trains at every event and copies the ring in every iteration.)
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32

from jaxafl.clock import Schedule
from jaxafl.device import buffers, on_device, shapes_of
from jaxafl.engine.batched import number_axes
from jaxafl.engine.execution import Execution, prepared
from jaxafl.engine.mesh import DATA, NUMBERS, OF_MEMBERS, ROWS, STATE, spread
from jaxafl.engine.plan import Indices, Plan, Segments, Steps, padded
from jaxafl.engine.planned import block_of, known_lengths, plan_of
from jaxafl.engine.problem import DeviceData, Numbers, Problem, Program, Speed
from jaxafl.engine.state import Records, State
from jaxafl.engine.step import build_server_step, in_blocks
from jaxafl.engine.train import build_train
from jaxafl.engine.width import local_step_of


class Rows(NamedTuple):
    """The rows of a lockstep: R rows of P members."""

    segment: Int32[Indices, "R P"]  # the segment that a member trains (an empty one if it has none left in its chunk)
    first: Int32[Indices, "R P"]  # the first server step that it takes after that
    taken: Int32[Indices, "R P"]  # how many it takes
    local_steps: Int32[Indices, " R"]  # the most local steps of a lane of any member
    most: Int32[Indices, " R"]  # the most server steps of any member
    chunk_start: Int32[Indices, " C"]  # rows before each chunk of server steps, and all


def lockstep(problems: Sequence[Problem], schedules: Sequence[Schedule], every: int, speed: Speed) -> Execution:
    """Problems that differ in client, server and clock numbers, and in seeds, only.

    Args:
        problems: one per member.
        schedules: one per member.
        every: server steps between evaluations.
        speed: lanes and chunk.
    """
    first = problems[0]
    drift = "drift" in first.recording.diagnostics
    step, members = functools.partial(local_step_of, first.model, first.data, first.client), len(problems)
    lanes = speed.lanes or min(
        step().room(members),
        *(plan_of(schedule, first.server, None, step, members=members).lanes for schedule in schedules),
    )
    plans = [plan_of(schedule, first.server, lanes, step, drift) for schedule in schedules]
    rows = make_rows(plans, every)
    execution = prepared(
        problems,
        schedules,
        shared=False,
        length=every,
        lanes=lanes,
        chunk=lanes,
        slots=max(plan.slots for plan in plans) + 1,
        rows=max(plan.rows for plan in plans),
        in_order=all(plan.in_order for plan in plans),
        uniform=False,
        deterministic=speed.deterministic,
        full=all(bool(schedule.mask.all()) for schedule in schedules),
        sliced=False,
        **known_lengths(local_steps=(plan.local_steps for plan in plans), steps=rows.most.tolist()),
        block=block_of(*rows.chunk_start.tolist()),
    )
    program = execution.program
    more = len(execution.state.failure.step) - len(plans)  # to fill devices up
    plans += [plans[-1]] * more
    rows = rows._replace(
        **{name: np.pad(getattr(rows, name), ((0, 0), (0, more)), "edge") for name in ("segment", "first", "taken")}
    )
    constant = (execution.numbers, first.device, *on_device((*stack_plans(plans), rows)))
    shapes = shapes_of(_chunk_records, (program,), (*constant[:2], constant[3], execution.state))
    records = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    (records,) = spread(program, (OF_MEMBERS,), (on_device(records),))
    execution.state = execution.state._replace(records=records)
    execution.rows_before = rows.chunk_start
    kinds = (NUMBERS, DATA, OF_MEMBERS, OF_MEMBERS, ROWS, STATE)
    return execution.compile(advance_lockstep, kinds, constant)


def advance_lockstep(
    program: Program,
    numbers: Numbers,
    device: DeviceData,
    segments: Segments,
    steps: Steps,
    rows: Rows,
    state: State,
    start: Array,
    stop: Array,
) -> tuple[State, Records]:
    """Some rows of one chunk of server steps of members with plans of their own.

    Args:
        program, numbers, device: as in `advance_planned`; the last ring slot is scratch, for the writes
            that are dropped.
        segments, steps, state: with a leading member axis.
        rows: the rows of all chunks.
        start, stop: int32, rows of one chunk, whose records so far are `state.records`.
    """
    first_step = (jnp.searchsorted(rows.chunk_start, start, side="right").astype(jnp.int32) - 1) * program.length
    last = steps.time.shape[1] - 1
    axes = number_axes(program, numbers)

    def member_step(
        numbers: Numbers, steps: Steps, first: Array, count: Array, index: Array, state: State, records: Records
    ) -> tuple[State, Records]:
        number = jnp.minimum(first + index, last)
        taken = index < count
        step = buffers.read(steps, number)
        step = step._replace(write_slot=jnp.where(taken, step.write_slot, program.slots - 1))
        new, record = _take(program, numbers, device, step, number, state)
        kept = {name: (getattr(new, name), getattr(state, name)) for name in ("model", "server", "failure", "average")}
        choose = functools.partial(jax.tree.map, lambda a, b: jnp.where(taken, a, b))
        new = new._replace(**{name: choose(*pair) for name, pair in kept.items()})
        where = jnp.where(taken, number - first_step, program.length)
        return new, jax.tree.map(lambda leaf, value: leaf.at[where].set(value, mode="drop"), records, record)

    def row(carry: tuple[Array, State, Records]) -> tuple[Array, State, Records]:
        index, state, records = carry
        bound = rows.local_steps[index]

        def member_train(numbers: Numbers, segments: Segments, which: Array, state: State) -> State:
            train, _ = build_train(program, numbers, device)
            return train(buffers.read(segments, which), state, bound)

        state = jax.vmap(member_train, in_axes=(axes, 0, 0, 0))(numbers, segments, rows.segment[index], state)
        first, count = rows.first[index], rows.taken[index]

        def steps_of_row(place: Array, carry: tuple[State, Records]) -> tuple[State, Records]:
            stepping = jax.vmap(member_step, in_axes=(axes, 0, 0, 0, None, 0, 0))
            return stepping(numbers, steps, first, count, place, *carry)

        most = program.steps or rows.most[index]
        return index + 1, *jax.lax.fori_loop(0, most, steps_of_row, (state, records))

    carry = start, state._replace(records=None), state.records
    _, state, records = jax.lax.while_loop(lambda carry: carry[0] < stop, in_blocks(program, row), carry)
    return state._replace(records=records), records


def _take(
    program: Program, numbers: Numbers, device: DeviceData, step: Steps, number: Array, state: State
) -> tuple[State, Records]:
    state, _, record = build_server_step(program, numbers, device)(step, number, state)
    return state, Records(record)


def _chunk_records(program: Program, numbers: Numbers, device: DeviceData, steps: Steps, state: State) -> Records:
    """Room for the records of a chunk, each [P, program.length, ...]."""

    def member(numbers: Numbers, steps: Steps, state: State) -> Records:
        none = jnp.int32(0)
        _, record = _take(program, numbers, device, buffers.read(steps, none), none, state)
        return buffers.allocate(record, program.length)

    return jax.vmap(member, in_axes=(number_axes(program, numbers), 0, 0))(numbers, steps, state)


def make_rows(plans: list[Plan], every: int) -> Rows:
    """The rows of members with plans of their own; all members end a chunk of `every` server steps together."""
    total = len(plans[0].steps.time)
    empty = [len(plan.segments.active) for plan in plans]  # one past a member's last segment: padding, no work
    table, before = [], [0]
    for start in range(0, total, every):
        stop = min(start + every, total)
        columns = [_member_rows(plan.steps.segments_before, start, stop, empty[m]) for m, plan in enumerate(plans)]
        for cells in itertools.zip_longest(*columns):
            table.append([cell or (empty[m], 0, 0) for m, cell in enumerate(cells)])
        before.append(len(table))
    segment, first, count = np.moveaxis(np.asarray(table, np.int32).reshape(len(table), len(plans), 3), 2, 0)
    widest = np.stack(
        [np.append(plan.segments.active.max(axis=1), 0)[segment[:, m]] for m, plan in enumerate(plans)], axis=1
    )
    return Rows(
        segment, first, count, widest.max(axis=1).astype(np.int32), count.max(axis=1), np.asarray(before, np.int32)
    )


def stack_plans(plans: list[Plan]) -> tuple[Segments, Steps]:
    """Plans of their own as arrays with a leading member axis, segments padded by at least one empty one."""
    longest = max(len(plan.segments.active) for plan in plans) + 1
    segments = [padded(plan.segments, longest) for plan in plans]
    stack = (jax.tree.map(lambda *leaves: np.stack(leaves), *part) for part in (segments, [p.steps for p in plans]))
    return tuple(stack)


def _member_rows(segments_before: np.ndarray, start: int, stop: int, empty: int) -> list[tuple[int, int, int]]:
    """(segment, first step, steps) rows of one member for the server steps start .. stop - 1."""
    rows: list[tuple[int, int, int]] = []
    done = int(segments_before[start - 1]) if start else 0
    for step in range(start, stop):
        while done < segments_before[step]:
            rows.append((done, step, 0))
            done += 1
        segment, first, count = rows.pop() if rows else (empty, step, 0)
        rows.append((segment, first, count + 1))
    return rows
