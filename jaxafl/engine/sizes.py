"""The plan of a schedule, and the static sizes of a program that executes it: lanes, chunks, buffers and tables."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import numpy as np

from jaxafl.client import turns_of
from jaxafl.clock import Delivery, Schedule
from jaxafl.device.buffers import num_bytes
from jaxafl.device.compilation import results_of
from jaxafl.device.hardware import available_bytes, built_for_cpu
from jaxafl.engine.plan import Origin, Plan, Tables
from jaxafl.engine.planner import make_plan
from jaxafl.engine.problem import AT_ONCE, Problem, Shapes
from jaxafl.engine.state import example_batch
from jaxafl.models.model import Batch
from jaxafl.options import UserError, check_whole

MOST_LANES = 4096
_GAIN = 1.15  # factor of the local steps per second when lanes double on an accelerator; 1.04 to 1.3 on an H200
BLOCK = 10  # rows per check: amortises the host sync of the loop predicate; windows begin at multiples


def plan_of(schedule: Schedule, problem: Problem, lanes: int | None = None, origin: Origin | None = None) -> Plan:
    """Returns the plan of a schedule.

    Args:
        schedule: arrivals of every server step.
        problem: one of the runs.
        lanes: L, rounded up to a multiple of the devices; `None` chooses, on an accelerator the power of two whose
            local steps, masked ones included, take the least time if twice the lanes compute `_GAIN` times as many per
            second.
        origin: the beginning of the plan, see `make_plan`.
    """
    devices = 1 if problem.mesh is None else problem.mesh.size
    how: dict[str, Any] = dict(keep_base=problem.reads_base, origin=origin, in_turn=turns_of(problem.client))
    make = functools.partial(make_plan, schedule, **how)
    if lanes is None and jax.default_backend() == "cpu":
        lanes = devices * min(4 if devices > 1 else 1, max(1, schedule.in_flight // devices))
    if lanes is not None:
        return make(lanes=-(-check_whole("run", "lanes", lanes) // devices) * devices)
    most = min(max(schedule.in_flight, 1), MOST_LANES)
    lanes = devices * power_of_two(-(-most // devices))

    def cost(plan: Plan) -> float:
        return plan.executed(plan.lanes) * _GAIN ** -math.log2(plan.lanes)

    best = plan = make(lanes=lanes)
    while plan.lanes > devices and plan.executed(plan.lanes) > _GAIN * plan.needed:  # else fewer lanes take longer
        plan = make(lanes=plan.lanes // 2)
        best = min(best, plan, key=cost)
    return best


def lanes_in_memory(problem: Problem, members: int = 1) -> int:
    """Returns the number of lanes per member that fit into half of the device memory (at least 1).

    The memory of a lane during a local step is estimated by a trace of the model's forward pass.
    """
    memory, model = available_bytes(), problem.model
    if memory is None:
        return MOST_LANES
    size: Any = problem.hyperparameters.client.micro_batch  # set by `Client.prepared`
    one = jax.eval_shape(lambda: example_batch(problem.data.form))
    batch: Any = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype), one)
    key = jax.eval_shape(lambda: jax.random.key(0))
    params, state = jax.eval_shape(model.init, key, batch)

    def loss(params: Any, state: Any, batch: Batch, key: Any, frozen: Any) -> Any:
        return model.bound(frozen)(params, state, batch, key, True)[0].loss

    results = sum(size for _, size in results_of(loss, params, state, batch, key, model.held(batch)))
    lane = 3.0 * num_bytes(params) + AT_ONCE * results
    return max(1, int(memory / 2 / lane / members))


def chunk_of(lanes: int, chunk: int | None, problem: Problem, members: int) -> int:
    """Returns the checked number of lanes that advance together.

    Args:
        lanes: lanes of one device.
        chunk: the number as given; `None` chooses: 1 on a CPU, elsewhere as many as half of the memory holds.
        problem: one of the runs.
        members: number of runs.
    """
    if chunk is not None:
        check_whole("run", "chunk", chunk)
        if lanes % chunk:
            raise UserError(f"run: chunk must be a divisor of lanes={lanes}, got {chunk}")
        return int(chunk)
    if jax.default_backend() == "cpu":
        return 1
    most = lanes_in_memory(problem, members)
    return max(size for size in range(1, min(lanes, most) + 1) if lanes % size == 0)


def block_of(*ends: int) -> int:
    """Returns the rows between two evaluations of the loop predicate, which divide the ends of calls; 1 on a CPU."""
    return 1 if built_for_cpu() else math.gcd(*ends, BLOCK)


def shapes_of_plan(plan: Plan, problem: Problem, chunk: int, most: int = 0, **calls: Any) -> Shapes:
    """Returns the shapes of a program for a plan; `chunk`: lanes per `vmap`; `most`: arrivals of a step before."""
    width = plan.steps.mask.shape[1]
    by_client = Delivery.BY_CLIENT in problem.clock.delivers  # place i is client i
    places = width if by_client else power_of_two(max(width, most))
    arrivals = problem.clock.arrivals(problem.data.num_clients) or places
    trips: dict[str, Any] = {}
    if not built_for_cpu():  # see `Shapes`
        trips["local_steps"] = constant(plan.segments.active.max(axis=1, initial=0)) if plan.uniform else None
        trips["segments_per_row"] = constant(plan.rows_of_loop.segments)
    return Shapes(
        lanes=plan.lanes,
        chunk=chunk,
        ring=plan.slots,
        store=plan.rows,
        arrivals=arrivals,
        rows=len(plan.steps.time),
        segments=len(plan.segments.active),
        mask=not plan.steps.mask.all() or arrivals > width,
        picks_rows=not plan.in_order or arrivals > width,
        base=problem.reads_base,
        per_lane=not plan.uniform or chunk == 1 or chunk < plan.lanes,
        steady=bool(plan.segments.loads.all() and plan.segments.saves.all()),
        **trips,
        **calls,
    )


def tables_of(plan: Plan, shapes: Shapes) -> Tables:
    """Returns a plan as a program of these shapes reads it, on the host."""

    def padded(rows: int, width: int, leaf: np.ndarray) -> np.ndarray:
        table = np.zeros((rows, width)[: leaf.ndim], leaf.dtype)
        table[tuple(map(slice, leaf.shape))] = leaf
        return table

    segments, steps = plan.segments, plan.steps
    # the columns that the program does not read are None
    if shapes.steady:
        segments = segments._replace(loads=None, saves=None)
    steps = steps._replace(
        segments_before=None,
        mask=steps.mask if shapes.mask else None,
        update_row=steps.update_row if shapes.picks_rows else None,
        base_slot=steps.base_slot if shapes.base else None,
    )
    if not shapes.per_lane:
        segments = segments._replace(active=segments.active.max(axis=1, initial=0))
    of_step = functools.partial(padded, shapes.rows, shapes.arrivals)
    segments = jax.tree.map(functools.partial(padded, shapes.segments, shapes.lanes), segments)
    steps, rows = jax.tree.map(of_step, (steps, plan.rows_of_loop))
    return Tables(segments, steps, rows, np.int32(plan.origin.step))


def constant(counts: Any) -> int | None:
    """Returns the trip count of a loop, to be static, if it is always the same and not 0."""
    return int(counts.max()) or None if counts.size and counts.min() == counts.max() else None


def power_of_two(count: int) -> int:
    """Returns the smallest power of two that is at least `count`."""
    return 1 << max(count - 1, 0).bit_length()
