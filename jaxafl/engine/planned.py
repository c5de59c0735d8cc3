"""Runs with a precomputed schedule: their plan, in windows, for members that share it."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from jaxafl.client import Turns, turns_of
from jaxafl.clock import Delivery, Schedule
from jaxafl.clock.discarded import untaken
from jaxafl.clock.schedules import UNBOUNDED, Clockwork, check_length
from jaxafl.device import on_cpu, on_device, on_host
from jaxafl.engine.check import check_lanes, chunk_of
from jaxafl.engine.execute import advance
from jaxafl.engine.execution import Execution
from jaxafl.engine.plan import Origin, Plan, Tables, padded
from jaxafl.engine.planner import make_plan
from jaxafl.engine.prepare import prepared
from jaxafl.engine.problem import BufferSizes, Layout, Loops, Problem, Speed
from jaxafl.engine.state import State, first_model
from jaxafl.engine.width import MOST_LANES, lanes_in_memory
from jaxafl.engine.windows import Window, Windows, window_steps
from jaxafl.options import UserError
from jaxafl.server.contract import Server

_GAIN = 1.15  # local steps per second with twice the lanes on an accelerator; 1.04 to 1.3 times as many on an H200
_BLOCK = 10  # amortises the host sync of the loop predicate; at most 9 more steps run after a failure or Ctrl-C
_WIDTHS, _PADDED = (1, 8, 64), 32  # arrivals of narrow server steps, which are compiled if A is so many times larger


class Form(NamedTuple):
    """The columns that a program reads of a plan.

    Attributes:
        mask, update_slot, lane, base_slot: True if the program reads this column of `Steps`.
        timing: True if the program reads the columns of `Timing` in `Segments`.
        per_lane: True if `Segments.active` has an entry for each lane.
        local_steps, segments: trip counts, see `Loops`.
    """

    mask: bool
    update_slot: bool
    lane: bool
    base_slot: bool
    timing: bool
    per_lane: bool
    local_steps: int | None
    segments: int | None

    def joined(self, other: Form) -> Form:
        """Returns the form of a program that executes plans of both forms."""
        read = (mine or its for mine, its in zip(self[:6], other[:6], strict=True))
        return Form(*read, *(mine if mine == its else None for mine, its in zip(self[6:], other[6:], strict=True)))

    @property
    def trip_counts(self) -> dict[str, int | None]:
        """The static trip counts."""
        return {"local_steps": self.local_steps, "segments": self.segments}


def form_of(plan: Plan, shares: int, chunk: int, local_updates: bool, keep_base: bool, timing: bool) -> Form:
    """Returns the form of a plan; `chunk`: lanes per `vmap`, of those of one of `shares` devices."""
    per_lane = not plan.uniform or chunk == 1 or chunk < plan.lanes // shares
    lengths = known_lengths(local_steps=[plan.local_steps], segments=[plan.segments_per_step])
    slot = local_updates or not plan.in_order
    return Form(not plan.full, slot, local_updates, keep_base, timing, per_lane, **lengths)


def tables_of(plan: Plan, form: Form, rows: int, segments: int) -> Tables:
    """Returns a plan as a program of this form reads it, on the host, with room for so many rows and segments."""

    def longer(leaf: np.ndarray) -> np.ndarray:
        return np.pad(leaf, [(0, rows - len(leaf))] + [(0, 0)] * (leaf.ndim - 1))

    read = {name: getattr(plan.steps, name) if getattr(form, name) else None for name in Form._fields[:4]}
    steps = jax.tree.map(longer, plan.steps._replace(segments_before=None, **read))
    trained = padded(plan.segments, max(segments, len(plan.segments.active)))
    if not form.timing:
        trained = trained.without_timing
    if not form.per_lane:
        trained = trained._replace(active=trained.active.max(axis=1, initial=0))
    return Tables(trained, steps, jax.tree.map(longer, plan.rows_of_loop), np.int32(plan.origin.step))


def planned(
    problems: Sequence[Problem],
    source: Schedule | Clockwork,
    every: int,
    speed: Speed,
    origin: Origin | None = None,
    server_steps: int | None = None,
) -> Execution:
    """Prepares one run, or several that share plans: problems that differ in hyperparameters only.

    Args:
        problems: one per member.
        source: their schedule, or the clock that computes it.
        every: server steps between evaluations.
        speed: execution options.
        origin: the beginning of the first plan, see `make_plan`.
        server_steps: T, if a clock computes the schedule.
    """
    server_steps = source.server_steps if isinstance(source, Schedule) else cast(int, server_steps)
    first, layout = problems[0], problems[0].layout
    capacity, in_flight = (size(first.data.num_clients) for size in (first.clock.capacity, first.clock.in_flight))
    # a schedule that is charged anew must be there as a whole; sharded stores keep their size
    single_window = first.client.charge == "executed" or layout.mesh is not None
    in_turn = turns_of(first.client)
    if in_turn and Delivery.REPEATED in first.clock.delivers:  # else a later window would train a run again
        single_window = True
        if origin is not None and origin.step:
            raise UserError(
                f"run: a run on {first.clock.name} whose clients keep something from run to run cannot be extended; "
                "expected the server steps of the folder. Name another folder"
            )
    if in_turn and isinstance(source, Schedule):
        source = untaken(source)
    size = None if single_window else window_steps(in_flight, capacity, block_of(every, server_steps))
    block = block_of(every, server_steps, origin.step if origin is not None else 0, size or 0)
    sharded = _updates_sharded(first)
    keep_base = first.server.needs.base or first.recording.needs_base

    def make(lanes: int | None, schedule: Schedule, origin: Origin | None) -> Plan:
        return plan_of(schedule, first.server, lanes, keep_base, origin, layout, sharded, in_turn)

    make_first = functools.partial(make, speed.lanes)
    windows = Windows(source, server_steps, size, make_first, in_turn > 0 and not first.clock.takes_all)
    window = windows.first(origin)
    plan = window.plan
    windows.make = functools.partial(make, plan.lanes)
    lanes = plan.lanes // layout.shares
    chunk = chunk_of(lanes, speed.chunk, lambda: lanes_in_memory(first, len(problems)))
    local_updates = _most_of_one(plan, layout.shares) if sharded else 0
    form = form_of(plan, layout.shares, chunk, bool(local_updates), keep_base, first.client.rate_schedule is not None)
    narrow = on_cpu() and form.mask and layout.shares == 1 and Delivery.CONTINUOUS in first.clock.delivers
    widths = tuple(width for width in _WIDTHS if narrow and width * _PADDED <= capacity)
    loops = Loops(every, block, chunk, **form.trip_counts, widths=widths)
    ring, store = _buffers(window)
    execution = prepared(
        problems,
        [window.schedule] * len(problems),
        first.program(loops, local_updates),
        BufferSizes(lanes, ring, local_updates or store if plan.in_order else store),
        speed.deterministic,
        shared=True,
    )
    execution.windows, execution.enter, execution.form = windows, enter, form
    _take_up(execution, window, 64)
    if windows.size < server_steps < UNBOUNDED:
        records = jax.tree.leaves(execution.joined([]))
        check_length(first.clock, first.data.num_clients, server_steps, sum(map(_step_bytes, records)))
    windows.prepare(window)
    return execution


def enter(execution: Execution, window: Window) -> None:
    """Continues with another window; its plan may need a larger ring or store, or columns of another form."""
    program = execution.program
    before: Form = execution.form
    shares, chunk = program.layout.shares, program.loops.lanes_per_vmap
    form = before.joined(form_of(window.plan, shares, chunk, before.lane, before.base_slot, before.timing))
    execution.form, execution.program = form, program.looping(**form.trip_counts)
    _enlarge(execution, *_buffers(window))
    _take_up(execution, window, len(execution.constant[2].segments.active))


def make_room(execution: Execution, saved: State) -> None:
    """Gives the buffers of a run the rows of a saved state, which has more if an earlier window needed them."""
    ring, store = (jax.tree.leaves(tree)[0].shape[1] for tree in (saved.ring, saved.store))
    if execution.window is not None and _enlarge(execution, ring, store):
        _take_up(execution, execution.window, len(execution.constant[2].segments.active))


def _enlarge(execution: Execution, ring: int, store: int) -> bool:
    """Gives ring and store at least so many rows; returns False if they have them."""
    state, parts = execution.state, {}
    for name, size in (("ring", ring), ("store", store)):
        tree = getattr(state, name)
        if (more := size - jax.tree.leaves(tree)[0].shape[1]) > 0:
            parts[name] = _longer(tree, more)
    execution.state = state._replace(**parts)
    return bool(parts)


def _take_up(execution: Execution, window: Window, segments: int) -> None:
    windows = cast(Windows, execution.windows)
    tables = on_device(tables_of(window.plan, execution.form, windows.rows, segments))
    execution.window = window
    execution.schedules = [windows.schedule(window)] * len(execution.problems)
    constant = (execution.hyperparameters, execution.problems[0].device, tables)
    execution.compile(advance, constant)


def _buffers(window: Window) -> tuple[int, int]:
    """Returns the versions in the ring and the updates in the store that a window needs."""
    plan = window.plan
    ring = max(plan.slots, min(_rounded(plan.slots), window.schedule.ring_slots))
    return ring, plan.rows if plan.in_order else _rounded(plan.rows)


def _longer(tree: Any, more: int) -> Any:
    """Returns the buffers [P, n, ...] with more rows of zeros."""
    return on_device(
        jax.tree.map(lambda leaf: np.pad(leaf, [(0, 0), (0, more)] + [(0, 0)] * (leaf.ndim - 2)), on_host(tree))
    )


def _step_bytes(records: np.ndarray) -> int:
    """Returns the bytes of one server step in records [P, steps, ...]."""
    return records.itemsize * math.prod((*records.shape[:1], *records.shape[2:]))


def known_lengths(**lengths: Iterable[int | None]) -> dict[str, int | None]:
    """Returns the trip counts that are constant over the run, to be static; all None on a CPU, see `Loops`."""
    found = {name: set[int | None]() if on_cpu() else set(each) for name, each in lengths.items()}
    return {name: each.pop() if len(each) == 1 else None for name, each in found.items()}


def block_of(*ends: int) -> int:
    """Returns the rows between two evaluations of the loop predicate; all calls end at multiples. 1 on a CPU."""
    return 1 if on_cpu() else max(n for n in range(1, _BLOCK + 1) if math.gcd(*ends) % n == 0)


def _updates_sharded(problem: Problem) -> bool:
    """Returns True if updates stay on the device that trains them: devices share the run, the server needs sums of
    updates only, and the model has no non-trainable state."""
    needs, attack = problem.server.needs, problem.hyperparameters.client.attack
    if problem.layout.shares == 1 or not needs.linear or "local_accuracy" in problem.recording.diagnostics:
        return False
    if problem.client.correction is not None or (attack is not None and attack.colludes):  # they gather
        return False
    made = functools.partial(first_model, problem.model, problem.data.form)
    return not jax.tree.leaves(jax.eval_shape(made, problem.key).model_state)


def _most_of_one(plan: Plan, shares: int) -> int:
    """Returns the largest number of one server step's updates that one device holds; rounded, if it is uneven."""
    mask, lane = plan.steps.mask, plan.steps.lane
    most = max(int((mask & (lane % shares == one)).sum(axis=1).max(initial=0)) for one in range(shares))
    return most if most * shares == mask.shape[1] else min(_rounded(most), mask.shape[1])


def plan_of(
    schedule: Schedule,
    server: Server,
    lanes: int | None,
    keep_base: bool = False,
    origin: Origin | None = None,
    layout: Layout = Layout(),  # noqa: B008 (immutable)
    sharded: bool = False,
    in_turn: Turns = Turns.ANY,
) -> Plan:
    """Returns the plan of a schedule.

    Args:
        schedule: arrivals of every server step.
        server: with its needs.
        lanes: L; `None` chooses, on an accelerator the power of two (per device) whose local steps, masked ones
            included, take the least time if twice the lanes compute `_GAIN` times as many per second.
        keep_base: x_s is read even if the server does not need it.
        origin: the beginning of the plan, see `make_plan`.
        layout: devices that share the lanes.
        sharded: updates stay on the device of their lane.
        in_turn: order of the runs of a client.
    """
    shares, schedule = layout.shares, untaken(schedule) if in_turn else schedule
    homes = shares if layout.divided or server.needs.client_models or in_turn else 1
    keep_base |= server.needs.base
    stores = shares if sharded else 1
    how: dict[str, Any] = dict(origin=origin, homes=homes, stores=stores, in_turn=in_turn)
    make = functools.partial(make_plan, schedule, keep_base=keep_base, **how)
    if lanes is None and jax.default_backend() == "cpu":
        most = 4 if shares > 1 and not sharded else 1  # devices that gather updates do so after each segment
        lanes = shares * min(most, max(1, schedule.in_flight // shares))
    if lanes is not None:
        return make(lanes=check_lanes(lanes, shares))
    most = min(max(schedule.in_flight, 1), MOST_LANES)
    lanes = shares << (-(-most // shares) - 1).bit_length()

    def cost(plan: Plan) -> float:
        return plan.executed(plan.lanes) * _GAIN ** -math.log2(plan.lanes)

    best = plan = make(lanes=lanes)
    while plan.lanes > shares and plan.executed(plan.lanes) > _GAIN * plan.needed:  # else fewer lanes take longer
        plan = make(lanes=plan.lanes // 2)
        best = min(best, plan, key=cost)
    return best


def _rounded(count: int) -> int:
    """Rounds up to a multiple of 4, so that other seeds, which need a few slots more or less, share the program."""
    return -(-count // 4) * 4
