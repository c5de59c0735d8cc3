"""Runs whose server replies with the number of local steps of a client's next run.

The clock goes on until it needs a reply that is not there, and a call of the program makes the server steps up to that
one. A client that is idle, or whose run cannot end yet, needs none. Several members, each with a clock of its own, make
equally many server steps per call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import jax
import numpy as np

from jaxafl.clock import Schedule
from jaxafl.clock.fleet import ServerStep
from jaxafl.device import on_device, on_host
from jaxafl.engine.devices import placed
from jaxafl.engine.execution import Execution
from jaxafl.engine.places import Places, grown, tables_for
from jaxafl.engine.plan import LoopRows, Tables
from jaxafl.engine.problem import Problem, Shapes, Speed
from jaxafl.engine.sizes import chunk_of, power_of_two
from jaxafl.engine.state import Records

Reached = Callable[[ServerStep, int], tuple[int, str]]
"""(server step, arrivals before it) -> 1 if the step is within the limits, else 0; and the limit that it reaches."""
_WINDOW = 16  # most server steps of a call
_AHEAD = 32  # most lanes that train runs in flight ahead of their arrival, on an accelerator


class Replying(Execution):
    """Runs whose server replies, in one program.

    Attributes:
        places: of each run.
        empty: tables of zeros for the server steps of a call, on the host.
    """

    def __init__(self, problems: Sequence[Problem], speed: Speed, limits: Reached | None = None) -> None:
        """
        Args:
            problems: one per run, with other numbers and seeds only.
            speed: execution options.
            limits: of a single run; `None` for none.
        """
        first, clients, self.limits = problems[0], problems[0].data.num_clients, limits
        fixed, flying = first.clock.arrivals(clients), first.clock.in_flight(clients)
        arrivals, devices = fixed or 1, 1 if first.mesh is None else first.mesh.size
        # an update that is trained ahead does not know yet when it arrives, nor what its client remembers then
        ahead = jax.default_backend() != "cpu" and not first.client.remembers and first.client.rate_schedule is None
        lanes = speed.lanes or (max(arrivals, min(flying, _AHEAD)) if ahead else arrivals)
        lanes = -(-lanes // devices) * devices
        chunk = chunk_of(lanes, speed.chunk, first, len(problems))
        self.scratch = int(len(problems) > 1)  # a slot of the ring for the writes of members that have ended
        shapes = Shapes(
            lanes=lanes,
            chunk=lanes if devices > 1 or self.scratch else chunk,
            ring=power_of_two(flying + 2),
            store=power_of_two(arrivals + (flying if ahead else 0)),
            arrivals=arrivals,
            mask=fixed is None,
            slots=True,
            base=first.reads_base,
            per_lane=True,
            segments=_WINDOW,
            steps_per_call=_WINDOW,
            steady=lanes == 1 and not self.scratch,
            steps_per_row=1,
        )
        super().__init__(problems, shapes, speed.deterministic, shared=False)
        self.rows_before = range(2**31)  # a row makes one server step, whose number is an int32
        self.places = [Places(problem, lanes, ahead, self._hear) for problem in problems]
        self.build(shapes)

    def advance(self, start: int, stop: int) -> Records:
        self.pieces: list[Records] = []
        self._plan(start, stop, self._make)
        return self.joined(self.pieces or [super().advance(start, start)])

    def resume(self, steps: int, records: Sequence[Records]) -> None:
        known = self.joined(records).replies
        failed = np.array([steps if failure is None else failure[0] for failure in self.failures()])
        self._plan(0, steps, lambda begin, end: (known[:, begin:end], failed < end))

    def made(self, index: int) -> list[Schedule]:
        return self.places[index].made()

    def build(self, shapes: Shapes) -> None:
        self.enlarge(shapes)
        count = len(self.problems)
        shared, own = np.zeros(_WINDOW, np.int32), np.zeros((count, _WINDOW), np.int32)
        rows = LoopRows(segment=own, segments=shared, step=own)
        if count > 1:  # those that have ended take no step
            rows = rows._replace(steps=own, local_steps=shared)
        self.empty = Tables(*tables_for(shapes, count), rows, np.int32(0))
        self.compile(on_device(self.empty), shapes)

    def _plan(self, start: int, stop: int, make: Callable[[int, int], tuple[np.ndarray, np.ndarray]]) -> None:
        """Plans server steps, which `make(begin, end)` makes: it returns replies [P, steps, A], and who has failed."""
        self.begin, self.make = start, make
        for number in range(start, stop):
            if number - self.begin == _WINDOW:
                self._hear()
            for places in self.places:
                if places.going:
                    places.next()
            places = self.places[0]
            if self.limits is not None and places.going:
                step = places.queue[-1].step
                within, why = self.limits(step, places.taken - len(step.runs))
                self.ended = (number + within, why) if why else None
                if not within:  # it will not be made
                    del places.queue[-1], places.steps[-1]
            if self.ended is not None or not any(places.going for places in self.places):
                break
        self._hear()

    def _hear(self) -> None:
        """Makes the server steps that all members have planned, and takes the replies."""
        if count := min((len(places.queue) for places in self.places if places.going), default=0):
            replies, failed = self.make(self.begin, self.begin + count)
            self.begin += count
            for places, reply, ends in zip(self.places, replies, failed, strict=True):
                if places.going:
                    places.answered(reply, ends)

    def _make(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Makes planned server steps by a call of the program."""
        going = [index for index, places in enumerate(self.places) if places.going]
        shapes = self.shapes
        for index in going:
            shapes = self.places[index].room(shapes, end - begin, self.scratch)
        queues = zip(*(self.places[index].queue[: end - begin] for index in going), strict=True)
        most = [max(len(one.segments) for one in each) for each in queues]
        shapes = shapes._replace(segments=grown(shapes.segments, sum(most)))
        if shapes != self.shapes:
            self.build(shapes)
        segments, steps, rows, _ = jax.tree.map(np.zeros_like, self.empty)
        first = 0
        for at, number in enumerate(most):
            rows.step[:, at], rows.segment[:, at], rows.segments[at] = begin + at, first, number
            for index in going:
                self.places[index].write(index, at, first, segments, steps)
            if len(self.places) > 1:
                rows.steps[going, at] = 1
                rows.local_steps[at] = segments.active[:, first : first + number].max(initial=0)
            first += number
        # without a mesh the call moves them, which takes less time
        self.tables = placed(self.program.mesh, Tables(segments, steps, rows, np.int32(begin)))
        records = super().advance(begin, end)
        failed, count = on_host(self.state.failure.step), end - begin
        if len(self.places) == 1 and failed[0] >= 0:
            count, self.ended = int(failed[0]) + 1 - begin, None
        self.pieces.append(jax.tree.map(operator.itemgetter(np.s_[:, :count]), records))
        return records.replies, failed >= 0
