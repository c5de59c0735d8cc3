"""Runs with a schedule that is known ahead and a plan that all of them share.

The schedule is computed and planned in windows. A thread plans the next window while one is trained, so the first
server step does not wait for the whole plan. At the origin of a window the ring contains the versions that later server
steps read, and the store is empty. So a run needs the memory of one window.

But for the end of the run, the borders of windows depend on the schedule alone, not on T or a checkpoint, so a resumed
run has the bits of one that was not interrupted. Short runs, and those that must be planned as a whole, have one
window.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from jaxafl.client import turns_of
from jaxafl.clock import Delivery, Schedule
from jaxafl.clock.live import Live
from jaxafl.clock.schedule import cut, joined
from jaxafl.device import on_device
from jaxafl.engine.execution import Execution
from jaxafl.engine.plan import ORIGIN, Origin, Plan
from jaxafl.engine.problem import Problem, Shapes, Speed
from jaxafl.engine.sizes import BLOCK, block_of, chunk_of, plan_of, power_of_two, shapes_of_plan, tables_of
from jaxafl.engine.state import Records
from jaxafl.options import UserError

UNBOUNDED = 2**24
"""Server steps of a run that a limit of `until` is to end; no memory is reserved for them."""
_FIRST, _GROWTH, _LARGEST = 2**10, 4, 2**17  # arrivals of the first window, factor of the next, and the most


class Window(NamedTuple):
    """Server steps that are planned together.

    Attributes:
        schedule, plan: of these steps.
        stop: the server step after the last of them.
        places: most arrivals of a server step up to there, also before a resumed run.
    """

    schedule: Schedule
    plan: Plan
    stop: int
    places: int


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
        # a later window would train a run again; a schedule that is charged anew must be there as a whole, too
        again = turns_of(first.client) and Delivery.REPEATED in first.clock.delivers
        whole = bool(again) or first.client.charge == "executed"
        self.source, self.server_steps, self.whole = source, server_steps, whole
        self.parts = [source] if isinstance(source, Schedule) else []
        self.border, self.size, self.problems, self.planned_lanes = 0, _FIRST, problems, speed.lanes
        self.places = 0  # most arrivals of a server step before the border
        self.newest: Any = None  # run of every client in earlier windows, if they keep something
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

    def enter(self, start: int, stop: int) -> int:
        if self.window.stop <= start < stop:
            self._enter(self.coming.result())
            self.build(self._shapes(self.window))
        return min(stop, self.window.stop)

    def schedules_of(self, index: int) -> list[Schedule]:
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
        """Schedules and plans the window from a server step to the next border; all but the first in the thread."""
        self._schedule_beyond(start)
        # a copy, whose tables are not kept with the part
        schedule = dataclasses.replace(cut(self.parts[-1], start, self.border))
        if turns_of(self.problems[0].client):
            if self.newest is None:
                self.newest = np.full(schedule.num_clients, -1)
                self._check_turns(cut(joined(self.parts), 0, start))
            self._check_turns(schedule)
        # the only window of a simulation keeps nothing for a next one
        if origin is None and self.border < self.server_steps:
            origin = ORIGIN
        plan = plan_of(schedule, self.problems[0], self.planned_lanes, origin)
        return Window(schedule, plan, self.border, self.places)

    def _check_turns(self, schedule: Schedule) -> None:
        """Raises `UserError` for a run of an earlier window, or whose client has a later run in an earlier window."""
        untaken = schedule.unused.completed
        client = np.append(schedule.of_arrivals("client"), untaken.client)
        run = np.append(schedule.of_arrivals("run"), untaken.run)
        if (late := run <= self.newest[client]).any():
            raise UserError(
                f"run: {schedule.protocol} takes or discards run {run[late][0]} of client {client[late][0]} again, or "
                "after a later one; clients that keep something need each once, in order, also if a run is extended"
            )
        np.maximum.at(self.newest, client, run)

    def _schedule_beyond(self, start: int) -> None:
        """Moves the border of the windows beyond a server step, and computes the schedule up to there.

        A border is the first multiple of `BLOCK` with enough arrivals since the one before.
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
                self.places = max(self.places, int(taken.max(initial=0)))
            self.size = min(_GROWTH * self.size, _LARGEST)
        if not isinstance(source, Schedule):
            self.parts.append(joined(pieces))

    def _shapes(self, window: Window) -> Shapes:
        """Returns the shapes of a program for a window, with room for the longer windows that follow."""
        plan, schedule = window.plan, window.schedule
        steps = max(schedule.server_steps, 1)
        most = -(-_LARGEST * steps // max(int(np.maximum(schedule.taken, 1).sum()), 1)) + BLOCK
        rows = min(self.server_steps, max(most, steps)) if window.stop < self.server_steps else steps
        rows = -(-rows // 512) * 512  # so that runs of similar length share the program
        # multiples of 4, so that other seeds, which need a few slots more or less, share the program
        used = np.array([plan.slots, plan.rows])
        ring, store = (-(-(used + used // 8) // 4) * 4).tolist()
        return shapes_of_plan(plan, self.problems[0], most=window.places, **self.fixed)._replace(
            ring=max(plan.slots, min(ring, schedule.in_flight + 1)),
            store=plan.rows if plan.in_order else store,
            rows=rows,
            segments=power_of_two(-(-len(plan.segments.active) * rows // steps)),
        )
