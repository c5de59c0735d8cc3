"""Places of versions and updates on the device, for a run whose server replies."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxafl.clock import Delivery, Schedule
from jaxafl.clock.fleet import LocalRun, ServerStep
from jaxafl.clock.live import Live
from jaxafl.clock.schedule import COMPLETED
from jaxafl.engine.plan import Segments, Steps, columns_read
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


class PlacedStep(NamedTuple):
    """One server step, with its entries of the tables.

    Attributes:
        step: the server step.
        segments: of the training before it; the entry of each lane that trains a run.
        row: of its arrivals, with a list of values in each column of arrivals.
    """

    step: ServerStep
    segments: list[list[Segments]]
    row: Steps


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
        self.steps: list[ServerStep] = []  # that are not part of `parts`
        self.parts: list[Schedule] = []
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
        segments, row = self._segments(step, work), self._arrivals(step)
        for run in (*step.runs, *(dropped.run for dropped in step.dropped)):
            if run.run_id in rows and run.run_id not in fleet.known:
                self.store.append(rows.pop(run.run_id))
        held = {*fleet.held()}
        for version in [version for version in slots if version not in held]:
            self.ring.append(slots.pop(version))
        slots[step.version + 1] = self.ring.take()
        self.taken += len(step.runs)
        self.queue.append(PlacedStep(step, segments, row._replace(write_slot=slots[step.version + 1])))

    def _segments(self, step: ServerStep, trained: list[LocalRun]) -> list[list[Segments]]:
        """Divides runs into segments of at most L; runs of a client that remembers follow each other."""
        turns: list[list[Segments]] = []
        seen: dict[int, int] = {}
        for run in trained:
            turn = seen.get(run.client, 0) if self.remembers else 0
            seen[run.client] = turn + 1
            if turn == len(turns):
                turns.append([])
            entry = Segments(
                active=run.local_steps,
                loads=True,
                load_slot=self.slots.get(run.version, 0),
                load_client=run.client,
                load_run=run.run,
                load_staleness=step.version - run.reference,
                load_duration=run.arrived - run.started,
                load_version=run.version,
                load_server_step=step.version,
                load_started=run.started + self.pause * run.version,
                saves=True,
                save_slot=self.slots[run.reference],
                save_row=self.rows[run.run_id],
            )
            turns[turn].append(entry)
        return [turn[begin : begin + self.lanes] for turn in turns for begin in range(0, len(turn), self.lanes)]

    def _arrivals(self, step: ServerStep) -> Steps:
        """Returns the row of a server step, without the slot that it writes."""
        runs = step.runs
        return Steps(
            segments_before=None,
            time=step.time + self.pause * (step.version + 1),
            mask=True,
            update_slot=[self.rows[run.run_id] for run in runs],
            client=[run.client for run in runs],
            staleness=[step.version - run.reference for run in runs],
            local_steps=[run.local_steps for run in runs],
            multiplicity=step.counts,
            kind=step.kinds[: len(runs)],
            base_slot=[self.slots[run.reference] for run in runs],
            write_slot=None,
        )

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
            fleet.reply(dict(zip(clients.tolist(), found.tolist(), strict=True)))
        del self.queue[: len(replies)]

    def made(self) -> list[Schedule]:
        """Returns the schedule of the server steps so far, in parts."""
        if self.steps or not self.parts:
            self.parts.append(self.live.collect(self.steps))
            self.steps = []
        return self.parts

    def room(self, shapes: Shapes, count: int, scratch: int) -> Shapes:
        """Returns the shapes with room for `count` server steps; `scratch`: slots of the ring that nobody takes."""
        arrivals = [self.live.num_clients if self.by_client else len(one.step.runs) for one in self.queue[:count]]
        return shapes._replace(
            ring=grown(shapes.ring, self.ring.used + scratch),
            store=grown(shapes.store, self.store.used),
            arrivals=grown(shapes.arrivals, max(arrivals, default=0)),
        )

    def write(self, member: int, at: int, first: int, segments: Segments, steps: Steps) -> None:
        """Writes server step `at` of the queue into the tables of all members, from segment `first` on."""
        planned = self.queue[at]
        for number, entries in enumerate(planned.segments, first):
            for lane, entry in enumerate(entries):
                _put(segments, (member, number, lane), entry)
        places = planned.row.client if self.by_client else slice(len(planned.step.runs))
        _put(steps, (member, at, places), planned.row)


def _put(table: Any, where: tuple[Any, ...], entry: Any) -> None:
    """Writes an entry into a table, in the columns that the program reads."""
    for column, value in zip(table, entry, strict=True):
        if column is not None:
            column[where[: column.ndim]] = value


def tables_for(shapes: Shapes, members: int) -> tuple[Segments, Steps]:
    """Returns tables of zeros for the server steps of each member."""
    count = shapes.steps_per_call
    sizes = {"*S": shapes.segments, "L": shapes.lanes, "*T": count, "*T1": count, "A": shapes.arrivals}

    def zeros(column: Any) -> np.ndarray:
        return np.zeros([members, *(sizes[part] for part in column.dim_str.split())], column.dtypes[0])

    def table(record: Any) -> Any:
        kinds = typing.get_type_hints(record)
        return record(**{name: zeros(kind) for name, kind in kinds.items() if name != "columns"})

    return columns_read(table(Segments), table(Steps), shapes)


def grown(size: int, needed: int) -> int:
    """Returns the size, or a power of two that is at least `needed` if it is too small."""
    return size if size >= needed else power_of_two(needed)
