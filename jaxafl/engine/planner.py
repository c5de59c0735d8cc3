"""From a schedule to a plan: which runs are trained together, from which ring slot, and where everything is kept.

An update depends only on the version its run started from, known when it STARTS, and is not needed until it is
consumed. So the planner trains, in L *lanes*, all runs that have started and will be consumed, in the order of their
latest starts, and lets server steps run until the next needed update is missing. A lane whose run ends loads the next
pending run while the others go on (as in continuous batching), so that clients with very different numbers of local
steps do not wait for each other.

A plan is a list of *segments* (every lane makes up to a given number of local steps) between server steps: index arrays
known before compilation, so that no control flow on the device depends on data. Ring slots and store rows are assigned
by the lifetimes of versions and updates: reading a version that is gone is impossible by construction.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from jaxafl.clock import Schedule
from jaxafl.engine.plan import ORIGIN, Origin, Plan, Segments, Steps
from jaxafl.options import UserError


class _Runs(NamedTuple):
    """The runs that are taken, [R], in the order in which they start."""

    client: np.ndarray
    run: np.ndarray
    version: np.ndarray
    reference: np.ndarray
    local_steps: np.ndarray
    duration: np.ndarray
    first_step: np.ndarray
    last_step: np.ndarray
    arrival: np.ndarray  # [T, A]: which of them an arrival is, -1 for none


class _Segment(NamedTuple):
    active: list[int]
    loads: list[tuple[int, int]]  # (lane, run)
    saves: list[tuple[int, int]]


def make_plan(
    schedule: Schedule,
    *,
    lanes: int = 1,
    keep_base: bool,
    origin: Origin | None = None,
    homes: int = 1,
) -> Plan:
    """Plans the training of a schedule.

    Args:
        schedule: who arrives at every server step.
        lanes: L, the most runs that are trained at once.
        keep_base: whether the server reads x_s, so that it must be kept until the update is taken.
        origin: where the plan begins, nothing being trained yet of what is taken afterwards; its end then keeps what
            another plan needs to begin there. `None`: at the first server step, and with the last one all ends.
        homes: D devices that hold what is their clients' own, each ⌈N/D⌉ clients; a divisor of L. Device d has the
            lanes congruent to it modulo D, in which the runs of its clients are trained.

    The results of a plan do not depend on `lanes`, `origin` and `homes`.
    """
    held, origin = ((), ORIGIN) if origin is None else (schedule.held, origin)
    runs = _taken_runs(schedule, origin.step)
    segments, before = _train(schedule.server_steps, runs, lanes, origin.step, homes, schedule.num_clients)
    return _place(schedule, runs, segments, before, lanes, keep_base, origin, held)


def _taken_runs(schedule: Schedule, start: int) -> _Runs:
    """The runs that server steps from `start` on take."""
    mask = schedule.mask
    run_id, first, inverse = np.unique(schedule.run_id[mask], return_index=True, return_inverse=True)
    step_of = np.nonzero(mask)[0]
    last = np.zeros(len(run_id), np.int64)
    np.maximum.at(last, inverse, step_of)
    due = last >= start
    arrival = np.full(mask.shape, -1)
    arrival[mask] = np.where(step_of >= start, (np.cumsum(due) - 1)[inverse], -1)
    first = first[due]
    names = ("client", "run", "version", "reference", "local_steps")
    columns = {name: getattr(schedule, name)[mask][first] for name in names}
    duration = (schedule.arrived - schedule.started)[mask][first]
    return _Runs(**columns, duration=duration, first_step=step_of[first], last_step=last[due], arrival=arrival)


def _train(
    server_steps: int, runs: _Runs, lanes: int, start: int, homes: int, clients: int
) -> tuple[list[_Segment], list[int]]:
    """Segments in the order of execution, and how many of them precede each server step, and the end."""
    release = np.maximum(np.maximum(runs.version, runs.reference), start)
    # a run that pins two versions (measured against another than it trains from) is trained at once, to let one go
    needed_at = np.where(runs.version != runs.reference, release, np.maximum(runs.first_step, start))
    # Work is counted in local steps of all lanes together. A run needed at step t should start, at the latest, its own
    # length before the work due up to t is done; so a long run starts early instead of keeping the other lanes waiting.
    due = np.bincount(needed_at, runs.local_steps, server_steps + 1)
    latest = (np.cumsum(due)[needed_at] / lanes - runs.local_steps).tolist()
    missing = np.bincount(needed_at, minlength=server_steps + 1).tolist()
    released: list[list[int]] = [[] for _ in range(server_steps + 1)]
    for run, step in enumerate(release.tolist()):
        released[step].append(run)
    needed, length_of = needed_at.tolist(), runs.local_steps.tolist()
    home_of = (runs.client // -(-clients // homes)).tolist()
    pending: list[list[tuple[float, int]]] = [[] for _ in range(homes)]
    lane_run, remaining = [-1] * lanes, [0] * lanes
    segments: list[_Segment] = []
    before = [0] * start
    for step in range(start, server_steps):
        for run in released[step]:
            heapq.heappush(pending[home_of[run]], (latest[run], run))
        while missing[step]:
            loads = []
            for lane in range(lanes):
                if lane_run[lane] < 0 and pending[lane % homes]:
                    run = heapq.heappop(pending[lane % homes])[1]
                    lane_run[lane], remaining[lane] = run, length_of[run]
                    loads.append((lane, run))
            busy = [lane for lane in range(lanes) if lane_run[lane] >= 0]
            # until a lane can take up the next pending run, or, with none pending, until this step has what it needs
            if awaited := [remaining[lane] for lane in busy if pending[lane % homes]]:
                length = min(awaited)
            else:
                length = max(remaining[lane] for lane in busy if needed[lane_run[lane]] == step)
            active, saves = [0] * lanes, []
            for lane in busy:
                active[lane] = min(length, remaining[lane])
                remaining[lane] -= active[lane]
                if not remaining[lane]:
                    saves.append((lane, lane_run[lane]))
                    missing[needed[lane_run[lane]]] -= 1
                    lane_run[lane] = -1
            segments.append(_Segment(active, loads, saves))
        before.append(len(segments))
    return segments, [*before, len(segments)]


def _place(
    schedule: Schedule,
    runs: _Runs,
    segments: list[_Segment],
    before: list[int],
    lanes: int,
    keep_base: bool,
    origin: Origin,
    held: tuple[int, ...],
) -> Plan:
    """Assigns ring slots to versions and store rows to updates, by their lifetimes."""
    versions, references, last_step = runs.version.tolist(), runs.reference.tolist(), runs.last_step.tolist()
    read = [runs.version, runs.reference, np.asarray(held, np.int64)]
    read += [runs.reference[runs.arrival[runs.arrival >= 0]]] if keep_base else []
    uses = np.bincount(np.concatenate(read), minlength=schedule.server_steps + 1).tolist()
    store, done, row_of = _Places(), 0, dict[int, int]()
    slot_of = {version: slot for version, slot in origin.slots.items() if uses[version] or version == origin.step}
    gone = {*versions, *references} - {*slot_of, *range(origin.step, schedule.server_steps)}
    if gone:
        raise UserError(f"the run cannot go on: the clock's `held` did not name the versions {sorted(gone)}")
    ring = _Places(slot_of.values())
    loads, saves, arrivals, write_slot = [], [], [], np.zeros(schedule.server_steps, np.int32)

    def used(version: int, current: int) -> None:
        uses[version] -= 1
        if not uses[version] and version != current:
            ring.give(slot_of.pop(version))

    for step in range(origin.step, schedule.server_steps):  # when the newest version is `step`
        for number in range(done, before[step]):
            for place, (lane, run) in enumerate(segments[number].loads):
                loads.append((number, place, lane, run, slot_of[versions[run]]))
                used(versions[run], step)
            for place, (lane, run) in enumerate(segments[number].saves):
                row_of[run] = store.take()
                saves.append((number, place, lane, slot_of[references[run]], row_of[run]))
                used(references[run], step)
        done, taken = before[step], np.flatnonzero(schedule.mask[step])
        for entry in taken.tolist():
            run = int(runs.arrival[step, entry])
            arrivals.append((step, entry, row_of[run], slot_of[references[run]] if keep_base else 0))
        for run in runs.arrival[step][taken].tolist():
            if keep_base:
                used(references[run], step)
            if last_step[run] == step and run in row_of:
                store.give(row_of.pop(run))
        if not uses[step]:  # a version that no run trains from is written all the same, and overwritten by the next
            ring.give(slot_of.pop(step))
        slot_of[step + 1] = write_slot[step] = ring.take()
    if ring.count > max(schedule.ring_slots, len(held) + 1):
        raise RuntimeError(f"the plan needs {ring.count} ring slots, the clock declares {schedule.ring_slots}")
    kept = {version: slot for version, slot in slot_of.items() if version in {*held, schedule.server_steps}}

    def filled(shape: tuple[int, ...], at: tuple[np.ndarray, ...], values: np.ndarray) -> np.ndarray:
        table = np.zeros(shape, np.float32 if values.dtype.kind == "f" else np.int32)
        table[at] = values
        return table

    def entries(what: str, number: np.ndarray, place: np.ndarray, **columns: np.ndarray) -> dict[str, np.ndarray]:
        found = {f"{what}_{name}": filled(shape, (number, place), column) for name, column in columns.items()}
        return found | {f"{what}_count": np.bincount(number, minlength=len(segments)).astype(np.int32)}

    shape, staleness = (len(segments), lanes), runs.first_step - runs.reference
    number, place, lane, run, slot = _columns(loads, 5)
    begun = {name: getattr(runs, name)[run] for name in ("client", "run", "duration")}
    begins = entries("load", number, place, lane=lane, slot=slot, staleness=staleness[run], **begun)
    number, place, lane, slot, row = _columns(saves, 5)
    ends = entries("save", number, place, lane=lane, slot=slot, row=row)
    active = np.asarray([segment.active for segment in segments], np.int32).reshape(shape)
    step_of, entry_of, row, slot = _columns(arrivals, 4)
    columns = {name: getattr(schedule, name) for name in ("client", "staleness", "local_steps", "multiplicity", "kind")}
    steps = Steps(
        segments_before=np.asarray(before, np.int32),
        time=schedule.time.astype(np.float32),
        mask=schedule.mask,
        row=filled(schedule.mask.shape, (step_of, entry_of), row),
        base_slot=filled(schedule.mask.shape, (step_of, entry_of), slot),
        write_slot=write_slot,
        **columns,
    )
    uniform = all(_is_uniform(segment) for segment in segments)
    rows, needed = max(store.count, 1), int(runs.local_steps.sum())
    trained = Segments(active=active, **begins, **ends)
    return Plan(trained, steps, lanes, ring.count, rows, needed, uniform, origin, kept)


def _is_uniform(segment: _Segment) -> bool:
    """Whether all runs of a segment, those without local steps too, make the same number of them in it."""
    ended = {segment.active[lane] for lane, _ in segment.saves}
    return len(ended | {made for made in segment.active if made}) <= 1


def _columns(rows: Sequence[tuple[int, ...]], width: int) -> np.ndarray:
    return np.asarray(rows, np.int64).reshape(-1, width).T


class _Places:
    """Numbered places, taken and given back; the lowest free one is taken first."""

    def __init__(self, taken: Collection[int] = ()) -> None:
        self.count = max(taken, default=-1) + 1
        self.free = sorted({*range(self.count)} - {*taken})

    def take(self) -> int:
        if self.free:
            return heapq.heappop(self.free)
        self.count += 1
        return self.count - 1

    def give(self, place: int) -> None:
        heapq.heappush(self.free, place)
