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
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxafl.client import Turns, turns_of
from jaxafl.clock import Delivery, Schedule
from jaxafl.clock.live import Live
from jaxafl.clock.schedule import cut, joined
from jaxafl.device import on_cpu, on_device
from jaxafl.device.buffers import shared_size
from jaxafl.engine.execution import Execution
from jaxafl.engine.plan import ORIGIN, Origin, Plan, Tables, columns_read
from jaxafl.engine.planner import make_plan
from jaxafl.engine.problem import Problem, Shapes, Speed
from jaxafl.engine.width import MOST_LANES, chunk_of
from jaxafl.options import UserError, check_whole
from jaxafl.server.contract import Server

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
        self.known = [source] if isinstance(source, Schedule) else list[Schedule]()
        self.width = None if isinstance(source, Schedule) else source.clock.arrivals(source.num_clients)
        self.stop = 0
        self.size = _FIRST

    def after(self, start: int) -> Schedule:
        """Returns the server steps from `start` up to the next border."""
        while True:
            begin, end = self.stop, self._next()
            if end > start or begin == end:
                pieces = [one for one in self.known if one.start + one.server_steps > start]
                return cut(joined(pieces or self.known[-1:]), start, end)

    def upto(self, stop: int) -> Schedule:
        """Returns the schedule of all server steps up to `stop`."""
        pieces = [one for one in self.known if one.start < stop]
        if len(pieces) > 1:  # what is known stays one piece, which the thread does not read
            self.known[: len(pieces)] = pieces = [joined(pieces)]
        return cut(pieces[0], 0, stop) if pieces else cut(self.known[0], 0, 0)

    def _next(self) -> int:
        """Moves to the next border, the first multiple of `BLOCK` with enough arrivals, and returns it."""
        begin, arrivals = self.stop, 0
        while self.stop < self.server_steps and (arrivals < self.size or self.whole):
            count = self.server_steps - self.stop if self.whole else BLOCK
            if self.width and not self.whole:
                count = -(-self.size // (self.width * BLOCK)) * BLOCK
            count = min(count, self.server_steps - self.stop)
            if isinstance(self.source, Schedule):
                taken = self.source.taken[self.stop : self.stop + count]
            else:
                self.known.append(self.source.advance(count))
                taken = self.known[-1].taken
            self.stop += count
            arrivals += int(np.maximum(taken, 1).sum())
        if self.stop > begin:
            self.size = min(_GROWTH * self.size, _LARGEST)
        return self.stop


class Planned(Execution):
    """One run, or several that differ in numbers of client and server only, with one schedule and one plan.

    Attributes:
        window: the current window.
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
        in_turn = turns_of(first.client)
        # a schedule that is charged anew must be there as a whole
        whole = first.client.charge == "executed"
        if in_turn and Delivery.REPEATED in first.clock.delivers:  # else a later window would train a run again
            whole = True
            if start:
                raise UserError(
                    f"run: a run on {first.clock.name} whose clients keep something from run to run cannot be "
                    "extended; expected the server steps of the folder. Name another folder"
                )
        self.windows = Windows(source, server_steps, whole)
        self.base, devices = reads_base(first), 1 if first.mesh is None else first.mesh.size
        self.make: Callable[..., Plan] = functools.partial(
            plan_of, server=first.server, lanes=speed.lanes, keep_base=self.base, devices=devices, in_turn=in_turn
        )
        window = self._from(start, origin)
        lanes = window.plan.lanes
        self.make = functools.partial(self.make, lanes=lanes)
        chunk = lanes if devices > 1 else chunk_of(lanes, speed.chunk, first, len(problems))
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
        return self.windows.upto(self.window.stop)

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
        return Window(schedule, self.make(schedule, origin=None if whole else origin or ORIGIN))

    def _shapes(self, window: Window, problem: Problem) -> Shapes:
        """Returns the shapes of a program for a window, with room for the longer windows that follow."""
        plan, schedule = window.plan, window.schedule
        steps = max(schedule.server_steps, 1)
        most = -(-_LARGEST * steps // max(int(np.maximum(schedule.taken, 1).sum()), 1)) + BLOCK
        rows = shared_size(
            min(self.windows.server_steps, max(most, steps)) if window.stop < self.windows.server_steps else steps
        )
        segments = power_of_two(-(-len(plan.segments.active) * rows // steps))
        shapes = shapes_of_plan(plan, problem, self.base, **self.fixed)
        ring = max(plan.slots, min(_rounded(plan.slots), schedule.in_flight + 1))
        store = plan.rows if plan.in_order else _rounded(plan.rows)
        return shapes._replace(ring=ring, store=store, rows=rows, segments=segments)

    def _take_up(self, window: Window, shapes: Shapes | None = None) -> None:
        """Continues with a window, which may need larger buffers, or columns of another form."""
        shapes = self.shapes.joined(shapes or self._shapes(window, self.problems[0]))
        self.enlarge(shapes)
        self.window = window
        self.compile(on_device(tables_of(window.plan, shapes)), shapes)


def reads_base(problem: Problem) -> bool:
    """Returns True if x_s of the arrivals is read."""
    return problem.server.needs.base or problem.recording.needs_base


def shapes_of_plan(plan: Plan, problem: Problem, base: bool, chunk: int, **calls: Any) -> Shapes:
    """Returns the shapes of a program for a plan; `chunk`: lanes per `vmap`."""
    width = plan.steps.mask.shape[1]
    by_client = Delivery.BY_CLIENT in problem.clock.delivers  # place i is client i
    arrivals = problem.clock.arrivals(problem.data.num_clients) or (width if by_client else power_of_two(width))
    lengths: Any = known_lengths(local_steps=[plan.local_steps], segments_per_row=[plan.segments_per_step])
    return Shapes(
        lanes=plan.lanes,
        chunk=chunk,
        ring=plan.slots,
        store=plan.rows,
        arrivals=arrivals,
        rows=len(plan.steps.time),
        segments=len(plan.segments.active),
        mask=not plan.full or arrivals > width,
        slots=not plan.in_order or arrivals > width,
        base=base,
        timing=problem.client.rate_schedule is not None,
        per_lane=not plan.uniform or chunk == 1 or chunk < plan.lanes,
        steady=bool(plan.segments.loads.all() and plan.segments.saves.all()),
        **calls,
        **lengths,
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


def known_lengths(**lengths: Iterable[int | None]) -> dict[str, int | None]:
    """Returns the trip counts that are constant over the run, to be static; all None on a CPU, see `Shapes`."""
    found = {name: set[int | None]() if on_cpu() else set(each) for name, each in lengths.items()}
    return {name: each.pop() if len(each) == 1 else None for name, each in found.items()}


def block_of(*ends: int) -> int:
    """Returns the rows between two evaluations of the loop predicate; all calls end at multiples. 1 on a CPU."""
    return 1 if on_cpu() else max(n for n in range(1, BLOCK + 1) if math.gcd(*ends, BLOCK) % n == 0)


def plan_of(
    schedule: Schedule,
    server: Server,
    lanes: int | None,
    keep_base: bool = False,
    origin: Origin | None = None,
    devices: int = 1,
    in_turn: Turns = Turns.ANY,
) -> Plan:
    """Returns the plan of a schedule.

    Args:
        schedule: arrivals of every server step.
        server: with its needs.
        lanes: L, rounded up to a multiple of the devices; `None` chooses, on an accelerator the power of two whose
            local steps, masked ones included, take the least time if twice the lanes compute `_GAIN` times as many per
            second.
        keep_base: x_s is read even if the server does not need it.
        origin: the beginning of the plan, see `make_plan`.
        devices: number of devices that share the lanes.
        in_turn: order of the runs of a client.
    """
    keep_base |= server.needs.base
    make = functools.partial(make_plan, schedule, keep_base=keep_base, origin=origin, in_turn=in_turn)
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


def _rounded(count: int) -> int:
    """Rounds up to a multiple of 4, so that other seeds, which need a few slots more or less, share the program."""
    return -(-(count + count // 8) // 4) * 4


def power_of_two(count: int) -> int:
    """Returns the smallest power of two that is at least `count`."""
    return 1 << max(count - 1, 0).bit_length()
