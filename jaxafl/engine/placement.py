"""Allocation of ring slots to versions and of store rows to updates, by their lifetimes.

Reading a version that is gone is impossible by construction.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxafl.clock import Schedule
from jaxafl.engine.plan import Origin, Plan, Segments, Steps
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


def place(
    schedule: Schedule,
    runs: Runs,
    training: Training,
    keep_base: bool,
    origin: Origin,
    held: tuple[int, ...],
) -> Plan:
    """Assigns ring slots to versions and store rows to updates, by their lifetimes."""
    active, loads, saves, before = training
    start, end, mask = origin.step, origin.step + schedule.server_steps, schedule.mask
    arrived, at_arrivals = runs.arrival[mask], functools.partial(_table, mask.shape, mask)
    # the server step after each segment
    during = start + np.searchsorted(before[:-1], np.arange(len(active)), side="right")
    loaded, saved = during[loads.segments], during[saves.segments]
    uses = [(runs.version[loads.runs], loaded), (runs.reference[saves.runs], saved)]
    if keep_base:
        uses.append((runs.reference[arrived], start + np.nonzero(mask)[0]))
    versions, slots, used = _ring_slots(uses, origin, end, held)

    def slot_of(read: np.ndarray) -> np.ndarray:
        return slots[np.searchsorted(versions, read)]

    def entries(what: str, moves: Moves, **columns: np.ndarray) -> dict[str, np.ndarray]:
        at = functools.partial(_table, active.shape, (moves.segments, moves.lanes))
        return {f"{what}s": at(np.ones(len(moves.runs))) > 0} | {f"{what}_{name}": at(v) for name, v in columns.items()}

    row_of, rows, in_order = _rows(runs, saves, saved)
    begun = {name: getattr(runs, name)[loads.runs] for name in ("client", "run", "duration", "version", "started")}
    begun["server_step"] = runs.first_step[loads.runs]
    begun["staleness"] = begun["server_step"] - runs.reference[loads.runs]
    begins = entries("load", loads, slot=slot_of(runs.version[loads.runs]), **begun)
    ends = entries("save", saves, slot=slot_of(runs.reference[saves.runs]), row=row_of[saves.runs])
    names = ("mask", "client", "staleness", "local_steps", "multiplicity", "kind")
    steps = Steps(
        segments_before=before,
        time=schedule.time.astype(np.float32),
        update_slot=at_arrivals(row_of[arrived]),
        base_slot=at_arrivals(slot_of(runs.reference[arrived]) * keep_base),
        write_slot=slots[versions > start].astype(np.int32),
        **{name: getattr(schedule, name) for name in names},
    )
    needed = int(runs.local_steps.sum())
    kept = np.isin(versions, (*held, end))
    after = dict(zip(versions[kept].tolist(), slots[kept].tolist(), strict=True))
    segments = Segments(active=active, **begins, **ends)
    return Plan(segments, steps, active.shape[1], used, rows, in_order, needed, *_uniform(training), origin, after)


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
    occupied = [origin.slots[version] for version in versions[placed].tolist() if version <= origin.step]
    slots = np.zeros(len(versions), np.int64)
    slots[placed], used = _places(versions[placed] - 1, last[placed], occupied)
    return versions, slots, used


def _rows(runs: Runs, saves: Moves, saved: np.ndarray) -> tuple[np.ndarray, int, bool]:
    """Assigns a row of the store to every update.

    The store holds exactly the updates of one server step, in the order of its arrivals, if all steps are full and each
    update is trained just before the only step that consumes it.

    Args:
        runs, saves: see `place`.
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


def _uniform(training: Training) -> tuple[bool, int | None]:
    """Returns True if all runs of a segment, those without local steps too, make the same number of local steps in it;
    and this number, if it is the same in all segments."""
    active, saves = training.active, training.saves
    counted = active > 0
    counted[saves.segments, saves.lanes] = True
    most = np.max(active, axis=1, initial=0, keepdims=True)
    uniform = bool((np.where(counted, active, most) == most).all())
    return uniform, (int(most.max()) or None) if uniform and most.size and most.min() == most.max() else None


def _places(first: np.ndarray, last: np.ndarray, occupied: Sequence[int] = ()) -> tuple[list[int], int]:
    """Assigns a numbered place to each item; the place returned last is taken first. Returns the places and their
    number.

    Args:
        first: int [m], not decreasing: the instant when each item takes its place.
        last: int [m]: the instant when it returns the place, before other items take places at this instant.
        occupied: places of the first items.
    """
    places, begin, taken = list(occupied), len(occupied), {*occupied}
    total = max(occupied, default=-1) + 1 + len(first)
    free = [place for place in range(total - 1, -1, -1) if place not in taken]  # a stack: unused places lie at its end
    leaving = np.argsort(last, kind="stable")
    before = np.maximum(np.searchsorted(first, last[leaving]), begin) - begin  # departures precede entries
    give, get, take = free.append, free.pop, places.append
    for item in np.insert(np.arange(begin, len(first)), before, ~leaving).tolist():
        if item < 0:
            give(places[~item])
        else:
            take(get())
    return places, max(places, default=-1) + 1


def _table(shape: tuple[int, ...], index: Any, values: np.ndarray) -> np.ndarray:
    """Returns an array of zeros, int32 or float32, with `values` at `index`."""
    table: np.ndarray = np.zeros(shape, np.float32 if values.dtype.kind == "f" else np.int32)
    table[index] = values
    return table
