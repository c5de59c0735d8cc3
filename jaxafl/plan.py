"""From a schedule to a plan: which runs are trained together, from which ring slot, and where everything is kept.

An update depends only on the version its run started from, known when it STARTS, and is not needed until it is
consumed. So the planner trains, in L *lanes*, all runs that have started and will be consumed, in the order of their
latest starts, and lets server steps run until the next needed update is missing. A lane whose run ends loads the next
pending run while the others go on (as in continuous batching), so that clients with very different numbers of local
steps do not wait for each other.

A plan is a list of *segments* (every lane makes up to a given number of local steps) between server steps. Everything
is an index array, known before compilation: no control flow on the device depends on data. Ring slots and store rows
are assigned here, by the lifetimes of versions and updates: reading a version that is gone is impossible by
construction.
"""

from __future__ import annotations

import dataclasses
import heapq
from typing import Any, NamedTuple

import numpy as np

from jaxafl.schedule import Schedule

Indices = Any  # NumPy arrays on the host, JAX arrays on the device


class Segments(NamedTuple):
    """Training, S segments of L lanes; int32. Loads come before the local steps of a segment, saves after them."""

    active: Indices  # [S, L]: local steps that a lane makes in this segment
    load_count: Indices  # [S]: how many runs begin; their entries come first in the arrays [S, L] below
    load_lane: Indices  # [S, L]
    load_slot: Indices  # [S, L]: ring slot of the version that the run trains from
    load_client: Indices  # [S, L]
    load_run: Indices  # [S, L]
    load_staleness: Indices  # [S, L]: of the update at the first server step that consumes it
    load_duration: Indices  # float32 [S, L]: simulated seconds that the run takes
    save_count: Indices  # [S]: how many runs end
    save_lane: Indices  # [S, L]
    save_slot: Indices  # [S, L]: ring slot of the version that the update is measured against
    save_row: Indices  # [S, L]: row of the update store


class Steps(NamedTuple):
    """Server steps, T steps of A arrivals; int32 unless said otherwise."""

    segments_before: Indices  # [T + 1]: segments that must have run before step t
    time: Indices  # float32 [T]: simulated seconds
    mask: Indices  # bool [T, A]
    row: Indices  # [T, A]: where the update is stored
    client: Indices  # [T, A]
    staleness: Indices  # [T, A]: t - reference
    local_steps: Indices  # [T, A]
    multiplicity: Indices  # [T, A]
    kind: Indices  # [T, A]
    start_slot: Indices  # [T, A]: ring slot of x_s, the version that the update is measured against
    write_slot: Indices  # [T]: ring slot that x_{t+1} is written to


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """What the engine executes.

    Attributes:
        segments: the training.
        steps: the server steps.
        lanes: L.
        slots: ring slots used, at most those that the clock declares.
        rows: rows of the update store.
        needed: local steps that must be made.
        uniform: whether all active lanes of every segment make the same number of local steps.
    """

    segments: Segments
    steps: Steps
    lanes: int
    slots: int
    rows: int
    needed: int
    uniform: bool

    @property
    def runs(self) -> int:
        """Runs that are trained."""
        return int(self.segments.load_count.sum())

    def executed(self, chunk: int) -> int:
        """Local steps that are executed when `chunk` lanes advance in lockstep, masked ones included."""
        groups = self.segments.active.reshape(len(self.segments.active), -1, chunk)
        return int(groups.max(axis=2).sum()) * chunk

    @property
    def mean_width(self) -> float:
        """Lanes in use, averaged over segments that train."""
        active = np.count_nonzero(self.segments.active, axis=1)
        return float(active[active > 0].mean()) if (active > 0).any() else 0.0


class _Runs(NamedTuple):
    """The runs that are consumed, [R], in dispatch order."""

    client: list[int]
    run: list[int]
    version: list[int]
    reference: list[int]
    local_steps: list[int]
    duration: list[float]
    first_step: list[int]
    last_step: list[int]
    arrival: np.ndarray  # [T, A]: which of them an arrival is, -1 for none


def make_plan(schedule: Schedule, *, lanes: int = 1, keep_start: bool = False) -> Plan:
    """Plans the training of a schedule.

    Args:
        schedule: who arrives at every server step.
        lanes: L, the most runs that are trained at once.
        keep_start: whether the server reads x_s, so that it must be kept until the update is consumed.

    Returns:
        The plan. Its results do not depend on `lanes`.
    """
    runs = _consumed_runs(schedule)
    segments, before, order = _train(schedule, runs, lanes)
    return _place(schedule, runs, segments, before, order, lanes, keep_start)


def _consumed_runs(schedule: Schedule) -> _Runs:
    mask = schedule.mask
    dispatch, first, inverse = np.unique(schedule.dispatch[mask], return_index=True, return_inverse=True)
    step_of = np.nonzero(mask)[0]
    last = np.zeros(len(dispatch), np.int64)
    np.maximum.at(last, inverse, step_of)
    index = np.full(mask.shape, -1)
    index[mask] = inverse

    def column(values: np.ndarray) -> list[Any]:
        return values[mask][first].tolist()

    return _Runs(
        column(schedule.client), column(schedule.run), column(schedule.version), column(schedule.reference),
        column(schedule.local_steps), column(schedule.arrived - schedule.started),
        step_of[first].tolist(), last.tolist(), index,
    )  # fmt: skip


class _Segment(NamedTuple):
    active: list[int]
    loads: list[tuple[int, int]]  # (lane, run)
    saves: list[tuple[int, int]]


def _train(schedule: Schedule, runs: _Runs, lanes: int) -> tuple[list[_Segment], list[int], list[tuple[str, int]]]:
    """Segments in the order of execution, how many precede each server step, and the order of segments and steps."""
    count, steps = len(runs.client), schedule.server_steps
    release = [max(runs.version[run], runs.reference[run]) for run in range(count)]
    # a run that pins two versions (measured against another than it trains from) is trained at once, to let one of them
    # go
    skewed = [runs.version[run] != runs.reference[run] for run in range(count)]
    needed = [release[run] if skewed[run] else runs.first_step[run] for run in range(count)]
    released: list[list[int]] = [[] for _ in range(steps + 1)]
    missing = [0] * (steps + 1)
    for run in range(count):
        released[release[run]].append(run)
        missing[needed[run]] += 1
    # Work is counted in local steps of all lanes together. A run that is needed at step t should start, at the latest,
    # its own length before the work that is due up to t is done; so a long run starts early instead of keeping the
    # other lanes waiting.
    due = np.zeros(steps + 1)
    np.add.at(due, needed, runs.local_steps)
    latest = (np.cumsum(due)[needed] / lanes - np.asarray(runs.local_steps)).tolist()
    pending: list[tuple[float, int]] = []
    lane_run, remaining = [-1] * lanes, [0] * lanes
    segments: list[_Segment] = []
    before: list[int] = []
    order: list[tuple[str, int]] = []
    for step in range(steps):
        for run in released[step]:
            heapq.heappush(pending, (latest[run], run))
        while missing[step]:
            loads = []
            for lane in range(lanes):
                if lane_run[lane] < 0 and pending:
                    run = heapq.heappop(pending)[1]
                    lane_run[lane], remaining[lane] = run, runs.local_steps[run]
                    loads.append((lane, run))
            busy = [lane for lane in range(lanes) if lane_run[lane] >= 0]
            # until a lane can take up the next pending run, or, with none pending, until this server step has what it
            # needs
            if pending:
                length = min(remaining[lane] for lane in busy)
            else:
                length = max(remaining[lane] for lane in busy if needed[lane_run[lane]] == step)
            active, saves = [0] * lanes, []
            for lane in busy:
                made = min(length, remaining[lane])
                active[lane] = made
                remaining[lane] -= made
                if not remaining[lane]:
                    saves.append((lane, lane_run[lane]))
                    missing[needed[lane_run[lane]]] -= 1
                    lane_run[lane] = -1
            order.append(("segment", len(segments)))
            segments.append(_Segment(active, loads, saves))
        before.append(len(segments))
        order.append(("step", step))
    before.append(len(segments))
    return segments, before, order


def _place(
    schedule: Schedule,
    runs: _Runs,
    segments: list[_Segment],
    before: list[int],
    order: list[tuple[str, int]],
    lanes: int,
    keep_start: bool,
) -> Plan:
    """Assigns ring slots to versions and store rows to updates, by their lifetimes."""
    uses = [0] * (schedule.server_steps + 1)
    consumed = [runs.arrival[step][schedule.mask[step]].tolist() for step in range(schedule.server_steps)]
    for run in range(len(runs.client)):
        uses[runs.version[run]] += 1
        uses[runs.reference[run]] += 1
    if keep_start:
        for arrivals in consumed:
            for run in arrivals:
                uses[runs.reference[run]] += 1
    ring, store = _Places(), _Places()
    slot_of = {0: ring.take()}
    row_of: dict[int, int] = {}
    shape = schedule.mask.shape
    row, start_slot, write_slot = np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.zeros(shape[0], np.int32)
    count = len(segments)
    entries = {name: np.zeros((count, lanes), np.int32) for name in Segments._fields if not name.endswith("_count")}
    entries["load_duration"] = np.zeros((count, lanes), np.float32)
    loads, saves = np.zeros(count, np.int32), np.zeros(count, np.int32)

    def used(version: int, current: int) -> None:
        uses[version] -= 1
        if not uses[version] and version != current:
            ring.give(slot_of.pop(version))

    current = 0
    for what, number in order:
        if what == "segment":
            segment = segments[number]
            entries["active"][number] = segment.active
            loads[number], saves[number] = len(segment.loads), len(segment.saves)
            for place, (lane, run) in enumerate(segment.loads):
                entries["load_lane"][number, place] = lane
                entries["load_slot"][number, place] = slot_of[runs.version[run]]
                entries["load_client"][number, place] = runs.client[run]
                entries["load_run"][number, place] = runs.run[run]
                entries["load_staleness"][number, place] = runs.first_step[run] - runs.reference[run]
                entries["load_duration"][number, place] = runs.duration[run]
                used(runs.version[run], current)
            for place, (lane, run) in enumerate(segment.saves):
                row_of[run] = store.take()
                entries["save_lane"][number, place] = lane
                entries["save_slot"][number, place] = slot_of[runs.reference[run]]
                entries["save_row"][number, place] = row_of[run]
                used(runs.reference[run], current)
            continue
        for entry, run in zip(np.flatnonzero(schedule.mask[number]), consumed[number], strict=True):
            row[number, entry] = row_of[run]
            if keep_start:
                start_slot[number, entry] = slot_of[runs.reference[run]]
        for run in consumed[number]:
            if keep_start:
                used(runs.reference[run], current)
            if runs.last_step[run] == number and run in row_of:
                store.give(row_of.pop(run))
        # a version that no run trains from is written all the same, and overwritten by the next
        if not uses[current]:
            ring.give(slot_of.pop(current))
        current = number + 1
        slot_of[current] = write_slot[number] = ring.take()
    if ring.count > schedule.ring_slots:
        raise RuntimeError(f"the plan needs {ring.count} ring slots, the clock declares {schedule.ring_slots}")
    return Plan(
        segments=Segments(load_count=loads, save_count=saves, **entries),
        steps=Steps(
            segments_before=np.asarray(before, np.int32),
            time=schedule.time.astype(np.float32),
            mask=schedule.mask,
            row=row,
            client=schedule.client,
            staleness=schedule.staleness,
            local_steps=schedule.local_steps,
            multiplicity=schedule.multiplicity,
            kind=schedule.kind,
            start_slot=start_slot,
            write_slot=write_slot,
        ),
        lanes=lanes,
        slots=ring.count,
        rows=max(store.count, 1),
        needed=sum(runs.local_steps),
        uniform=all(len({made for made in segment.active if made}) <= 1 for segment in segments),
    )


class _Places:
    """Numbered places, taken and given back; the lowest free one is taken first."""

    def __init__(self) -> None:
        self.count = 0
        self.free: list[int] = []

    def take(self) -> int:
        if self.free:
            return heapq.heappop(self.free)
        self.count += 1
        return self.count - 1

    def give(self, place: int) -> None:
        heapq.heappush(self.free, place)
