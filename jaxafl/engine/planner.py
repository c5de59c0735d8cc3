"""From a schedule to a plan: which runs are trained together, from which ring slot, and where everything is kept.

An update depends only on the version its run started from, known when it STARTS, and is not needed until it is
consumed. So the planner trains, in L *lanes*, all runs that have started and will be consumed, in the order of their
latest starts, and lets server steps run until the next needed update is missing. A lane whose run ends loads the next
pending run while the others go on (as in continuous batching), so that clients with very different numbers of local
steps do not wait for each other.

A plan is a list of *segments* (every lane makes up to a given number of local steps) between server steps: index arrays
known before compilation, so that no control flow on the device depends on data. Where versions and updates are kept
meanwhile: `placement`.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from jaxafl.clock import Schedule
from jaxafl.clock.tables import cut
from jaxafl.engine.placement import Moves, Runs, Training, place
from jaxafl.engine.plan import ORIGIN, Origin, Plan


def make_plan(
    schedule: Schedule,
    *,
    lanes: int = 1,
    keep_base: bool,
    origin: Origin | None = None,
    homes: int = 1,
    stores: int = 1,
) -> Plan:
    """Plans the training of a schedule.

    Args:
        schedule: who arrives at every server step.
        lanes: L, the most runs that are trained at once.
        keep_base: whether the server reads x_s, so that it must be kept until the update is taken.
        origin: where the plan begins, nothing being trained yet of what is taken afterwards; its end then keeps what
            another plan needs to begin there. `None`: at the first server step of a run that ends with the last one.
        homes: D devices that hold what is their clients' own, each ⌈N/D⌉ clients; a divisor of L. Device d has the
            lanes congruent to it modulo D, in which the runs of its clients are trained.
        stores: D devices that keep the updates of their own lanes, each in rows of its own.

    The results of a plan do not depend on `lanes`, `origin`, `homes` and `stores`.
    """
    held, origin = ((), ORIGIN) if origin is None else (schedule.held, origin)
    schedule = cut(schedule, origin.step, schedule.start + schedule.server_steps)
    runs = _taken_runs(schedule)
    training = _train(schedule.server_steps, runs, lanes, origin.step, homes, schedule.num_clients)
    return place(schedule, runs, training, lanes, keep_base, origin, held, stores)


def _taken_runs(schedule: Schedule) -> Runs:
    """The runs that the server steps take; one that an earlier step has taken too is trained again."""
    mask = schedule.mask
    run_id, first, inverse = np.unique(schedule.run_id[mask], return_index=True, return_inverse=True)
    step_of = schedule.start + np.nonzero(mask)[0]
    last = np.zeros(len(run_id), np.int64)
    np.maximum.at(last, inverse, step_of)
    arrival = np.full(mask.shape, -1)
    arrival[mask] = inverse
    names = ("client", "run", "version", "reference", "local_steps")
    columns = {name: getattr(schedule, name)[mask][first] for name in names}
    duration = (schedule.arrived - schedule.started)[mask][first]
    return Runs(**columns, duration=duration, first_step=step_of[first], last_step=last, arrival=arrival)


def _train(server_steps: int, runs: Runs, lanes: int, start: int, homes: int, clients: int) -> Training:
    """Plans the training of lanes between server steps, which are counted from `start` here."""
    release = np.maximum(np.maximum(runs.version, runs.reference) - start, 0)
    # a run that pins two versions (measured against another than it trains from) is trained at once, to let one go
    needed_at = np.where(runs.version != runs.reference, release, runs.first_step - start)
    # Work is counted in local steps of all lanes together. A run needed at step t should start, at the latest, its own
    # length before the work due up to t is done; so a long run starts early instead of keeping the other lanes waiting.
    due = np.bincount(needed_at, runs.local_steps, server_steps + 1)
    order = np.argsort(np.cumsum(due)[needed_at] / lanes - runs.local_steps, kind="stable")
    rank, by_release = np.empty_like(order), np.argsort(release, kind="stable")
    rank[order] = np.arange(len(order))  # runs are known by their rank from here on
    pending = _Pending(
        ranks=rank[by_release].tolist(),
        ends=np.searchsorted(release[by_release], np.arange(server_steps), side="right").tolist(),
        needed=needed_at[order].tolist(),
        lengths=runs.local_steps[order].tolist(),
        homes=(runs.client[order] // -(-clients // homes)).tolist(),
    )
    instants, loads, into, saves, steps = _advance(pending, lanes, homes)
    preceding = np.searchsorted(np.asarray(steps), np.arange(server_steps + 1), side="right").astype(np.int32)
    lane = np.empty_like(order)
    lane[loads.ranks] = into
    loaded, saved = _moves(loads, lane, order), _moves(saves, lane, order)
    return Training(_active(loaded, runs, np.asarray(instants), lanes), loaded, saved, preceding)


class _Pending(NamedTuple):
    """Runs to be trained; a run is identified by its rank, the order in which lanes take it."""

    ranks: list[int]  # of the runs, in the order in which the versions are made that they need
    ends: list[int]  # of each server step: how many of those can be trained before it
    needed: list[int]  # by rank: the server step that waits for it
    lengths: list[int]  # by rank: local steps
    homes: list[int]  # by rank: the device of its client


class _Events(NamedTuple):
    """Runs that lanes load, or save, in order."""

    ranks: list[int]
    ends: list[int]  # of each segment: how many until then


def _advance(pending: _Pending, lanes: int, homes: int) -> tuple[list[int], _Events, list[int], _Events, list[int]]:
    """The instants, in local steps, between which the segments lie; what they load, into which lanes, and save; and the
    server step (of those that `pending` knows) that each precedes. This loop is most of what a plan takes."""
    needed, lengths, home_of = pending.needed, pending.lengths, pending.homes
    push, pop = heapq.heappush, heapq.heappop
    missing = np.bincount(np.asarray(needed, np.int64), minlength=len(pending.ends)).tolist()
    # runs that wait for a lane, idle lanes, and when the others end their run, in local steps, times L, plus the lane
    devices: list[tuple[list[int], ...]] = [([], list(range(home, lanes, homes)), []) for home in range(homes)]
    queues, run_of, into = [waiting for waiting, _, _ in devices], [0] * lanes, list[int]()
    (loaded, load_ends), (saved, save_ends) = loads, saves = _Events([], []), _Events([], [])
    load, lend, save, steps, begin, now, instants = loaded.append, into.append, saved.append, list[int](), 0, 0, [0]
    for step, end in enumerate(pending.ends):
        while missing[step]:
            if begin < end:
                for rank in pending.ranks[begin:end]:
                    push(queues[home_of[rank]], rank)
                begin = end
            until = -1
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
            load_ends.append(len(into))
            save_ends.append(len(saved))
            steps.append(step)
    return instants, loads, into, saves, steps


def _moves(events: _Events, lane: np.ndarray, order: np.ndarray) -> Moves:
    """The runs in the order of their segments and, within one, of their lanes, which are given by rank."""
    ranks, ends = (np.asarray(column, np.int64) for column in events)
    lanes = lane[ranks]
    begins = np.concatenate([np.zeros(1, np.int64), ends])[:-1]
    segments = np.repeat(np.arange(len(ends)), ends - begins)
    in_order = np.argsort(segments * (lanes.max(initial=0) + 1) + lanes, kind="stable")
    return Moves(order[ranks[in_order]], lanes[in_order], segments, np.arange(len(segments)) - begins[segments])


def _active(loads: Moves, runs: Runs, instants: np.ndarray, lanes: int) -> np.ndarray:
    """Local steps of each segment and lane: up to the end of the lane's last run, as long as the segment lasts."""
    ends = np.zeros((len(instants) - 1, lanes), np.int64)
    ends[loads.segments, loads.lanes] = instants[loads.segments] + runs.local_steps[loads.runs]
    left = np.maximum.accumulate(ends, axis=0) - instants[:-1, None]
    return np.clip(left, 0, np.diff(instants)[:, None]).astype(np.int32)
