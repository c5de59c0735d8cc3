"""Allocation of ring slots to versions and of store rows to updates, by their lifetimes.

Reading a version that is gone is impossible by construction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxafl.clock import Schedule
from jaxafl.engine.plan import Origin, Plan, Segments, Steps
from jaxafl.options import UserError


class Runs(NamedTuple):
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


class Moves(NamedTuple):
    """Runs that lanes load, or save, in the order in which they do."""

    runs: np.ndarray
    lanes: np.ndarray
    segments: np.ndarray  # in which
    places: np.ndarray  # among those of the segment


class Training(NamedTuple):
    active: np.ndarray  # [S, L]: local steps that a lane makes
    loads: Moves
    saves: Moves
    before: np.ndarray  # segments that precede each server step, and the end


def place(
    schedule: Schedule,
    runs: Runs,
    training: Training,
    lanes: int,
    keep_base: bool,
    origin: Origin,
    held: tuple[int, ...],
    stores: int,
) -> Plan:
    """Assigns ring slots to versions and store rows to updates, by their lifetimes."""
    active, loads, saves, before = training
    steps, start, count = schedule.server_steps, origin.step, len(training.active)
    step_of, entry_of = np.nonzero(schedule.mask)
    arrived = runs.arrival[step_of, entry_of]
    # the server step before which a segment runs
    during = start + np.searchsorted(before[:-1], np.arange(count), side="right")
    older = np.sort(np.fromiter(origin.slots, np.int64))  # the last of them is x_start
    versions = np.concatenate([older, np.arange(start + 1, start + steps + 1)])  # in the order in which they are made

    def place_of(read: np.ndarray) -> np.ndarray:
        """Among the versions."""
        return np.where(read > start, read - start + len(older) - 1, np.searchsorted(older, read))

    last, read = versions.copy(), np.zeros(len(versions), bool)  # the step after whose update a version is not needed
    uses = [(runs.version[loads.runs], during[loads.segments]), (runs.reference[saves.runs], during[saves.segments])]
    for which, at in [*uses, (runs.reference[arrived], start + step_of)] if keep_base else uses:
        if len(gone := which[versions[place_of(which)] != which]):
            gone = sorted({*gone.tolist()})
            raise UserError(f"the run cannot go on: the clock's `held` did not name the versions {gone}")
        np.maximum.at(last, place_of(which), at)
        read[place_of(which)] = True
    keep = np.isin(versions, held)
    last[keep], read[keep] = start + steps + 1, True
    keep[-1] = True
    made = np.flatnonzero(read | (versions >= start))
    there = [origin.slots[version] for version in versions[made].tolist() if version <= start]
    slots, used = _places(versions[made] - 1, last[made], there)
    slot_of = np.zeros(len(versions), np.int64)
    slot_of[made] = slots
    if used > max(schedule.ring_slots, len(held) + 1):
        raise RuntimeError(f"the plan needs {used} ring slots, the clock declares {schedule.ring_slots}")
    kept = dict(zip(versions[keep].tolist(), slot_of[keep].tolist(), strict=True))
    row, lane, base_slot = (np.zeros(schedule.mask.shape, np.int32) for _ in range(3))
    lane_of = np.zeros(len(runs.client), np.int32)
    lane_of[saves.runs] = saves.lanes
    lane[step_of, entry_of] = lane_of[arrived]
    in_order = _in_order(schedule, runs, saves, during)
    row_of, rows = _rows(runs, saves, during, lane, stores, in_order)

    def entries(what: str, moves: Moves, **columns: np.ndarray) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {f"{what}_count": np.bincount(moves.segments, minlength=count).astype(np.int32)}
        for name, values in columns.items():
            table: np.ndarray = np.zeros((count, lanes), np.float32 if values.dtype.kind == "f" else np.int32)
            table[moves.segments, moves.places] = values
            found[f"{what}_{name}"] = table
        return found

    begun = {name: getattr(runs, name)[loads.runs] for name in ("client", "run", "duration")}
    begun["staleness"] = (runs.first_step - runs.reference)[loads.runs]
    begins = entries("load", loads, lane=loads.lanes, slot=slot_of[place_of(runs.version[loads.runs])], **begun)
    measured = slot_of[place_of(runs.reference[saves.runs])]
    ends = entries("save", saves, lane=saves.lanes, slot=measured, row=row_of[saves.runs])
    row[step_of, entry_of] = row_of[arrived]
    base_slot[step_of, entry_of] = slot_of[place_of(runs.reference[arrived])] if keep_base else 0
    write_slot = slot_of[len(older) :].astype(np.int32)
    names = ("mask", "client", "staleness", "local_steps", "multiplicity", "kind")
    columns = {name: getattr(schedule, name) for name in names} | {"time": schedule.time.astype(np.float32)}
    taken = Steps(
        segments_before=before, update_slot=row, lane=lane, base_slot=base_slot, write_slot=write_slot, **columns
    )
    trained, needed = Segments(active=active, **begins, **ends), int(runs.local_steps.sum())
    return Plan(trained, taken, lanes, used, rows, in_order, needed, *_uniform(training), origin, kept)


def _rows(
    runs: Runs, saves: Moves, during: np.ndarray, lane: np.ndarray, stores: int, in_order: bool
) -> tuple[np.ndarray, int]:
    """Assigns a row to every update, separately for each of `stores` devices. Returns the rows, and the number of rows
    that a device needs; `lane`: lane of each arrival."""
    row_of, rows = np.zeros(len(runs.client), np.int64), 0
    for store in range(stores):
        if in_order:
            own = (runs.arrival >= 0) & (lane % stores == store)
            row_of[runs.arrival[own]] = (np.cumsum(own, axis=1) - 1)[own]
            found = int(own.sum(axis=1).max(initial=0))
        else:
            mine = saves.lanes % stores == store
            whose = saves.runs[mine]
            row_of[whose], found = _places(during[saves.segments[mine]], runs.last_step[whose] + 1)
        rows = max(rows, found)
    return row_of, rows or lane.shape[1]  # of as many as arrive where nothing is trained


def _in_order(schedule: Schedule, runs: Runs, saves: Moves, during: np.ndarray) -> bool:
    """Returns True if the store can hold exactly the updates of one server step, in the order of its arrivals: all
    steps are full, and each update is trained just before the only step that consumes it."""
    at_once = during[saves.segments] == runs.last_step[saves.runs]
    once = len(runs.client) == np.count_nonzero(runs.arrival >= 0)
    return bool(schedule.mask.all()) and once and bool(at_once.all())


def _uniform(training: Training) -> tuple[bool, int | None]:
    """Returns True if all runs of a segment, those without local steps too, make the same number of them in it, and
    that number, if it is the same in all segments."""
    active, saves = training.active, training.saves
    counted = active > 0
    counted[saves.segments, saves.lanes] = True
    most = np.max(active, axis=1, initial=0, keepdims=True)
    uniform = bool((np.where(counted, active, most) == most).all())
    return uniform, (int(most.max()) or None) if uniform and most.size and most.min() == most.max() else None


def _places(first: np.ndarray, last: np.ndarray, taken: Sequence[int] = ()) -> tuple[list[int], int]:
    """Returns a numbered place for each of several things, the one returned last, and the number of places.

    Args:
        first: int [m], not decreasing: when each takes its place.
        last: int [m]: when it gives it back, which comes first at any instant.
        taken: the places of the first of them.
    """
    places, count = list(taken), max(taken, default=-1) + 1
    free = sorted({*range(count)} - {*places}, reverse=True)
    leaving, here = np.argsort(last, kind="stable"), len(places)
    before = np.maximum(np.searchsorted(first, last[leaving]), here) - here  # leaves before others enter
    give, get, take = free.append, free.pop, places.append
    for who in np.insert(np.arange(here, len(first)), before, ~leaving).tolist():
        if who < 0:
            give(places[~who])
        elif free:
            take(get())
        else:
            take(count)
            count += 1
    return places, count
