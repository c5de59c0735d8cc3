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
from collections.abc import Sequence
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


class _Moves(NamedTuple):
    """Runs that lanes load, or save, in the order in which they do."""

    runs: np.ndarray
    lanes: np.ndarray
    segments: np.ndarray  # in which
    places: np.ndarray  # among those of the segment


class _Training(NamedTuple):
    active: np.ndarray  # [S, L]: local steps that a lane makes
    loads: _Moves
    saves: _Moves
    before: np.ndarray  # segments that precede each server step, and the end


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
    training = _train(schedule.server_steps, runs, lanes, origin.step, homes, schedule.num_clients)
    return _place(schedule, runs, training, lanes, keep_base, origin, held)


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


def _train(server_steps: int, runs: _Runs, lanes: int, start: int, homes: int, clients: int) -> _Training:
    """What lanes make between server steps."""
    release = np.maximum(np.maximum(runs.version, runs.reference), start)
    # a run that pins two versions (measured against another than it trains from) is trained at once, to let one go
    needed_at = np.where(runs.version != runs.reference, release, np.maximum(runs.first_step, start))
    # Work is counted in local steps of all lanes together. A run needed at step t should start, at the latest, its own
    # length before the work due up to t is done; so a long run starts early instead of keeping the other lanes waiting.
    due = np.bincount(needed_at, runs.local_steps, server_steps + 1)
    order = np.argsort(np.cumsum(due)[needed_at] / lanes - runs.local_steps, kind="stable")
    rank, by_release = np.empty_like(order), np.argsort(release, kind="stable")
    rank[order] = np.arange(len(order))  # runs are known by their rank from here on
    pending = _Pending(
        ranks=rank[by_release].tolist(),
        ends=np.searchsorted(release[by_release], np.arange(start, server_steps), side="right").tolist(),
        needed=(needed_at[order] - start).tolist(),
        lengths=runs.local_steps[order].tolist(),
        homes=(runs.client[order] // -(-clients // homes)).tolist(),
    )
    instants, loads, into, saves, steps = _advance(pending, lanes, homes)
    preceding = np.searchsorted(np.asarray(steps) + start, np.arange(server_steps + 1), side="right").astype(np.int32)
    lane = np.empty_like(order)
    lane[loads.ranks] = into
    loaded, saved = _moves(loads, lane, order), _moves(saves, lane, order)
    return _Training(_active(loaded, saved, runs, np.asarray(instants), lanes), loaded, saved, preceding)


class _Pending(NamedTuple):
    """What is to be trained; a run is known by its rank, in which lanes take it."""

    ranks: list[int]  # of the runs, in the order in which the versions are made that they need
    ends: list[int]  # of each server step: how many of those can be trained before it
    needed: list[int]  # by rank: the server step that waits for it
    lengths: list[int]  # by rank: local steps
    homes: list[int]  # by rank: the device of its client


class _Made(NamedTuple):
    """Runs that lanes load, or save."""

    ranks: list[int]
    ends: list[int]  # of each segment: how many until then


def _advance(pending: _Pending, lanes: int, homes: int) -> tuple[list[int], _Made, list[int], _Made, list[int]]:
    """The instants, in local steps, between which the segments lie; what they load, into which lanes, and save; and the
    server step (of those that `pending` knows) that each precedes. This loop is most of what a plan takes."""
    needed, lengths, home_of = pending.needed, pending.lengths, pending.homes
    push, pop = heapq.heappush, heapq.heappop
    missing = np.bincount(np.asarray(needed, np.int64), minlength=len(pending.ends)).tolist()
    # runs that wait for a lane, idle lanes, and when the others end their run, in local steps, times L, plus the lane
    devices: list[tuple[list[int], ...]] = [([], list(range(home, lanes, homes)), []) for home in range(homes)]
    queues, run_of, into = [waiting for waiting, _, _ in devices], [0] * lanes, list[int]()
    loads, saves, steps, begin, now, instants = _Made([], []), _Made([], []), list[int](), 0, 0, [0]
    load, lend, save = loads.ranks.append, into.append, saves.ranks.append
    for step, end in enumerate(pending.ends):
        while missing[step]:
            for rank in pending.ranks[begin:end]:
                push(queues[home_of[rank]], rank)
            begin, until = end, -1
            for waiting, idle, working in devices:
                while waiting and idle:
                    lane, rank = pop(idle), pop(waiting)
                    load(rank)
                    lend(lane)
                    run_of[lane] = rank
                    push(working, (now + lengths[rank]) * lanes + lane)
                # until a lane can take up the next pending run, or, with none pending, this step has what it needs
                if waiting and (until < 0 or working[0] < until):
                    until = working[0]
            if until < 0:
                until = max(end for _, _, working in devices for end in working if needed[run_of[end % lanes]] == step)
            now = until // lanes
            bound = (now + 1) * lanes
            for _, idle, working in devices:
                while working and working[0] < bound:
                    lane = pop(working) % lanes
                    rank = run_of[lane]
                    save(rank)
                    push(idle, lane)
                    missing[needed[rank]] -= 1
            instants.append(now)
            loads.ends.append(len(loads.ranks))
            saves.ends.append(len(saves.ranks))
            steps.append(step)
    return instants, loads, into, saves, steps


def _moves(made: _Made, lane: np.ndarray, order: np.ndarray) -> _Moves:
    """The runs in the order of their segments and, within one, of their lanes, which are given by rank."""
    ranks, ends = (np.asarray(column, np.int64) for column in made)
    lanes = lane[ranks]
    begins = np.concatenate([np.zeros(1, np.int64), ends])[:-1]
    segments = np.repeat(np.arange(len(ends)), ends - begins)
    in_order = np.argsort(segments * (lanes.max(initial=0) + 1) + lanes, kind="stable")
    return _Moves(order[ranks[in_order]], lanes[in_order], segments, np.arange(len(segments)) - begins[segments])


def _active(loads: _Moves, saves: _Moves, runs: _Runs, instants: np.ndarray, lanes: int) -> np.ndarray:
    """Local steps of each segment and lane."""
    first, last, lane = np.empty((3, len(runs.client)), np.int64)
    first[loads.runs], last[saves.runs], lane[loads.runs] = loads.segments, saves.segments, loads.lanes
    many = last - first + 1
    segments = np.repeat(first - np.cumsum(many) + many, many) + np.arange(many.sum())
    left = np.repeat(instants[first] + runs.local_steps, many) - instants[segments]
    active = np.zeros((len(instants) - 1, lanes), np.int32)
    active[segments, np.repeat(lane, many)] = np.minimum(left, np.diff(instants)[segments])
    return active


def _place(
    schedule: Schedule,
    runs: _Runs,
    training: _Training,
    lanes: int,
    keep_base: bool,
    origin: Origin,
    held: tuple[int, ...],
) -> Plan:
    """Assigns ring slots to versions and store rows to updates, by their lifetimes."""
    active, loads, saves, before = training
    steps, start, count = schedule.server_steps, origin.step, len(training.active)
    step_of, entry_of = np.nonzero(schedule.mask[start:])
    step_of += start
    arrived = runs.arrival[step_of, entry_of]
    during = np.searchsorted(before[:-1], np.arange(count), side="right")  # the server step before which a segment runs
    last, read = np.arange(steps + 1), np.zeros(steps + 1, bool)  # the step after whose update a version is not needed
    uses = [(runs.version[loads.runs], during[loads.segments]), (runs.reference[saves.runs], during[saves.segments])]
    for versions, at in [*uses, (runs.reference[arrived], step_of)] if keep_base else uses:
        np.maximum.at(last, versions, at)
        read[versions] = True
    if gone := set(np.flatnonzero(read[:start]).tolist()) - {*origin.slots}:
        raise UserError(f"the run cannot go on: the clock's `held` did not name the versions {sorted(gone)}")
    last[list(held)], read[list(held)] = steps + 1, True
    there = [version for version in origin.slots if read[version] or version == start]
    made = np.concatenate([np.asarray(there, np.int64), np.arange(start + 1, steps + 1)])  # in this order
    slots, used = _places(made - 1, last[made], [origin.slots[version] for version in there])
    slot_of = np.zeros(steps + 1, np.int64)
    slot_of[made] = slots
    if used > max(schedule.ring_slots, len(held) + 1):
        raise RuntimeError(f"the plan needs {used} ring slots, the clock declares {schedule.ring_slots}")
    kept = {version: int(slot_of[version]) for version in {*held, steps} & {*made.tolist()}}
    row_of = np.zeros(len(runs.client), np.int64)
    row_of[saves.runs], rows = _places(during[saves.segments], runs.last_step[saves.runs] + 1)

    def entries(what: str, moves: _Moves, **columns: np.ndarray) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {f"{what}_count": np.bincount(moves.segments, minlength=count).astype(np.int32)}
        for name, values in columns.items():
            table: np.ndarray = np.zeros((count, lanes), np.float32 if values.dtype.kind == "f" else np.int32)
            table[moves.segments, moves.places] = values
            found[f"{what}_{name}"] = table
        return found

    begun = {name: getattr(runs, name)[loads.runs] for name in ("client", "run", "duration")}
    begun["staleness"] = (runs.first_step - runs.reference)[loads.runs]
    begins = entries("load", loads, lane=loads.lanes, slot=slot_of[runs.version[loads.runs]], **begun)
    ends = entries("save", saves, lane=saves.lanes, slot=slot_of[runs.reference[saves.runs]], row=row_of[saves.runs])
    row, base_slot = (np.zeros(schedule.mask.shape, np.int32) for _ in range(2))
    row[step_of, entry_of] = row_of[arrived]
    base_slot[step_of, entry_of] = slot_of[runs.reference[arrived]] if keep_base else 0
    write_slot = np.where(np.arange(steps) < start, 0, slot_of[1:]).astype(np.int32)
    names = ("mask", "client", "staleness", "local_steps", "multiplicity", "kind")
    columns = {name: getattr(schedule, name) for name in names} | {"time": schedule.time.astype(np.float32)}
    taken = Steps(segments_before=before, row=row, base_slot=base_slot, write_slot=write_slot, **columns)
    trained, needed = Segments(active=active, **begins, **ends), int(runs.local_steps.sum())
    return Plan(trained, taken, lanes, used, max(rows, 1), needed, *_uniform(training), origin, kept)


def _uniform(training: _Training) -> tuple[bool, int | None]:
    """Whether all runs of a segment, those without local steps too, make the same number of them in it; and what that
    number is, where it is the same in all segments."""
    active, saves = training.active, training.saves
    counted = active > 0
    counted[saves.segments, saves.lanes] = True
    most = np.max(active, axis=1, initial=0, keepdims=True)
    uniform = bool((np.where(counted, active, most) == most).all())
    return uniform, (int(most.max()) or None) if uniform and most.size and most.min() == most.max() else None


def _places(first: np.ndarray, last: np.ndarray, taken: Sequence[int] = ()) -> tuple[list[int], int]:
    """A numbered place for each of several things, the lowest one that is free; and how many there are.

    Args:
        first: int [m], not decreasing: when each takes its place.
        last: int [m]: when it gives it back, which comes first at any instant.
        taken: the places of the first of them.
    """
    places, count = list(taken), max(taken, default=-1) + 1
    free = sorted({*range(count)} - {*places})
    leaving, here = np.argsort(last, kind="stable"), len(places)
    before = np.maximum(np.searchsorted(first, last[leaving]), here) - here  # leaves before others enter
    push, pop, take = heapq.heappush, heapq.heappop, places.append
    for who in np.insert(np.arange(here, len(first)), before, ~leaving).tolist():
        if who < 0:
            push(free, places[~who])
        elif free:
            take(pop(free))
        else:
            take(count)
            count += 1
    return places, count
