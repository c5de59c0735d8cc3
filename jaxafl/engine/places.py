"""Places of versions and updates on the device, for a run that advances one server step at a time."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxafl.clock import Delivery, Schedule
from jaxafl.clock.fleet import LocalRun, ServerStep
from jaxafl.clock.live import Live
from jaxafl.clock.schedule import joined
from jaxafl.engine.plan import Segments, Steps, columns_read
from jaxafl.engine.planned import power_of_two
from jaxafl.engine.problem import Problem, Shapes

_COMPLETED = ("refused", "lost", "late")  # runs that clients complete and no server step takes


class Pool(list[int]):
    """Numbers that were given back (by `append`) and are taken again, before a new one is."""

    used = 0  # numbers that were ever taken at once

    def take(self) -> int:
        """Takes a number."""
        if self:
            return self.pop()
        self.used += 1
        return self.used - 1


class Placed(NamedTuple):
    """A run that a segment trains, or that arrives, with its places."""

    run: LocalRun
    slot: int  # of the version that it trains from
    reference: int  # slot of x_s, which its update is relative to
    row: int  # of the store


class PlacedStep(NamedTuple):
    """One server step, and the training before it."""

    step: ServerStep
    segments: list[list[Placed]]
    arrivals: list[Placed]
    write_slot: int


class Places:
    """A run, its clock, and the places of its versions and updates.

    Attributes:
        live: the clock.
        going: False after the parameters have stopped being finite.
        taken: client updates consumed so far.
    """

    def __init__(self, problem: Problem, lanes: int, ahead: bool) -> None:
        """
        Args:
            problem: the run.
            lanes: L.
            ahead: True to fill idle lanes with runs in flight.
        """
        client, counts = problem.client, problem.data.counts
        self.live = Live(problem.clock, problem.data.num_clients, client.local_steps(counts), problem.seed)
        self.unit = np.ones_like(counts) if client.epochs is None else np.asarray(client.steps_per_epoch(counts))
        self.lanes, self.ahead, self.remembers = lanes, ahead, client.remembers
        self.pause = problem.clock.pause
        self.by_client = Delivery.BY_CLIENT in problem.clock.delivers
        self.ring, self.store = Pool(), Pool()
        self.slots = {0: self.ring.take()}  # by version
        self.rows: dict[int, int] = {}  # by run_id, of trained updates
        self.answers: Mapping[int, int] | None = None
        self.steps: list[ServerStep] = []  # that are not part of `known`
        self.known: Schedule | None = None
        self.going, self.taken = True, 0

    def next(self) -> PlacedStep:
        """Advances the clock by one server step, and assigns places."""
        step = self.live.next(self.answers)
        self.steps.append(step)
        slots, rows = self.slots, self.rows
        work = [run for run in step.runs if run.run_id not in rows]
        if self.remembers:
            work += [dropped.run for dropped in step.dropped if dropped.reason in _COMPLETED]
            work.sort()
        elif self.ahead and work:
            others = (run for run in sorted(self.live.fleet.flying()) if run.run_id not in rows)
            work += [run for run, _ in zip(others, range(-len(work) % self.lanes), strict=False)]
        rows |= {run.run_id: self.store.take() for run in work}

        def placed(run: LocalRun) -> Placed:
            return Placed(run, slots.get(run.version, 0), slots[run.reference], rows[run.run_id])

        segments, arrivals = self._segments([*map(placed, work)]), [*map(placed, step.runs)]
        kept = self.live.fleet.known
        for run in (*step.runs, *(dropped.run for dropped in step.dropped)):
            if run.run_id in rows and run.run_id not in kept:
                self.store.append(rows.pop(run.run_id))
        held = {*self.live.fleet.held()}
        for version in [version for version in slots if version not in held]:
            self.ring.append(slots.pop(version))
        slots[step.version + 1] = self.ring.take()
        self.taken += len(step.runs)
        return PlacedStep(step, segments, arrivals, slots[step.version + 1])

    def _segments(self, trained: list[Placed]) -> list[list[Placed]]:
        """Divides runs into segments of at most L; runs of a client that remembers follow each other."""
        turns: list[list[Placed]] = []
        seen: dict[int, int] = {}
        for one in trained:
            turn = seen.get(one.run.client, 0) if self.remembers else 0
            seen[one.run.client] = turn + 1
            if turn == len(turns):
                turns.append([])
            turns[turn].append(one)
        return [turn[begin : begin + self.lanes] for turn in turns for begin in range(0, len(turn), self.lanes)]

    def answered(self, replies: np.ndarray) -> None:
        """Takes the server's replies [A] to the last server step, in units of `Client(steps=...)` or `epochs`."""
        runs = self.steps[-1].runs
        entries = [run.client for run in runs] if self.by_client else range(len(runs))
        self.answers = {
            run.client: int(replies[entry]) * int(self.unit[run.client])
            for run, entry in zip(runs, entries, strict=True)
        }

    def schedule(self) -> Schedule:
        """Returns the schedule of the server steps so far."""
        if self.steps or self.known is None:
            new = self.live.collect(self.steps)
            self.known = new if self.known is None else joined([self.known, new])
            self.steps = []
        return self.known

    def room(self, planned: PlacedStep, shapes: Shapes, scratch: int) -> Shapes:
        """Returns the shapes with room for a server step; `scratch`: slots of the ring that nobody takes."""
        arrivals = self.live.num_clients if self.by_client else len(planned.arrivals)
        return shapes._replace(
            ring=_grown(shapes.ring, self.ring.used + scratch),
            store=_grown(shapes.store, self.store.used),
            arrivals=_grown(shapes.arrivals, arrivals),
            segments=_grown(shapes.segments, len(planned.segments)),
        )

    def write(self, planned: PlacedStep, segments: Segments, steps: Steps) -> None:
        """Writes a server step into the tables of its member, [S, L] and [1, A]."""
        step, pause = planned.step, self.pause
        for number, segment in enumerate(planned.segments):
            for lane, (run, slot, reference, row) in enumerate(segment):
                at = number, lane
                segments.active[at] = run.local_steps
                if segments.loads is not None:
                    segments.loads[at] = segments.saves[at] = 1
                segments.load_slot[at], segments.load_client[at], segments.load_run[at] = slot, run.client, run.run
                segments.save_slot[at], segments.save_row[at] = reference, row
                segments.load_staleness[at] = step.version - run.reference
                segments.load_duration[at] = run.arrived - run.started
                segments.load_version[at], segments.load_server_step[at] = run.version, step.version
                segments.load_started[at] = run.started + pause * run.version
        steps.time[0], steps.write_slot[0] = step.time + pause * (step.version + 1), planned.write_slot
        for place, (run, _, base, row) in enumerate(planned.arrivals):
            at = 0, run.client if self.by_client else place
            if steps.mask is not None:
                steps.mask[at] = 1
            if steps.base_slot is not None:
                steps.base_slot[at] = base
            steps.update_slot[at], steps.client[at], steps.local_steps[at] = row, run.client, run.local_steps
            steps.staleness[at] = step.version - run.reference
            steps.multiplicity[at] = 1 if step.counts is None else step.counts[place]
            steps.kind[at] = 0 if step.kinds is None else step.kinds[place]


def tables_for(shapes: Shapes, members: int) -> tuple[Segments, Steps]:
    """Returns tables of zeros for one server step of each member."""
    sizes = {"*S": shapes.segments, "L": shapes.lanes, "*T": 1, "*T1": 1, "A": shapes.arrivals}

    def zeros(column: Any) -> np.ndarray:
        return np.zeros([members, *(sizes[part] for part in column.dim_str.split())], column.dtypes[0])

    def table(record: Any) -> Any:
        kinds = typing.get_type_hints(record)
        return record(**{name: zeros(kind) for name, kind in kinds.items() if name != "columns"})

    return columns_read(table(Segments), table(Steps), shapes)


def _grown(size: int, needed: int) -> int:
    """Returns the size, or a power of two that is at least `needed` if it is too small."""
    return size if size >= needed else power_of_two(needed)
