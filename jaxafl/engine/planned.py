"""Runs with a schedule that is known ahead and a plan that all of them share.

The schedule is computed and planned in windows. A thread plans the next window while one is trained, so the first
server step does not wait for the whole plan. At the origin of a window the ring contains the versions that later server
steps read, and no untaken update is trained. So a run needs the memory of one window.

The borders of windows depend on the schedule alone, never on the length of a run or on a checkpoint, so a resumed run
has the bits of one that was not interrupted.
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
from jaxafl.engine.state import example_batch
from jaxafl.models.model import Batch
from jaxafl.options import UserError, check_whole

MOST_LANES = 4096
UNBOUNDED = 2**24
"""Server steps of a run that a limit of `until` is to end; no memory is reserved for them."""
_GAIN = 1.15  # local steps per second with twice the lanes on an accelerator; 1.04 to 1.3 times as many on an H200
BLOCK = 10  # rows per check: amortises the host sync of the loop predicate; windows begin at multiples
_FIRST, _GROWTH, _LARGEST = 2**10, 4, 2**17  # arrivals of the first window, factor of the next, and the most


class Window(NamedTuple):
    """Server steps that are planned together, with their schedule and their plan."""

    schedule: Schedule
    plan: Plan

    @property
    def stop(self) -> int:
        """The server step after the last of them."""
        return self.schedule.start + self.schedule.server_steps


class Windows:
    """The windows of a schedule, of which the clock computes one after another."""

    def __init__(self, source: Schedule | Live, server_steps: int, whole: bool) -> None:
        """
        Args:
            source: the schedule, or the clock that computes it.
            server_steps: T.
            whole: True for one window.
        """
        self.source, self.server_steps, self.whole = source, server_steps, whole
        self.known = source if isinstance(source, Schedule) else None
        self.width = None if isinstance(source, Schedule) else source.clock.arrivals(source.num_clients)
        self.stop, self.size = 0, _FIRST

    def after(self, start: int) -> Schedule:
        """Returns the server steps from `start` up to the next border."""
        while True:
            begin, end = self.stop, self._next()
            if end > start or begin == end:
                return self.between(start, end)

    def between(self, start: int, stop: int) -> Schedule:
        """Returns known server steps."""
        assert self.known is not None, "windows have been computed"
        return cut(self.known, start, stop)

    def _next(self) -> int:
        """Moves to the next border, the first multiple of `BLOCK` with enough arrivals, and returns it."""
        begin, arrivals, pieces = self.stop, 0, [] if self.known is None else [self.known]
        while self.stop < self.server_steps and (arrivals < self.size or self.whole):
            count = self.server_steps - self.stop if self.whole else BLOCK
            if self.width and not self.whole:
                count = -(-self.size // (self.width * BLOCK)) * BLOCK
            count = min(count, self.server_steps - self.stop)
            if isinstance(self.source, Schedule):
                taken = self.source.taken[self.stop : self.stop + count]
            else:
                pieces.append(self.source.advance(count))
                taken = pieces[-1].taken
            self.stop += count
            arrivals += int(np.maximum(taken, 1).sum())
        if self.stop > begin:
            self.known = joined(pieces)
            self.size = min(_GROWTH * self.size, _LARGEST)
        return self.stop


class Planned(Execution):
    """One run, or several that differ in numbers of client and server only, with one schedule and one plan.

    Attributes:
        window: the current window.
        made: the schedule up to its end.
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
                f"run: a run on {first.clock.name} whose clients keep something from run to run cannot be extended; "
                "expected the server steps of the folder. Name another folder"
            )
        # a schedule that is charged anew must be there as a whole, too
        whole = bool(again) or first.client.charge == "executed"
        self.windows = Windows(source, server_steps, whole)
        self.problems, self.planned_lanes = problems, speed.lanes
        window = self._from(start, origin)
        lanes = self.planned_lanes = window.plan.lanes
        chunk = lanes if first.mesh is not None else chunk_of(lanes, speed.chunk, first, len(problems))
        self.fixed = dict(chunk=chunk, steps_per_call=every, rows_per_check=block_of(every, server_steps, start))
        super().__init__(problems, self._shapes(window, first), speed.deterministic, shared=True)
        self._take_up(window)
        self.thread = ThreadPoolExecutor(1, "window") if window.stop < server_steps else None
        self._prepare()

    def reach(self, start: int, stop: int) -> int:
        if self.window.stop <= start < stop:
            self._take_up(self.coming.result())
            self._prepare()
        return min(stop, self.window.stop)

    def schedule(self, index: int) -> Schedule:
        return self.made

    def build(self, shapes: Shapes) -> None:
        self._take_up(self.window, shapes)

    def _prepare(self) -> None:
        """Begins to plan the next window, in the thread."""
        if self.thread is not None and self.window.stop < self.windows.server_steps:
            follows = Origin(self.window.stop, self.window.plan.kept)
            self.coming: Future[Window] = self.thread.submit(self._from, self.window.stop, follows)

    def _from(self, start: int, origin: Origin | None) -> Window:
        """Returns the window that begins at a server step."""
        schedule = self.windows.after(start)
        # a run that ends with this window, and did not begin before it, keeps no more than the newest version
        whole = origin is None and self.windows.stop == self.windows.server_steps
        origin = None if whole else origin or ORIGIN
        return Window(schedule, plan_of(schedule, self.problems[0], self.planned_lanes, origin))

    def _shapes(self, window: Window, problem: Problem) -> Shapes:
        """Returns the shapes of a program for a window, with room for the longer windows that follow."""
        plan, schedule = window.plan, window.schedule
        steps = max(schedule.server_steps, 1)
        most = -(-_LARGEST * steps // max(int(np.maximum(schedule.taken, 1).sum()), 1)) + BLOCK
        rows = shared_size(
            min(self.windows.server_steps, max(most, steps)) if window.stop < self.windows.server_steps else steps
        )
        segments = power_of_two(-(-len(plan.segments.active) * rows // steps))
        shapes = shapes_of_plan(plan, problem, **self.fixed)
        ring = max(plan.slots, min(_rounded(plan.slots), schedule.in_flight + 1))
        store = plan.rows if plan.in_order else _rounded(plan.rows)
        return shapes._replace(ring=ring, store=store, rows=rows, segments=segments)

    def _take_up(self, window: Window, shapes: Shapes | None = None) -> None:
        """Continues with a window, which may need larger buffers, or columns of another form."""
        shapes = self.shapes.joined(shapes or self._shapes(window, self.problems[0]))
        self.enlarge(shapes)
        self.window, self.made = window, self.windows.between(0, window.stop)
        self.compile(on_device(tables_of(window.plan, shapes)), shapes)


def shapes_of_plan(plan: Plan, problem: Problem, chunk: int, **calls: Any) -> Shapes:
    """Returns the shapes of a program for a plan; `chunk`: lanes per `vmap`."""
    width = plan.steps.mask.shape[1]
    by_client = Delivery.BY_CLIENT in problem.clock.delivers  # place i is client i
    arrivals = problem.clock.arrivals(problem.data.num_clients) or (width if by_client else power_of_two(width))
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
        local_steps=constant(plan.segments.active.max(axis=1, initial=0)) if plan.uniform else None,
        segments_per_row=constant(plan.rows_of_loop.segments),
        **calls,
    )


def tables_of(plan: Plan, shapes: Shapes) -> Tables:
    """Returns a plan as a program of these shapes reads it, on the host."""

    def longer(leaf: np.ndarray, rows: int = shapes.rows) -> np.ndarray:
        return np.pad(leaf, [(0, rows - len(leaf))] + [(0, 0)] * (leaf.ndim - 1))

    def wider(leaf: np.ndarray) -> np.ndarray:
        return np.pad(leaf, [(0, 0), (0, shapes.arrivals - leaf.shape[1])]) if leaf.ndim == 2 else leaf

    segments, steps = columns_read(plan.segments, plan.steps, shapes)
    if not shapes.per_lane:
        segments = segments._replace(active=segments.active.max(axis=1, initial=0))
    segments = jax.tree.map(lambda leaf: longer(leaf, shapes.segments), segments)
    steps = jax.tree.map(lambda leaf: longer(wider(leaf)), steps)
    return Tables(segments, steps, jax.tree.map(longer, plan.rows_of_loop), np.int32(plan.origin.step))


def constant(counts: Any) -> int | None:
    """Returns the trip count of a loop if it is always the same and not 0, to be static; `None` on a CPU, see
    `Shapes`."""
    known = not on_cpu() and counts.size and counts.min() == counts.max()
    return (int(counts.max()) or None) if known else None


def block_of(*ends: int) -> int:
    """Returns the rows between two evaluations of the loop predicate; all calls end at multiples. 1 on a CPU."""
    return 1 if on_cpu() else max(n for n in range(1, BLOCK + 1) if math.gcd(*ends, BLOCK) % n == 0)


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
    most = 1 if jax.default_backend() == "cpu" else lanes_in_memory(problem, members)
    return next(lanes // parts for parts in range(1, lanes + 1) if lanes % parts == 0 and lanes // parts <= most)


def _rounded(count: int) -> int:
    """Rounds up to a multiple of 4, so that other seeds, which need a few slots more or less, share the program."""
    return -(-(count + count // 8) // 4) * 4


def power_of_two(count: int) -> int:
    """Returns the smallest power of two that is at least `count`."""
    return 1 << max(count - 1, 0).bit_length()
