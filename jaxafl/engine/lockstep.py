"""Members with plans of their own (other seeds, other clock options), advanced in lockstep.

In a row of the loop every member trains one segment and takes the server steps that it can. Trip counts are those of
the slowest member, known from the plans, and the writes of a member that does not take part are dropped. (A plain
`vmap` would batch every predicate: it would train at every event and copy the ring in every iteration.)
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import jax
import numpy as np

from jaxafl.client import turns_of
from jaxafl.clock import Schedule
from jaxafl.clock.discarded import untaken
from jaxafl.device import on_device
from jaxafl.engine.execute import advance
from jaxafl.engine.execution import Execution
from jaxafl.engine.plan import LoopRows, Plan
from jaxafl.engine.planned import Form, block_of, form_of, known_lengths, plan_of, tables_of
from jaxafl.engine.prepare import prepared
from jaxafl.engine.problem import BufferSizes, Loops, Problem, Speed
from jaxafl.engine.width import lanes_in_memory


def lockstep(problems: Sequence[Problem], schedules: Sequence[Schedule], every: int, speed: Speed) -> Execution:
    """Prepares problems that differ in client, server and clock options, and in seeds, only.

    Args:
        problems: one per member.
        schedules: one per member.
        every: server steps between evaluations.
        speed: execution options.
    """
    first = problems[0]
    keep_base = first.server.needs.base or first.recording.needs_base
    in_turn = turns_of(first.client)
    if in_turn:
        schedules = [untaken(schedule) for schedule in schedules]
    lanes = speed.lanes or min(
        lanes_in_memory(first, len(problems)),
        *(plan_of(schedule, first.server, None, in_turn=in_turn).lanes for schedule in schedules),
    )
    plans = [plan_of(schedule, first.server, lanes, keep_base, in_turn=in_turn) for schedule in schedules]
    rows, chunk_start = rows_of(plans, every)
    timing = first.client.rate_schedule is not None
    form = functools.reduce(Form.joined, (form_of(plan, 1, lanes, False, keep_base, timing) for plan in plans))
    form = form._replace(per_lane=True)  # members with fewer local steps than others are masked
    steps = known_lengths(steps=rows.most_steps.tolist())["steps"]
    execution = prepared(
        problems,
        schedules,
        first.program(Loops(every, block_of(*chunk_start.tolist()), lanes, form.local_steps, steps=steps)),
        BufferSizes(lanes, max(plan.slots for plan in plans) + 1, max(plan.rows for plan in plans)),
        speed.deterministic,
        shared=False,
    )
    more = len(execution.state.failure.step) - len(plans)  # repeated members fill the devices up
    own = {name: np.pad(getattr(rows, name), ((0, more), (0, 0)), "edge") for name in ("segment", "step", "steps")}
    longest = max(len(plan.segments.active) for plan in plans) + 1  # padding: a segment without work
    each = [tables_of(plan, form, len(plan.steps.time), longest) for plan in plans]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *each, *each[-1:] * more)
    tables = on_device(stacked._replace(rows=rows._replace(**own), origin=np.int32(0)))
    execution.rows_before = chunk_start
    return execution.compile(advance, (execution.hyperparameters, first.device, tables))


def rows_of(plans: list[Plan], every: int) -> tuple[LoopRows, np.ndarray]:
    """Returns the loop's rows for members with plans of their own, and the number of rows before each chunk of `every`
    server steps, and all; the members end each chunk together."""
    total = len(plans[0].steps.time)
    empty = [len(plan.segments.active) for plan in plans]  # padding: a segment without work
    table: list[list[tuple[int, int, int]]] = []
    before = [0]
    for start in range(0, total, every):
        stop = min(start + every, total)
        columns = [_member_rows(plan.steps.segments_before, start, stop, empty[m]) for m, plan in enumerate(plans)]
        for cells in itertools.zip_longest(*columns):
            table.append([cell or (empty[m], stop, 0) for m, cell in enumerate(cells)])
        before.append(len(table))
    segment, step, steps = np.transpose(np.asarray(table, np.int32).reshape(len(table), len(plans), 3), (2, 1, 0))
    local_steps = [
        np.append(plan.segments.active.max(axis=1), 0)[segment[m]].astype(np.int32) for m, plan in enumerate(plans)
    ]
    rows = LoopRows(segment, None, step, steps, steps.max(axis=0), np.max(local_steps, axis=0))
    return rows, np.asarray(before, np.int32)


def _member_rows(segments_before: np.ndarray, start: int, stop: int, empty: int) -> list[tuple[int, int, int]]:
    """Returns the (segment, first step, steps) rows of one member for the server steps start .. stop - 1."""
    rows: list[tuple[int, int, int]] = []
    done = int(segments_before[start - 1]) if start else 0
    for step in range(start, stop):
        while done < segments_before[step]:
            rows.append((done, step, 0))
            done += 1
        segment, first, count = rows.pop() if rows else (empty, step, 0)
        rows.append((segment, first, count + 1))
    return rows
