"""Plans, replayed in NumPy with names in the place of parameters: no slot or row ever holds the wrong one."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxafl as afl
from jaxafl.clock import Schedule
from jaxafl.engine.plan import Origin, Plan
from jaxafl.engine.planner import make_plan

CLIENTS, STEPS = 6, 14
DURATIONS = afl.clock.lognormal(0.0, 1.5)
CLOCKS: dict[str, Any] = {
    "arrival": afl.clock.free_running(concurrency=3, durations=DURATIONS),
    "buffer": afl.clock.free_running(concurrency=3, buffer=5, durations=afl.clock.constant([1, 1, 2, 2, 2, 4.0])),
    "step": afl.clock.free_running(concurrency=5, buffer=2, dispatch="step", durations=DURATIONS),
    "skew": afl.clock.free_running(concurrency=6, buffer=2, dispatch="step", start_skew=True, durations=DURATIONS),
    "windows": afl.clock.free_running(concurrency=5, period=1.0, durations=DURATIONS),
    "repeated": afl.clock.bernoulli(upload=0.5, download=0.4),
    "aged": afl.clock.stale_rounds(participants=3, max_staleness=4, durations=DURATIONS),
    "rounds": afl.clock.synchronous(cohort=4, replacement=True, durations=DURATIONS),
}


def replay(plan: Plan, schedule: Schedule, ring: dict[int, int]) -> dict[int, int]:
    """Executes a plan on names, and fails wherever a load, save or read meets something else than the schedule says.

    Returns slot -> version at the end.
    """
    of = {
        name: schedule.of_arrivals(name).tolist() for name in ("client", "run", "version", "reference", "local_steps")
    }
    runs = {(c, r): rest for c, r, *rest in zip(*of.values(), strict=True)}
    store: dict[int, tuple[int, int]] = {}
    lanes: dict[int, list[Any]] = {}
    trained, segment, arrival = [], 0, 0
    for step in range(schedule.server_steps):
        for number in range(segment, int(plan.steps.segments_before[step])):
            one = jax.tree.map(lambda leaf, number=number: leaf[number], plan.segments)
            for lane in np.flatnonzero(one.loads):
                assert lane not in lanes, "a run is loaded over another that is being trained"
                who = int(one.load_client[lane]), int(one.load_run[lane])
                assert ring[int(one.load_slot[lane])] == runs[who][0], "a run starts from another version"
                lanes[lane] = [who, 0]
            for lane in np.flatnonzero(one.active):
                lanes[lane][1] += int(one.active[lane])
            for lane in np.flatnonzero(one.saves):
                who, made = lanes.pop(lane)
                assert made == runs[who][2], "a run ends with another number of local steps"
                assert ring[int(one.save_slot[lane])] == runs[who][1], "an update is relative to another version"
                store[int(one.save_row[lane])] = who
                trained.append(who)
        segment = int(plan.steps.segments_before[step])
        for entry in np.flatnonzero(schedule.mask[step]):
            who = of["client"][arrival], of["run"][arrival]
            assert store[int(plan.steps.update_row[step, entry])] == who, "a row of the store holds another update"
            assert not plan.in_order or plan.steps.update_row[step, entry] == entry
            assert ring[int(plan.steps.base_slot[step, entry])] == runs[who][1], "x_s is gone from the ring"
            arrival += 1
        ring[int(plan.steps.write_slot[step])] = schedule.start + step + 1
    assert segment == len(plan.segments.active) and sorted(trained) == sorted(runs)
    assert plan.needed == sum(steps for *_, steps in runs.values())
    assert all(ring[slot] == version for version, slot in plan.kept.items())
    return ring


@pytest.mark.parametrize("name", CLOCKS)
@settings(max_examples=12)
@given(seed=st.integers(0, 2**32 - 1), lanes=st.integers(1, 8), ragged=st.booleans())
def test_the_ring_never_serves_a_wrong_version(name: str, seed: int, lanes: int, ragged: bool) -> None:
    steps = np.random.default_rng(seed).integers(1, 9, (CLIENTS, 40)) if ragged else 3
    schedule = afl.clock.schedule(CLOCKS[name], CLIENTS, steps, STEPS, seed)
    plan = make_plan(schedule, lanes=lanes, keep_base=True)
    assert plan.slots <= schedule.ring_slots
    replay(plan, schedule, {0: 0})


@settings(max_examples=12)
@given(seed=st.integers(0, 2**32 - 1), lanes=st.integers(1, 4), border=st.integers(1, STEPS - 1))
def test_windows_hand_the_ring_over(seed: int, lanes: int, border: int) -> None:
    live = afl.clock.live.Live(CLOCKS["step"], CLIENTS, 3, seed)
    ring, origin = {0: 0}, Origin()
    for count in (border, STEPS - border):
        window = live.advance(count)
        plan = make_plan(window, lanes=lanes, keep_base=True, origin=origin)
        ring = replay(plan, window, ring)
        origin = Origin(window.start + count, plan.kept)


@pytest.mark.parametrize("chunk", [1, 2, 4])
def test_local_steps_that_lanes_execute_together(chunk: int) -> None:
    """Lanes of a chunk make as many as the longest of them."""
    steps = np.random.default_rng(0).integers(1, 9, (CLIENTS, 40))
    plan = make_plan(afl.clock.schedule(CLOCKS["step"], CLIENTS, steps, STEPS, 3), lanes=4, keep_base=False)
    groups = (row[first : first + chunk] for row in plan.segments.active.tolist() for first in range(0, 4, chunk))
    assert plan.executed(chunk) == sum(chunk * max(group) for group in groups) > 0
    assert plan.executed(1) == plan.needed
