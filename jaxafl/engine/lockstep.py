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

from jaxafl.clock import Schedule
from jaxafl.device import on_device
from jaxafl.device.hardware import built_for_cpu
from jaxafl.engine.execution import Execution
from jaxafl.engine.plan import LoopRows, Plan, Tables
from jaxafl.engine.problem import Problem, Shapes, Speed
from jaxafl.engine.sizes import block_of, constant, lanes_in_memory, plan_of, shapes_of_plan, tables_of

_TOGETHER = 50  # the most server steps after which the members wait for each other, so that a call can end


class Lockstep(Execution):
    """Runs that differ in client, server and clock options, and in seeds, only, with a schedule and a plan each."""

    def __init__(self, problems: Sequence[Problem], schedules: Sequence[Schedule], every: int, speed: Speed) -> None:
        """
        Args:
            problems: one per run.
            schedules: one per run.
            every: server steps between evaluations.
            speed: execution options.
        """
        first, self.schedules = problems[0], schedules
        lanes = speed.lanes
        if lanes is None:
            lanes = min(lanes_in_memory(first, len(problems)), *(plan_of(one, first).lanes for one in schedules))
        plans = [plan_of(schedule, first, lanes) for schedule in schedules]
        total = schedules[0].server_steps
        chunks = (range(start, min(start + every, total), _TOGETHER) for start in range(0, total, every))
        self.borders = [*itertools.chain.from_iterable(chunks), total]
        rows, before = rows_of(plans, self.borders)
        self.rows_before = dict(zip(self.borders, before, strict=True))
        calls = dict(steps_per_call=every, rows_per_check=block_of(*before))
        shapes = functools.reduce(Shapes.joined, (shapes_of_plan(plan, first, lanes, **calls) for plan in plans))
        shapes = shapes._replace(
            ring=shapes.ring + 1,  # a scratch slot, for the writes of members that take no part in a row
            segments=shapes.segments + 1,  # padding: a segment without work
            per_lane=True,  # members with fewer local steps than others are masked
            steady=False,
            segments_per_row=None,
            steps_per_row=None if built_for_cpu() else constant(rows.most_steps),
        )
        super().__init__(problems, shapes, speed.deterministic, shared=False)
        each = [tables_of(plan, shapes)[:2] for plan in plans]
        segments, steps = jax.tree.map(lambda *leaves: np.stack(leaves), *each)
        self.compile(on_device(Tables(segments, steps, rows, np.int32(0))), shapes)

    def enter(self, start: int, stop: int) -> int:
        return self.borders[np.searchsorted(self.borders, stop)]

    def schedules_of(self, index: int) -> list[Schedule]:
        return [self.schedules[index]]


def rows_of(plans: list[Plan], borders: list[int]) -> tuple[LoopRows, list[int]]:
    """Returns the loop's rows for members with plans of their own, and the number of rows before each border, a server
    step before which the members wait for each other."""
    empty = [len(plan.segments.active) for plan in plans]  # padding: a segment without work
    table: list[list[tuple[int, int, int]]] = []
    before = [0]
    for start, stop in itertools.pairwise(borders):
        columns = [_member_rows(plan.steps.segments_before, start, stop, empty[m]) for m, plan in enumerate(plans)]
        for cells in itertools.zip_longest(*columns):
            table.append([cell or (empty[m], stop, 0) for m, cell in enumerate(cells)])
        before.append(len(table))
    segment, step, steps = np.transpose(np.asarray(table, np.int32).reshape(len(table), len(plans), 3), (2, 1, 0))
    local_steps = [
        np.append(plan.segments.active.max(axis=1), 0)[segment[m]].astype(np.int32) for m, plan in enumerate(plans)
    ]
    return LoopRows(segment, None, step, steps, steps.max(axis=0), np.max(local_steps, axis=0)), before


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
