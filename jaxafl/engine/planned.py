"""Runs with a schedule that is known ahead and a plan that all of them share.

The schedule is computed and planned in windows. A thread plans the next window while one is trained, so the first
server step does not wait for the whole plan. At the origin of a window the ring contains the versions that later server
steps read, and no untaken update is trained. So a run needs the memory of one window.

The borders of windows depend on the schedule alone, never on the length of a run or on a checkpoint, so a resumed run
has the bits of one that was not interrupted. Only runs that must be planned as a whole have one window.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxafl.client import turns_of
from jaxafl.clock import Delivery, Schedule
from jaxafl.clock.live import Live
from jaxafl.clock.schedule import cut, joined
from jaxafl.device import on_device
from jaxafl.device.buffers import num_bytes, shared_size
from jaxafl.device.compilation import results_of
from jaxafl.device.hardware import available_bytes, on_cpu
from jaxafl.engine.execution import Execution
from jaxafl.engine.plan import ORIGIN, Origin, Plan, Tables, columns_read
from jaxafl.engine.planner import make_plan
from jaxafl.engine.problem import AT_ONCE, Problem, Shapes, Speed
from jaxafl.engine.state import Records, example_batch
from jaxafl.models.model import Batch
from jaxafl.options import UserError, check_whole

MOST_LANES = 4096
UNBOUNDED = 2**24
"""Server steps of a run that a limit of `until` is to end; no memory is reserved for them."""
_GAIN = 1.15  # local steps per second with twice the lanes on an accelerator; 1.04 to 1.3 times as many on an H200
BLOCK = 10  # rows per check: amortises the host sync of the loop predicate; windows begin at multiples
_FIRST, _GROWTH, _LARGEST = 2**10, 4, 2**17  # arrivals of the first window, factor of the next, and the most


class Window(NamedTuple):
    """Server steps that are planned together.

    Attributes:
        schedule, plan: of these steps.
        stop: the server step after the last of them.
    """

    schedule: Schedule
    plan: Plan
    stop: int


class Planned(Execution):
    """One run, or several that differ in numbers of client and server only, with one schedule and one plan.

    Attributes:
        window: the current window.
        coming: the next one, which is being planned, if there is one.
        parts: the schedule of each window that has been planned, or the whole one if it is known.
        border: end of the last window of them.
        size: arrivals of the next window.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        source: Schedule | Live,
        server_steps: int,
        every: int,
        speed: Speed,
        origin: Origin | None = None,
    ) -> None:
        """
        Args:
            problems: one per run.
            source: their schedule, or the clock that computes it.
            server_steps: T.
            every: server steps between evaluations.
            speed: execution options.
            origin: the beginning of the first plan, see `make_plan`.
        """
        first, start = problems[0], origin.step if origin else 0
        # a later window would train a run again
        again = turns_of(first.client) and Delivery.REPEATED in first.clock.delivers
        if again and start:
            raise UserError(
                f"run: on {first.clock.name}, a simulation whose clients keep something from one local run to the next "
                "cannot be extended; expected the server steps of the folder. Name another folder"
            )
        # a schedule that is charged anew must be there as a whole, too
        whole = bool(again) or first.client.charge == "executed"
        self.source, self.server_steps, self.whole = source, server_steps, whole
        self.parts = [source] if isinstance(source, Schedule) else []
        self.border, self.size, self.problems, self.planned_lanes = 0, _FIRST, problems, speed.lanes
        self.rows_before = range(server_steps + 1)  # a row makes one server step
        window = self._planned(start, origin)
        lanes = self.planned_lanes = window.plan.lanes
        chunk = lanes if first.mesh is not None else chunk_of(lanes, speed.chunk, first, len(problems))
        self.fixed = dict(chunk=chunk, steps_per_call=every, rows_per_check=block_of(every, server_steps, start))
        shapes = self._shapes(window)
        super().__init__(problems, shapes, speed.deterministic, shared=True)
        self.compile(on_device(tables_of(window.plan, shapes)), shapes)
        self.thread = ThreadPoolExecutor(1, "window")
        self._enter(window)

    def reach(self, start: int, stop: int) -> int:
        if self.window.stop <= start < stop:
            self._enter(self.coming.result())
            self.build(self._shapes(self.window))
        return min(stop, self.window.stop)

    def made(self, index: int) -> list[Schedule]:
        return self.parts

    def finish(self, index: int, records: Records, length: int) -> tuple[Schedule, dict[str, np.ndarray]]:
        self.parts = [joined(self.parts)]  # members share one copy
        return super().finish(index, records, length)

    def build(self, shapes: Shapes) -> None:
        shapes = self.shapes.joined(shapes)  # a window may need larger buffers, or columns of another form
        self.enlarge(shapes)
        self.compile(on_device(tables_of(self.window.plan, shapes)), shapes)

    def _enter(self, window: Window) -> None:
        """Makes a window the current one, and begins to plan the next in the thread."""
        self.window = window
        if window.stop < self.server_steps:
            follows = Origin(window.stop, window.plan.kept)
            self.coming: Future[Window] = self.thread.submit(self._planned, window.stop, follows)

    def _planned(self, start: int, origin: Origin | None) -> Window:
        """Returns the window that begins at a server step.

        It ends at the next border, the first multiple of `BLOCK` with enough arrivals.
        """
        source, pieces = self.source, list[Schedule]()
        width = None if isinstance(source, Schedule) else source.clock.arrivals(source.num_clients)
        while self.border < self.server_steps and self.border <= start:
            arrivals = 0
            while self.border < self.server_steps and arrivals < self.size:
                count = -(-self.size // (width * BLOCK)) * BLOCK if width else BLOCK
                count = min(self.server_steps if self.whole else count, self.server_steps - self.border)
                if isinstance(source, Schedule):
                    taken = source.taken[self.border : self.border + count]
                else:
                    pieces.append(source.advance(count))
                    taken = pieces[-1].taken
                self.border += count
                arrivals += int(np.maximum(taken, 1).sum())
            self.size = min(_GROWTH * self.size, _LARGEST)
        if not isinstance(source, Schedule):
            self.parts.append(joined(pieces))
        schedule = cut(self.parts[-1], start, self.border)
        # the only window of a simulation keeps nothing for a next one
        origin = None if origin is None and self.border == self.server_steps else origin or ORIGIN
        plan = plan_of(schedule, self.problems[0], self.planned_lanes, origin)
        return Window(schedule, plan, self.border)

    def _shapes(self, window: Window) -> Shapes:
        """Returns the shapes of a program for a window, with room for the longer windows that follow."""
        plan, schedule = window.plan, window.schedule
        steps = max(schedule.server_steps, 1)
        most = -(-_LARGEST * steps // max(int(np.maximum(schedule.taken, 1).sum()), 1)) + BLOCK
        rows = shared_size(min(self.server_steps, max(most, steps)) if window.stop < self.server_steps else steps)
        # multiples of 4, so that other seeds, which need a few slots more or less, share the program
        used = np.array([plan.slots, plan.rows])
        ring, store = (-(-(used + used // 8) // 4) * 4).tolist()
        return shapes_of_plan(plan, self.problems[0], **self.fixed)._replace(
            ring=max(plan.slots, min(ring, schedule.in_flight + 1)),
            store=plan.rows if plan.in_order else store,
            rows=rows,
            segments=power_of_two(-(-len(plan.segments.active) * rows // steps)),
        )


def shapes_of_plan(plan: Plan, problem: Problem, chunk: int, **calls: Any) -> Shapes:
    """Returns the shapes of a program for a plan; `chunk`: lanes per `vmap`."""
    width = plan.steps.mask.shape[1]
    by_client = Delivery.BY_CLIENT in problem.clock.delivers  # place i is client i
    arrivals = problem.clock.arrivals(problem.data.num_clients) or (width if by_client else power_of_two(width))
    trips: dict[str, Any] = {}
    if not on_cpu():  # see `Shapes`
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
        slots=not plan.in_order or arrivals > width,
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

    segments, steps = columns_read(plan.segments, plan.steps, shapes)
    if not shapes.per_lane:
        segments = segments._replace(active=segments.active.max(axis=1, initial=0))
    of_step = functools.partial(padded, shapes.rows, shapes.arrivals)
    segments = jax.tree.map(functools.partial(padded, shapes.segments, shapes.lanes), segments)
    steps, rows = jax.tree.map(of_step, (steps, plan.rows_of_loop))
    return Tables(segments, steps, rows, np.int32(plan.origin.step))


def constant(counts: Any) -> int | None:
    """Returns the trip count of a loop, to be static, if it is always the same and not 0."""
    return int(counts.max()) or None if counts.size and counts.min() == counts.max() else None


def block_of(*ends: int) -> int:
    """Returns the rows between two evaluations of the loop predicate; all calls end at multiples. 1 on a CPU."""
    return 1 if on_cpu() else math.gcd(*ends, BLOCK)


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
    size: Any = problem.hyperparameters.client.micro_batch  # set by `Client.executed`
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
    return next(lanes // parts for parts in range(1, lanes + 1) if lanes % parts == 0 and lanes // parts <= most)


def power_of_two(count: int) -> int:
    """Returns the smallest power of two that is at least `count`."""
    return 1 << max(count - 1, 0).bit_length()
