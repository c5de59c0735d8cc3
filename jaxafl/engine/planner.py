"""Planning: which runs are trained together, from which ring slot, and where versions and updates are stored.

An update depends only on the version its run started from, known when the run starts, and is not needed until it is
consumed. The planner lets L *lanes* train all runs that have started and will be consumed, those first that must begin
first to be in time, and lets server steps proceed until the next needed update is missing. A lane whose run ends loads
the next pending run while the others continue (as in continuous batching), so clients with very different numbers of
local steps do not wait for each other.

A plan is a list of *segments* (every lane makes up to a given number of local steps) between server steps: index arrays
known before compilation, so that no control flow on the device depends on data. Versions get ring slots and updates get
store rows by their lifetimes, so reading a version that is gone is impossible by construction.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxafl.client import Timing, Turns
from jaxafl.clock import Schedule
from jaxafl.clock.schedule import cut
from jaxafl.engine.plan import ORIGIN, Origin, Plan, Segments, Steps
from jaxafl.options import UserError


class Runs(NamedTuple):
    """Runs that the server steps consume, [R], in the order in which they start."""

    client: np.ndarray
    run: np.ndarray
    version: np.ndarray
    reference: np.ndarray
    local_steps: np.ndarray
    duration: np.ndarray
    started: np.ndarray
    first_step: np.ndarray
    last_step: np.ndarray
    arrival: np.ndarray  # [T, A], index of the run that arrives, -1 for padding


class Moves(NamedTuple):
    """Loads of runs into lanes, or saves of their updates, in order; one entry per run."""

    runs: np.ndarray
    lanes: np.ndarray
    segments: np.ndarray


class Training(NamedTuple):
    """Segments of local training between server steps."""

    active: np.ndarray  # [S, L], local steps of each lane
    loads: Moves
    saves: Moves
    before: np.ndarray  # [T + 1], segments before each server step, and before the end


def make_plan(
    schedule: Schedule,
    *,
    lanes: int = 1,
    keep_base: bool,
    origin: Origin | None = None,
    in_turn: Turns = Turns.ANY,
) -> Plan:
    """Plans the training of a schedule. Results do not depend on `lanes` and `origin`.

    Args:
        schedule: arrivals of every server step.
        lanes: L, the most runs that are trained at once.
        keep_base: True if the server reads x_s, which is then kept until the update is consumed.
        origin: beginning of the plan, from before which the store has no update. The versions that a following plan
            needs stay in the ring. `None` for a plan of a whole simulation.
        in_turn: order of the runs of a client. If clients keep something from run to run, a run is trained after the
            previous one of its client, and completed runs that no server step takes are trained, too.
    """
    held, origin = ((), ORIGIN) if origin is None else (schedule.held, origin)
    schedule = cut(schedule, origin.step, schedule.start + schedule.server_steps)
    mask, of = schedule.mask, schedule.per_arrival
    # a run that a step before the schedule consumed is trained again
    run_id, first, inverse = np.unique(of["run_id"], return_index=True, return_inverse=True)
    step_of, last_step = schedule.start + np.nonzero(mask)[0], np.zeros(len(run_id), np.int64)
    np.maximum.at(last_step, inverse, step_of)
    arrival = np.full(mask.shape, -1)
    arrival[mask] = inverse
    names = ("client", "run", "version", "reference", "local_steps", "started")
    columns = {name: of[name][first] for name in names} | {"duration": (of["arrived"] - of["started"])[first]}
    runs = Runs(**columns, first_step=step_of[first], last_step=last_step, arrival=arrival)
    if in_turn:
        runs = _with_untaken(runs, schedule)
    training = _train(schedule.server_steps, runs, lanes, origin.step, in_turn)
    return _place(schedule, runs, training, keep_base, origin, held)


def _with_untaken(runs: Runs, schedule: Schedule) -> Runs:
    """Returns the runs and those that clients complete and no server step takes."""
    more = schedule.unused.completed
    columns = more._asdict() | {"duration": more.ended - more.started, "first_step": more.step, "last_step": more.step}
    names = Runs._fields[:-1]  # without `arrival`
    return runs._replace(**{name: np.concatenate([getattr(runs, name), columns[name]]) for name in names})


def _chains(runs: Runs, release: np.ndarray, needed_at: np.ndarray, steps: int) -> tuple[np.ndarray, ...]:
    """Returns the next run of each run's client (-1: none), and `release` and `needed_at` where one waits for another.

    Args:
        runs: the runs.
        release: int [R], server step from which a run can be trained.
        needed_at: int [R], server step that waits for it.
        steps: T.
    """
    chain = np.lexsort((runs.run, runs.client))
    client = runs.client[chain]
    after = np.full(len(chain), -1)
    follows = client[1:] == client[:-1]
    after[chain[:-1][follows]] = chain[1:][follows]
    shift = client.astype(np.int64) * (steps + 1)  # separates the clients
    release, needed_at = release.copy(), needed_at.copy()
    release[chain] = np.maximum.accumulate(release[chain] + shift) - shift
    needed_at[chain] = np.minimum.accumulate((needed_at[chain] + shift)[::-1])[::-1] - shift
    return after, release, needed_at


def _train(server_steps: int, runs: Runs, lanes: int, start: int, in_turn: Turns) -> Training:
    """Plans the training of lanes between server steps, which are numbered from `start`."""
    release = np.maximum(np.maximum(runs.version, runs.reference) - start, 0)
    # an update relative to another version than its start model keeps two in the ring: its run is trained at once
    needed_at = np.where(runs.version != runs.reference, release, runs.first_step - start)
    after = None
    if in_turn:
        after, release, needed_at = _chains(runs, release, needed_at, server_steps)
        release = needed_at if in_turn == Turns.IN_TIME else release
    # Work is counted in local steps of all lanes together. A run needed at step t should start, at the latest, its own
    # length before the work due up to t is done: otherwise a long run keeps the other lanes waiting.
    due = np.bincount(needed_at, runs.local_steps, server_steps + 1)
    order = np.argsort(np.cumsum(due)[needed_at] / lanes - runs.local_steps, kind="stable")
    rank, by_release = np.empty_like(order), np.argsort(release, kind="stable")
    rank[order] = np.arange(len(order))  # below, a run is identified by its rank, the order in which lanes load it
    instants, loads, saves, steps, lane_of = _advance(
        rank[by_release].tolist(),
        np.searchsorted(release[by_release], np.arange(server_steps), side="right").tolist(),
        needed_at[order].tolist(),
        runs.local_steps[order].tolist(),
        lanes,
        [] if after is None else np.append(rank, -1)[after[order]].tolist(),
    )
    before = np.searchsorted(np.asarray(steps), np.arange(server_steps + 1), side="right").astype(np.int32)
    segments, ranks = np.divmod(np.array([loads, saves], np.int64), max(len(order), 1))
    lane = np.array(lane_of, np.int64)[ranks]
    in_order = np.argsort(segments * lanes + lane, axis=1, kind="stable")  # by segment and lane
    moved = order[np.take_along_axis(ranks, in_order, axis=1)]
    loaded, saved = map(Moves, moved, np.take_along_axis(lane, in_order, axis=1), segments)
    # a lane works up to the end of its run or of the segment
    at = np.asarray(instants)
    ends = np.zeros((len(at) - 1, lanes), np.int64)
    ends[loaded.segments, loaded.lanes] = at[loaded.segments] + runs.local_steps[loaded.runs]
    left = np.maximum.accumulate(ends, axis=0) - at[:-1, None]
    return Training(np.clip(left, 0, np.diff(at)[:, None]).astype(np.int32), loaded, saved, before)


def _advance(
    by_release: list[int], released: list[int], needed: list[int], lengths: list[int], lanes: int, after: list[int]
) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
    """Simulates the lanes. This loop takes most of the time of a plan.

    Args:
        by_release: ranks of the runs, ordered by the server step that produces their versions.
        released: how many of `by_release` can be trained before each server step.
        needed: by rank, the server step that waits for the run.
        lengths: by rank, local steps.
        lanes: see `make_plan`.
        after: by rank, the run that must not begin before this one is saved, or -1; empty if there is none.

    Returns:
        The instants at which the segments begin and the last one ends, in local steps; per run its load, and its save,
        as segment · number of runs + rank; the server step that follows each segment; by rank, the lane.
    """
    push, pop = heapq.heappush, heapq.heappop
    total = len(lengths)
    missing = np.bincount(np.asarray(needed, np.int64), minlength=len(released)).tolist()
    waiting, idle, working = list[int](), list(range(lanes)), list[int]()  # `working`: ends in local steps · L + lane
    run_of, lane_of = [0] * lanes, [0] * total
    loads, saves, steps, instants = list[int](), list[int](), list[int](), [0]
    load, save = loads.append, saves.append
    waits = [0] * total  # by rank, 1 until the run is released, and 1 until the run before it is saved
    for rank in after:
        if rank >= 0:
            waits[rank] = 1
    begin = now = base = 0
    for step, end in enumerate(released):
        while missing[step]:
            for rank in by_release[begin:end]:
                if waits[rank]:
                    waits[rank] = 0
                else:
                    push(waiting, rank)
            begin = max(begin, end)
            while waiting and idle:
                lane, rank = pop(idle), pop(waiting)
                load(base + rank)
                lane_of[rank] = lane
                run_of[lane] = rank
                push(working, (now + lengths[rank]) * lanes + lane)
            # until a lane can load the next pending run, or, with none pending, this step has all its updates
            until = working[0] if waiting else max(one for one in working if needed[run_of[one % lanes]] == step)
            now = until // lanes
            bound = (now + 1) * lanes
            while working and working[0] < bound:
                lane = pop(working) % lanes
                rank = run_of[lane]
                save(base + rank)
                push(idle, lane)
                missing[needed[rank]] -= 1
                if after and (then := after[rank]) >= 0:
                    if waits[then]:
                        waits[then] = 0
                    else:
                        push(waiting, then)
            instants.append(now)
            steps.append(step)
            base += total
    return instants, loads, saves, steps, lane_of


def _place(
    schedule: Schedule, runs: Runs, training: Training, keep_base: bool, origin: Origin, held: tuple[int, ...]
) -> Plan:
    """Assigns ring slots to versions and store rows to updates, by their lifetimes."""
    active, loads, saves, before = training
    start, end, mask = origin.step, origin.step + schedule.server_steps, schedule.mask
    arrived = runs.arrival[mask]
    # the server step after each segment
    during = start + np.searchsorted(before[:-1], np.arange(len(active)), side="right")
    saved = during[saves.segments]
    uses = [(runs.version[loads.runs], during[loads.segments]), (runs.reference[saves.runs], saved)]
    if keep_base:
        uses.append((runs.reference[arrived], start + np.nonzero(mask)[0]))
    versions, slots, used = _ring_slots(uses, origin, end, held)
    slot, reference_slot = slots[np.searchsorted(versions, (runs.version, runs.reference))]
    row_of, rows, in_order = _rows(runs, saves, saved)
    load = functools.partial(_table, active.shape, (loads.segments, loads.lanes), loads.runs)
    save = functools.partial(_table, active.shape, (saves.segments, saves.lanes), saves.runs)
    timing = Timing(runs.first_step - runs.reference, runs.duration, runs.version, runs.first_step, runs.started)
    segments = Segments(
        active=active,
        loads=load(np.ones(len(slot))) > 0,
        load_slot=load(slot),
        load_client=load(runs.client),
        load_run=load(runs.run),
        load_timing=jax.tree.map(load, timing),
        saves=save(np.ones(len(slot))) > 0,
        save_slot=save(reference_slot),
        save_row=save(row_of),
    )
    own = {}  # the clock's columns that are numbers
    for name, values in schedule.columns.items():
        if values.dtype.kind in "biuf":
            own[name] = getattr(schedule, name).astype(np.float32 if values.dtype.kind == "f" else np.int32)
    steps = Steps(
        segments_before=before,
        time=schedule.time.astype(np.float32),
        mask=mask,
        update_row=_table(mask.shape, mask, arrived, row_of),
        client=schedule.client,
        staleness=schedule.staleness,
        local_steps=schedule.local_steps,
        multiplicity=schedule.multiplicity,
        kind=schedule.kind,
        base_slot=_table(mask.shape, mask, arrived, reference_slot) * keep_base,
        write_slot=slots[versions > start].astype(np.int32),
        columns=own or None,
    )
    # lanes without work, and without a run that ends, have no local steps to compare
    most = active.max(axis=1, initial=0, keepdims=True)
    uniform = bool(((active == most) | (active == 0) & ~segments.saves).all())
    kept = np.isin(versions, (*held, end))
    after = dict(zip(versions[kept].tolist(), slots[kept].tolist(), strict=True))
    needed = int(runs.local_steps.sum())
    return Plan(segments, steps, active.shape[1], used, rows, in_order, needed, uniform, origin, after)


def _ring_slots(
    uses: list[tuple[np.ndarray, np.ndarray]], origin: Origin, end: int, held: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, int]:
    """Assigns a ring slot to each version from its server step to its last use.

    Args:
        uses: pairs of a version and the server step after which this use has ended.
        origin: beginning of the plan, with the slots of the versions in the ring.
        end: last version of the plan.
        held: versions that are kept in the ring at the end.

    Returns:
        The versions in increasing order; their slots, 0 for those that are neither read nor written; the number of
        slots.
    """
    older = np.sort(np.fromiter(origin.slots, np.int64))  # up to version origin.step
    versions = np.concatenate([older, np.arange(origin.step + 1, end + 1)])
    last, placed = versions.copy(), versions >= origin.step
    for which, at in uses:
        index = np.searchsorted(versions, which)
        if len(gone := which[versions[index] != which]):
            gone = sorted({*gone.tolist()})
            raise UserError(f"the run cannot go on: the clock's `held` did not name the versions {gone}")
        np.maximum.at(last, index, at)
        placed[index] = True
    keep = np.isin(versions, held)
    last[keep] = end + 1
    placed |= keep
    occupied = list(map(origin.slots.__getitem__, older[placed[: len(older)]].tolist()))
    slots = np.zeros(len(versions), np.int64)
    slots[placed], used = _places(versions[placed] - 1, last[placed], occupied)
    return versions, slots, used


def _rows(runs: Runs, saves: Moves, saved: np.ndarray) -> tuple[np.ndarray, int, bool]:
    """Assigns a row of the store to every update.

    The store holds exactly the updates of one server step, in the order of its arrivals, if all steps are full and each
    update is trained just before the only step that consumes it.

    Args:
        runs, saves: see `_place`.
        saved: server step after each save.

    Returns:
        The rows; their number; True if they are in the order of arrival.
    """
    once = (runs.arrival >= 0).all() and len(runs.client) == runs.arrival.size
    in_order = bool(once and (saved == runs.last_step[saves.runs]).all())
    row_of, width = np.zeros(len(runs.client), np.int64), max(runs.arrival.shape[1], 1)
    if in_order:
        row_of[runs.arrival] = np.arange(runs.arrival.shape[1])
        return row_of, width, True
    row_of[saves.runs], rows = _places(saved, runs.last_step[saves.runs] + 1)
    return row_of, rows or width, False  # without any training, one row per arrival


def _places(first: np.ndarray, last: np.ndarray, occupied: Sequence[int] = ()) -> tuple[list[int], int]:
    """Assigns a numbered place to each item; the place returned last is taken first. Returns the places and their
    number.

    Args:
        first: int [m], not decreasing: the instant when each item takes its place.
        last: int [m]: the instant when it returns the place, before other items take places at this instant.
        occupied: places of the first items.
    """
    places, begin = list(occupied), len(occupied)
    total = max(occupied, default=-1) + 1 + len(first)
    free = sorted({*range(total)}.difference(occupied), reverse=True)  # a stack: unused places lie at its end
    leaving = np.argsort(last, kind="stable")
    before = np.maximum(np.searchsorted(first, last[leaving]), begin) - begin  # departures precede entries
    give, get, take = free.append, free.pop, places.append
    for item in np.insert(np.arange(begin, len(first)), before, ~leaving).tolist():
        if item < 0:
            give(places[~item])
        else:
            take(get())
    return places, max(places, default=-1) + 1


def _table(shape: tuple[int, ...], index: Any, runs: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns an array of zeros, int32 or float32, with the values of runs at `index`; `values` are of all runs."""
    table: np.ndarray = np.zeros(shape, np.float32 if values.dtype.kind == "f" else np.int32)
    table[index] = values[runs]
    return table
