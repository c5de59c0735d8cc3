"""Planning: which runs are trained together, from which ring slot, and where versions and updates are stored.

An update depends only on the version its run started from, known when the run starts, and is not needed until it is
consumed. The planner trains, in L *lanes*, all runs that have started and will be consumed, in the order of their
latest starts, and lets server steps proceed until the next needed update is missing. A lane whose run ends loads the
next pending run while the others continue (as in continuous batching), so clients with very different numbers of local
steps do not wait for each other.

A plan is a list of *segments* (every lane makes up to a given number of local steps) between server steps: index arrays
known before compilation, so that no control flow on the device depends on data. `placement` assigns ring slots and
store rows.
"""

from __future__ import annotations

import heapq

import numpy as np

from jaxafl.client import Turns
from jaxafl.clock import Schedule
from jaxafl.clock.schedule import cut
from jaxafl.engine.placement import Moves, Runs, Training, place
from jaxafl.engine.plan import ORIGIN, Origin, Plan


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
        origin: beginning of the plan, before which no run is trained that is consumed afterwards; the plan's end then
            keeps the versions from which another plan can continue. `None`: the first server step of a run that ends
            with the last one.
        in_turn: order of the runs of a client. If clients keep something from run to run, a run is trained after the
            previous one of its client, and completed runs that no server step takes are trained, too.
    """
    held, origin = ((), ORIGIN) if origin is None else (schedule.held, origin)
    schedule = cut(schedule, origin.step, schedule.start + schedule.server_steps)
    runs = _consumed_runs(schedule)
    if in_turn:
        runs = _with_untaken(runs, schedule)
    training = _train(schedule.server_steps, runs, lanes, origin.step, in_turn)
    return place(schedule, runs, training, keep_base, origin, held)


def _consumed_runs(schedule: Schedule) -> Runs:
    """Returns the runs that the server steps consume. A run that a step before the schedule consumed is trained
    again."""
    mask = schedule.mask
    run_id, first, inverse = np.unique(schedule.run_id[mask], return_index=True, return_inverse=True)
    step_of = schedule.start + np.nonzero(mask)[0]
    last = np.zeros(len(run_id), np.int64)
    np.maximum.at(last, inverse, step_of)
    arrival = np.full(mask.shape, -1)
    arrival[mask] = inverse
    names = ("client", "run", "version", "reference", "local_steps", "started")
    columns = {name: getattr(schedule, name)[mask][first] for name in names}
    duration = (schedule.arrived - schedule.started)[mask][first]
    return Runs(**columns, duration=duration, first_step=step_of[first], last_step=last, arrival=arrival)


def _with_untaken(runs: Runs, schedule: Schedule) -> Runs:
    """Returns the runs and those that clients complete and no server step takes."""
    more = schedule.unused.completed
    columns = more._asdict() | {"duration": more.ended - more.started, "first_step": more.step, "last_step": more.step}
    names = [name for name in Runs._fields if name != "arrival"]
    both = {name: np.concatenate([getattr(runs, name), columns[name]]) for name in names}
    return Runs(**both, arrival=runs.arrival)


def _chains(runs: Runs, release: np.ndarray, needed_at: np.ndarray, steps: int) -> tuple[np.ndarray, ...]:
    """Returns the next run of each run's client, -1 if there is none, and when runs are released and needed in turn.

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
    # a run that pins two versions (its update is relative to another) is trained at once, to release one of them
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
    loaded, saved = (_moves(events, np.asarray(lane_of, np.int64), order) for events in (loads, saves))
    return Training(_active(loaded, runs, np.asarray(instants), lanes), loaded, saved, before)


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
        The instants between which the segments lie, in local steps; the loads and the saves, each as the segment's
        index times the number of runs plus the rank; the server step that each segment precedes; by rank, the lane.
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
            until = working[0] if waiting else max(end for end in working if needed[run_of[end % lanes]] == step)
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


def _moves(events: list[int], lane_of: np.ndarray, order: np.ndarray) -> Moves:
    """Returns loads or saves, ordered by segment and lane; `events`, `lane_of`: of `_advance`."""
    segments, ranks = np.divmod(np.asarray(events, np.int64), max(len(order), 1))
    lanes = lane_of[ranks]
    in_order = np.argsort(segments * (lanes.max(initial=0) + 1) + lanes, kind="stable")
    return Moves(order[ranks[in_order]], lanes[in_order], segments)


def _active(loads: Moves, runs: Runs, instants: np.ndarray, lanes: int) -> np.ndarray:
    """Returns the local steps [S, L] of each segment and lane: up to the end of the lane's run or of the segment."""
    ends = np.zeros((len(instants) - 1, lanes), np.int64)
    ends[loads.segments, loads.lanes] = instants[loads.segments] + runs.local_steps[loads.runs]
    left = np.maximum.accumulate(ends, axis=0) - instants[:-1, None]
    return np.clip(left, 0, np.diff(instants)[:, None]).astype(np.int32)
