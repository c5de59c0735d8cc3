"""Places of versions and updates on the device, for a run whose server replies."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from jaxafl.clock import Delivery, Schedule
from jaxafl.clock.fleet import LocalRun, ServerStep
from jaxafl.clock.live import Live
from jaxafl.clock.schedule import COMPLETED, joined
from jaxafl.engine.plan import Segments, Steps
from jaxafl.engine.problem import Problem, Shapes
from jaxafl.engine.sizes import power_of_two


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
        queue: server steps that are planned and not made yet.
        going: False after the parameters have stopped being finite.
        taken: client updates consumed so far.
    """

    def __init__(self, problem: Problem, lanes: int, ahead: bool, hear: Callable[[], None]) -> None:
        """
        Args:
            problem: the run.
            lanes: L.
            ahead: True to fill idle lanes with runs in flight.
            hear: makes the server steps of the queue, and passes their replies to `answered`.
        """
        client, counts = problem.client, problem.data.counts
        self.live = Live(problem.clock, problem.data.num_clients, client.local_steps(counts), problem.seed)
        self.unit = np.ones_like(counts) if client.epochs is None else np.asarray(client.steps_per_epoch(counts))
        self.live.fleet.hear = hear
        self.lanes, self.ahead, self.remembers = lanes, ahead, client.remembers
        self.pause = problem.clock.pause
        self.by_client = Delivery.BY_CLIENT in problem.clock.delivers
        self.ring, self.store = Pool(), Pool()
        self.slots = {0: self.ring.take()}  # by version
        self.rows: dict[int, int] = {}  # by run_id, of trained updates
        self.queue: list[PlacedStep] = []
        self.steps: list[ServerStep] = []  # that are not part of `known`
        self.known = self.live.collect([])
        self.going, self.taken = True, 0

    def next(self) -> None:
        """Advances the clock by one server step, and assigns places."""
        step, fleet = self.live.next(), self.live.fleet
        if not self.going:  # the clock has asked for replies, and the run has failed
            return
        self.steps.append(step)
        slots, rows = self.slots, self.rows
        work = [run for run in step.runs if run.run_id not in rows]
        if self.remembers:
            work += [dropped.run for dropped in step.dropped if dropped.reason in COMPLETED]
            work.sort()
        elif self.ahead and work:
            others = sorted(run for run in fleet.known.values() if run.run_id not in {*rows, *fleet.open_ended})
            work += others[: -len(work) % self.lanes]
        rows |= {run.run_id: self.store.take() for run in work}

        def placed(run: LocalRun) -> Placed:
            return Placed(run, slots.get(run.version, 0), slots[run.reference], rows[run.run_id])

        segments, arrivals = self._segments([*map(placed, work)]), [*map(placed, step.runs)]
        for run in (*step.runs, *(dropped.run for dropped in step.dropped)):
            if run.run_id in rows and run.run_id not in fleet.known:
                self.store.append(rows.pop(run.run_id))
        held = {*fleet.held()}
        for version in [version for version in slots if version not in held]:
            self.ring.append(slots.pop(version))
        slots[step.version + 1] = self.ring.take()
        self.taken += len(step.runs)
        self.queue.append(PlacedStep(step, segments, arrivals, slots[step.version + 1]))

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

    def answered(self, replies: np.ndarray, failed: bool) -> None:
        """Takes the replies [n, A] to the first server steps of the queue, in units of `Client(steps=...)` or `epochs`.

        A run that has failed ends: the clock gets any number, for the server step that it is in.
        """
        fleet = self.live.fleet
        self.going = not failed
        for reply, (step, *_) in zip(replies, self.queue, strict=False):
            clients = np.array([run.client for run in step.runs], int)
            found = reply[clients] if self.by_client else reply[: len(clients)]
            found = np.ones_like(clients) if failed else found * self.unit[clients]
            fleet.reply(dict(zip(clients.tolist(), found.tolist(), strict=True)), step.version)
        del self.queue[: len(replies)]

    def schedule(self) -> Schedule:
        """Returns the schedule of the server steps so far."""
        if self.steps:
            new = self.live.collect(self.steps)
            self.known = joined([self.known, new]) if self.known.server_steps else new
            self.steps = []
        return self.known

    def room(self, shapes: Shapes, count: int, scratch: int) -> Shapes:
        """Returns the shapes with room for `count` server steps; `scratch`: slots of the ring that nobody takes."""
        arrivals = [self.live.num_clients if self.by_client else len(one.arrivals) for one in self.queue[:count]]
        return shapes._replace(
            ring=grown(shapes.ring, self.ring.used + scratch),
            store=grown(shapes.store, self.store.used),
            arrivals=grown(shapes.arrivals, max(arrivals, default=0)),
        )

    def write(self, at: int, first: int, segments: Segments, steps: Steps) -> None:
        """Writes server step `at` of the queue into the tables of its member, from segment `first` on."""
        planned, timing = self.queue[at], segments.load_timing
        step, pause = planned.step, self.pause
        for number, segment in enumerate(planned.segments, first):
            for lane, (run, slot, reference, row) in enumerate(segment):
                where = number, lane
                segments.active[where] = run.local_steps
                if segments.loads is not None:
                    segments.loads[where] = segments.saves[where] = 1
                segments.load_slot[where], segments.save_slot[where], segments.save_row[where] = slot, reference, row
                segments.load_client[where], segments.load_run[where] = run.client, run.run
                timing.staleness[where] = step.version - run.reference
                timing.duration[where] = run.arrived - run.started
                timing.version[where], timing.server_step[where] = run.version, step.version
                timing.started[where] = run.started + pause * run.version
        steps.time[at], steps.write_slot[at] = step.time + pause * (step.version + 1), planned.write_slot
        for place, (run, _, base, row) in enumerate(planned.arrivals):
            where = at, run.client if self.by_client else place
            if steps.mask is not None:
                steps.mask[where] = 1
            if steps.base_slot is not None:
                steps.base_slot[where] = base
            steps.update_row[where], steps.client[where], steps.local_steps[where] = row, run.client, run.local_steps
            steps.staleness[where] = step.version - run.reference
            steps.multiplicity[where], steps.kind[where] = step.counts[place], step.kinds[place]


def grown(size: int, needed: int) -> int:
    """Returns the size, or a power of two that is at least `needed` if it is too small."""
    return size if size >= needed else power_of_two(needed)
