"""The plan of a run: index arrays, known before compilation, of what is trained and of what server steps take."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import types
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Float32, Int32

from jaxafl.options import Summarised

Indices: TypeAlias = Any  # NumPy arrays on the host, JAX arrays on the device


class Segments(NamedTuple):
    """Training, S segments of L lanes. Loads come before the local steps of a segment, saves after them; the entries of
    the runs that begin, or end, come first in [S, L]."""

    active: Int32[Indices, "*S L"]  # local steps that a lane makes in this segment
    load_count: Int32[Indices, "*S"]  # how many runs begin
    load_lane: Int32[Indices, "*S L"]
    load_slot: Int32[Indices, "*S L"]  # ring slot of the version that the run trains from
    load_client: Int32[Indices, "*S L"]
    load_run: Int32[Indices, "*S L"]
    load_staleness: Int32[Indices, "*S L"]  # of the update at the first server step that takes it
    load_duration: Float32[Indices, "*S L"]  # simulated seconds that the run takes
    save_count: Int32[Indices, "*S"]  # how many runs end
    save_lane: Int32[Indices, "*S L"]
    save_slot: Int32[Indices, "*S L"]  # ring slot of the version that the update is measured against
    save_row: Int32[Indices, "*S L"]  # row of the update store


class Steps(NamedTuple):
    """Server steps, T steps of A arrivals (`segments_before` has one entry more in a whole plan)."""

    segments_before: Int32[Indices, "*T1"]  # segments that must have run before step t
    time: Float32[Indices, "*T"]  # simulated seconds
    mask: Bool[Indices, "*T A"]
    row: Int32[Indices, "*T A"]  # where the update is stored, on the device of its lane if each keeps its own
    lane: Int32[Indices, "*T A"]  # in which it was trained
    client: Int32[Indices, "*T A"]
    staleness: Int32[Indices, "*T A"]  # t - reference
    local_steps: Int32[Indices, "*T A"]
    multiplicity: Int32[Indices, "*T A"]
    kind: Int32[Indices, "*T A"]
    base_slot: Int32[Indices, "*T A"]  # ring slot of x_s, the version that the update is measured against
    write_slot: Int32[Indices, "*T"]  # ring slot that x_{t+1} is written to


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Plan(Summarised):
    """Index arrays that the engine executes: some or all server steps of a run, from its origin on.

    Attributes:
        segments: the training.
        steps: the server steps.
        lanes: L.
        slots: ring slots used, at most those that the clock declares.
        rows: rows of the update store (of each device's, if each keeps its own).
        in_order: whether they are, at every server step, what its A arrivals (of the device) are, in their order.
        needed: local steps that must be made.
        uniform: whether all active lanes of every segment make the same number of local steps.
        local_steps: that number, where it is the same in every segment and not 0; else `None`.
        origin: where it begins.
        kept: the versions that are still in the ring at its end, the newest and those that later steps may need; their
            slots.
    """

    segments: Segments
    steps: Steps
    lanes: int
    slots: int
    rows: int
    in_order: bool
    needed: int
    uniform: bool
    local_steps: int | None
    origin: Origin
    kept: dict[int, int]

    @property
    def segments_each(self) -> int | None:
        """How many segments precede each server step that is taken, where that is the same number and not 0."""
        before = np.diff(self.steps.segments_before[:-1], prepend=0)
        return (int(before.max()) or None) if before.size and before.min() == before.max() else None

    @functools.cached_property
    def digest(self) -> str:
        """Equal for plans that train the same runs in the same places."""
        arrays = [np.ascontiguousarray(leaf) for leaf in (*self.segments, *self.steps)]
        return hashlib.sha256(b"".join([repr(leaf.shape).encode() + leaf.tobytes() for leaf in arrays])).hexdigest()

    def summary(self) -> dict[str, Any]:
        """Its sizes."""
        names = ("lanes", "slots", "rows", "needed", "runs", "mean_width")
        return {"server_steps": len(self.steps.time)} | {name: getattr(self, name) for name in names}

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


class Origin(NamedTuple):
    """Where a plan begins: the server steps that have been taken, and the versions in the ring, each with its slot."""

    step: int = 0
    slots: Mapping[int, int] = types.MappingProxyType({0: 0})


ORIGIN = Origin()


def padded(segments: Segments, count: int) -> Segments:
    """The segments, with empty ones up to a power of two >= `count`, so that other seeds have the same shapes."""
    more = (1 << (count - 1).bit_length()) - len(segments.active)
    return Segments(*(np.pad(leaf, [(0, more)] + [(0, 0)] * (leaf.ndim - 1)) for leaf in segments))
