"""Runs whose clock has run ahead: the loop over their plan, for members that share it."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.clock import Schedule
from jaxafl.clock.schedules import UNBOUNDED, Clockwork, check_length
from jaxafl.device import buffers, on_device, on_host, slices_are_faster
from jaxafl.engine.batched import number_axes, over_members, shared_axes
from jaxafl.engine.execution import Execution, prepared
from jaxafl.engine.mesh import ALL, DATA, NUMBERS, SHARED_STATE
from jaxafl.engine.plan import Origin, Plan, Segments, Steps
from jaxafl.engine.planner import make_plan
from jaxafl.engine.problem import DeviceData, Layout, Numbers, Problem, Program, Speed
from jaxafl.engine.state import Records, State, first_model
from jaxafl.engine.step import build_server_step, over_steps
from jaxafl.engine.train import build_train
from jaxafl.engine.validate import check_lanes, chunk_of
from jaxafl.engine.width import MOST_LANES, LocalStep, local_step_of
from jaxafl.engine.windows import Window, Windows, arrays_of, window_steps
from jaxafl.server.contract import Server

Array = jax.Array
_BLOCK = 10  # as few looks as make no difference, and few steps after a failure or Ctrl-C


def planned(
    problems: Sequence[Problem],
    source: Schedule | Clockwork,
    every: int,
    speed: Speed,
    origin: Origin | None = None,
    server_steps: int | None = None,
) -> Execution:
    """One run, or several that share plans: problems that differ in client and server numbers only.

    Args:
        problems: one per member.
        source: their schedule, or the clock that makes it.
        every: server steps between evaluations.
        speed: lanes and chunk.
        origin: where the first plan begins, see `make_plan`.
        server_steps: T, where a clock makes the schedule.
    """
    server_steps = source.server_steps if isinstance(source, Schedule) else cast(int, server_steps)
    first, layout = problems[0], problems[0].layout
    capacity, in_flight = (size(first.data.num_clients) for size in (first.clock.capacity, first.clock.in_flight))
    # a schedule that is made again with other times must be there as a whole; devices keep stores of one size
    one = first.client.charge == "executed" or layout.mesh is not None
    size = None if one else window_steps(in_flight, capacity, block_of(every, server_steps))  # wherever it begins
    block = block_of(every, server_steps, origin.step if origin is not None else 0, size or 0)
    step, stays = functools.partial(local_step_of, first.model, first.data, first.client), _stays(first)
    drift = "drift" in first.recording.diagnostics

    def make(lanes: int | None, schedule: Schedule, origin: Origin | None) -> Plan:
        return plan_of(schedule, first.server, lanes, step, drift, origin, layout, len(problems), stays)

    windows = Windows(source, server_steps, size, functools.partial(make, speed.lanes))
    window = windows.first(origin)
    plan = window.plan
    windows.make = functools.partial(make, plan.lanes)
    apart = _most_of_one(plan, layout.shares) if stays else 0
    shapes = _shapes(window, apart)
    execution = prepared(
        problems,
        [window.schedule] * len(problems),
        shared=True,
        length=every,
        lanes=plan.lanes // layout.shares,
        chunk=chunk_of(plan.lanes // layout.shares, speed.chunk, lambda: step().room(len(problems))),
        block=block,
        deterministic=speed.deterministic,
        apart=apart,
        **shapes,
    )
    execution.windows, execution.enter = windows, enter
    _take_up(execution, window, 64)
    if windows.size < server_steps < UNBOUNDED:
        records = jax.tree.leaves(execution.joined([]))
        check_length(first.clock, first.data.num_clients, server_steps, sum(map(_step_bytes, records)))
    windows.prepare(window)
    return execution


def enter(execution: Execution, window: Window) -> None:
    """Goes on with another window; its plan may need a larger ring or store, or leave an assumption of the program."""
    before, shapes = execution.program, _shapes(window, 0)
    changed: dict[str, Any] = {name: max(getattr(before, name), shapes[name]) for name in ("slots", "rows")}
    changed |= {name: getattr(before, name) and shapes[name] for name in ("in_order", "uniform", "full")}
    lengths = {name: getattr(before, name) for name in ("local_steps", "segments")}
    changed |= {name: known if shapes.get(name) == known else None for name, known in lengths.items()}
    execution.program = program = dataclasses.replace(before, **changed)
    state = execution.state
    grown = {"ring": (state.ring, program.slots - before.slots), "store": (state.store, program.rows - before.rows)}
    parts = {name: _longer(tree, more) for name, (tree, more) in grown.items() if more}
    execution.state = state._replace(**parts)
    _take_up(execution, window, len(execution.constant[2].active))


def _take_up(execution: Execution, window: Window, segments: int) -> None:
    windows = cast(Windows, execution.windows)
    arrays = on_device(arrays_of(window, windows.rows, segments))
    execution.window = window
    execution.schedules = [windows.schedule(window)] * len(execution.problems)
    constant = (execution.numbers, execution.problems[0].device, *arrays)
    execution.compile(advance_planned, (NUMBERS, DATA, ALL, ALL, ALL, SHARED_STATE), constant)


def _shapes(window: Window, apart: int) -> dict[str, Any]:
    """Returns the sizes and flags of a program that executes a window."""
    plan, schedule = window.plan, window.schedule
    return dict(
        slots=max(plan.slots, min(_rounded(plan.slots), schedule.ring_slots)),
        rows=(apart or plan.rows) if plan.in_order else _rounded(plan.rows),
        in_order=plan.in_order,
        uniform=plan.uniform,
        full=bool(schedule.mask.all()),
        **known_lengths(local_steps=[plan.local_steps], segments=[plan.segments_each]),
    )


def _longer(tree: Any, more: int) -> Any:
    """The buffers [P, n, ...] with more places."""
    return on_device(
        jax.tree.map(lambda leaf: np.pad(leaf, [(0, 0), (0, more)] + [(0, 0)] * (leaf.ndim - 2)), on_host(tree))
    )


def _step_bytes(records: np.ndarray) -> int:
    """Returns the bytes of one server step in records [P, steps, ...]."""
    return records.itemsize * math.prod((*records.shape[:1], *records.shape[2:]))


def advance_planned(
    program: Program,
    numbers: Numbers,
    device: DeviceData,
    segments: Segments,
    steps: Steps,
    first: Array,
    state: State,
    start: Array,
    stop: Array,
) -> tuple[State, Records]:
    """Takes the server steps start .. stop - 1 of all members, training before each what it needs.

    The state is one pytree, donated from call to call. Loop bounds come from the plan and predicates are never batched,
    so under `vmap` nothing turns into a select over whole buffers.

    Args:
        program: static.
        numbers, device, segments, steps: what is run.
        first: int32, the server step that is the first of `steps`.
        state: where the runs are.
        start, stop: int32, stop - start <= program.length.

    Returns:
        The new state and the records of the steps, each [P, program.length, ...].
    """

    def member(numbers: Numbers, state: State) -> tuple[State, Records]:
        train, _ = build_train(program, numbers, device)
        server_step = build_server_step(program, numbers, device)

        def one(number: Array, state: State) -> tuple[State, Records]:
            place = number - first
            begun = jnp.where(place > 0, steps.segments_before[jnp.maximum(place - 1, 0)], 0)
            state = jax.lax.fori_loop(
                0,
                program.segments or steps.segments_before[place] - begun,
                lambda index, state: train(buffers.read(segments, begun + index), state),
                state,
            )
            state, _, record = server_step(buffers.read(steps, place), number, state)
            return state, Records(record)

        return over_steps(program, one, start, stop, state)

    own = shared_axes(state)
    axes = (number_axes(program, numbers), own)
    return over_members(member, program.members, axes, (own, 0))(numbers, state)


def known_lengths(**lengths: Iterable[int | None]) -> dict[str, int | None]:
    """What a program knows of the lengths of its loops, those that are always the same: nothing on a CPU, where other
    numbers would compile anew; an accelerator's host waits for every pass of a loop whose length it does not know."""
    found = {} if slices_are_faster() else {name: set(each) for name, each in lengths.items()}
    return {name: each.pop() for name, each in found.items() if len(each) == 1}


def block_of(*ends: int) -> int:
    """How many server steps an accelerator takes until its host waits to look at them: it divides where calls end."""
    return 1 if slices_are_faster() else max(n for n in range(1, _BLOCK + 1) if math.gcd(*ends) % n == 0)


def _stays(problem: Problem) -> bool:
    """Whether updates stay on the device that has made them, as only sums of them are needed: where several share the
    run, and the model has no non-trainable state."""
    needs = problem.server.needs
    if problem.layout.shares == 1 or not needs.sums or needs.arrivals_here:
        return False
    made = functools.partial(first_model, problem.model, problem.data.form)
    return not jax.tree.leaves(jax.eval_shape(made, problem.key).model_state)


def _most_of_one(plan: Plan, shares: int) -> int:
    """How many updates of a server step one device has at the most; rounded, where they are not dealt out evenly."""
    mask, lane = plan.steps.mask, plan.steps.lane
    most = max(int((mask & (lane % shares == one)).sum(axis=1).max(initial=0)) for one in range(shares))
    return most if most * shares == mask.shape[1] else min(_rounded(most), mask.shape[1])


def plan_of(
    schedule: Schedule,
    server: Server,
    lanes: int | None,
    step: Callable[[], LocalStep],
    keep_base: bool = False,
    origin: Origin | None = None,
    layout: Layout = Layout(),  # noqa: B008 (immutable)
    members: int = 1,
    apart: bool = False,
) -> Plan:
    """The plan of a schedule.

    Args:
        schedule: who arrives when.
        server: what it needs.
        lanes: L; `None` chooses: of powers of two the one whose local steps take the least time.
        step: what one of them needs; asked for where lanes are chosen.
        keep_base: x_s is read whatever the server needs.
        origin: where the plan begins, see `make_plan`.
        layout: the devices that share the lanes.
        members: that share the plan.
        apart: whether each device keeps the updates of its own lanes.
    """
    shares = layout.shares
    homes = shares if layout.divided or server.needs.client_models else 1
    keep_base |= server.needs.base
    stores = shares if apart else 1
    make = functools.partial(make_plan, schedule, keep_base=keep_base, origin=origin, homes=homes, stores=stores)
    if lanes is None and jax.default_backend() == "cpu":
        most = 4 if shares > 1 and not apart else 1  # devices that gather updates do so after each segment
        lanes = shares * min(most, max(1, schedule.in_flight // shares))
    if lanes is not None:
        return make(lanes=check_lanes(lanes, shares))
    most = min(max(schedule.in_flight, 1), MOST_LANES)
    best, least, width = None, math.inf, shares << (-(-most // shares) - 1).bit_length()
    while width >= shares:
        plan = make(lanes=width)
        passes, segments = plan.executed(width) / width, len(plan.segments.active)
        seconds = step().seconds(members * width // shares, passes, segments)
        if seconds > 2 * least:  # fewer lanes only make more passes
            break
        if seconds < least:
            best, least = plan, seconds
        width //= 2
    assert best is not None
    return best


def _rounded(count: int) -> int:
    """A multiple of 4, so that other seeds, which need a few slots more or less, run in the same program."""
    return -(-count // 4) * 4
