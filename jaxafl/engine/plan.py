"""Plan of a run: index arrays of the training and of the arrivals of server steps, known before compilation."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import types
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jaxtyping import Bool, Float32, Int32

from jaxafl.client import Timing
from jaxafl.options import Summarised

Indices: TypeAlias = Any  # NumPy arrays on the host, JAX arrays on the device


class Segments(NamedTuple):
    """Training, S segments of L lanes. Runs begin before the local steps of a segment, and end after them."""

    active: Int32[Indices, "*S L"]  # local steps of each lane in this segment; [S] if all active lanes have as many
    loads: Bool[Indices, "*S L"]  # lanes in which a run begins; None: all
    load_slot: Int32[Indices, "*S L"]  # ring slot of the version that the run trains from
    load_client: Int32[Indices, "*S L"]
    load_run: Int32[Indices, "*S L"]
    load_timing: Timing  # each field [S L], int32 or float32
    saves: Bool[Indices, "*S L"]  # lanes in which a run ends; None: all
    save_slot: Int32[Indices, "*S L"]  # ring slot of the version that the update is measured against
    save_row: Int32[Indices, "*S L"]  # row of the update store


class Steps(NamedTuple):
    """Server steps, T steps of A arrivals. Columns that a program does not read are None on the device."""

    segments_before: Int32[Indices, "*T1"]  # segments executed before step t, and before the end
    time: Float32[Indices, "*T"]  # simulated seconds
    mask: Bool[Indices, "*T A"]  # None: every step has A arrivals
    update_row: Int32[Indices, "*T A"]  # row of the update in the store; None: row i is arrival i
    client: Int32[Indices, "*T A"]
    staleness: Int32[Indices, "*T A"]  # t - reference
    local_steps: Int32[Indices, "*T A"]
    multiplicity: Int32[Indices, "*T A"]
    kind: Int32[Indices, "*T A"]
    base_slot: Int32[Indices, "*T A"]  # ring slot of x_s, which the update is measured against; None: not read
    write_slot: Int32[Indices, "*T"]  # ring slot that x_{t+1} is written to
    columns: dict[str, Indices] | None = None  # of the clock, [T] or [T, A]; None: it has none


class LoopRows(NamedTuple):
    """Rows of the loop that executes a plan: each trains some segments and then takes some server steps."""

    segment: Int32[Indices, "*R"]  # first segment; with plans of their own [P, R]
    segments: Int32[Indices, "*R"]  # number of segments; None: one
    step: Int32[Indices, "*R"]  # first server step; with plans of their own [P, R]
    steps: Int32[Indices, "*R"] = None  # number of steps of a member [P, R]; None: one
    most_steps: Int32[Indices, "*R"] = None  # the largest of them; None: one
    local_steps: Int32[Indices, "*R"] = None  # the most local steps of a lane of any member; None: one plan


class Tables(NamedTuple):
    """A plan on the device."""

    segments: Segments
    steps: Steps
    rows: LoopRows
    origin: Int32[Indices, ""]  # the server step of the first entry, and its row; 0 in lockstep

    @property
    def axes(self) -> Any:
        """The member axes, in the form of `in_axes`, if members have plans of their own; else None."""
        several = self.rows.step.ndim == 2
        return Tables(0, 0, LoopRows(0, None, 0, 0, None, None), None) if several else None  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Plan(Summarised):
    """Index arrays that the engine executes: some or all server steps of a run, from its origin on.

    Attributes:
        segments: the training.
        steps: the server steps.
        lanes: L.
        slots: ring slots used.
        rows: rows of the update store.
        in_order: True if row i of the store is arrival i of every server step.
        needed: local steps of all runs, without masked ones.
        uniform: True if all active lanes of every segment make the same number of local steps.
        origin: server steps before the plan, and the ring slot of every version that is kept from there.
        kept: version -> ring slot at the end, for the newest version and those that later steps may need.
    """

    segments: Segments
    steps: Steps
    lanes: int
    slots: int
    rows: int
    in_order: bool
    needed: int
    uniform: bool
    origin: Origin
    kept: dict[int, int]

    @property
    def rows_of_loop(self) -> LoopRows:
        """The loop's rows: one server step each."""
        before: Any = self.steps.segments_before
        first = np.insert(before[:-2], 0, 0)[: len(self.steps.time)]
        steps = self.origin.step + np.arange(len(first), dtype=np.int32)
        return LoopRows(first, before[:-1] - first, steps)

    @functools.cached_property
    def digest(self) -> str:
        """A fingerprint: equal for plans that train the same runs in the same places."""
        arrays = map(np.ascontiguousarray, jax.tree.leaves((self.segments, self.steps)))
        return hashlib.sha256(b"".join([repr(leaf.shape).encode() + leaf.tobytes() for leaf in arrays])).hexdigest()

    def summary(self) -> dict[str, Any]:
        """Returns the sizes of the plan."""
        names = ("lanes", "slots", "rows", "needed", "runs")
        return {"server_steps": len(self.steps.time)} | {name: getattr(self, name) for name in names}

    @property
    def runs(self) -> int:
        """Number of trained runs."""
        return int(self.segments.loads.sum())

    def executed(self, chunk: int) -> int:
        """Returns the executed local steps, masked ones included, if `chunk` lanes advance in one `vmap`."""
        groups = self.segments.active.reshape(len(self.segments.active), -1, chunk)
        return int(groups.max(axis=2).sum()) * chunk


class Origin(NamedTuple):
    """The beginning of a plan: server steps taken before it, and the slot of each version in the ring."""

    step: int = 0
    slots: Mapping[int, int] = types.MappingProxyType({0: 0})


ORIGIN = Origin()
