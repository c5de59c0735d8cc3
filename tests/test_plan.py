"""Plans, replayed in NumPy with names in place of parameters: no slot or row ever holds the wrong one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxafl.clock import Schedule, constant, synchronous, trace
from jaxafl.clock.schedules import schedule as compute_schedule
from jaxafl.engine.plan import Plan
from jaxafl.engine.planner import make_plan
from tests.problems import record
from tests.variants import slow_but

CLIENTS, STEPS = 6, 14
OPTIONS: dict[str, dict[str, Any]] = {
    "arrival": {"concurrency": 3, "buffer": 1},
    "arrival, buffer": {"concurrency": 3, "buffer": 5},
    "arrival, everyone": {"concurrency": 6, "buffer": 2},
    "step": {"concurrency": 5, "buffer": 2, "dispatch": "step"},
    "step, everyone": {"concurrency": 6, "buffer": 3, "dispatch": "step"},
    "before_step": {"concurrency": 4, "buffer": 2, "before_step": True},
    "start_skew": {"concurrency": 5, "buffer": 3, "dispatch": "step", "start_skew": True},
    "start_skew, buffer 2": {"concurrency": 6, "buffer": 2, "dispatch": "step", "start_skew": True},
}


class Lane:
    """A run being trained: what it is, where it began, what is left to do."""

    def __init__(self, client: int, run: int, version: int) -> None:
        self.client, self.run, self.version, self.made = client, run, version, 0


def replay(plan: Plan, schedule: Schedule, keep_base: bool, stores: int = 1) -> None:
    """Executes a plan on names: fails wherever a load, save or read meets something else than the schedule says."""
    runs = {}  # (client, run) -> (version, reference, local steps)
    for place in zip(*np.nonzero(schedule.mask), strict=True):
        runs[int(schedule.client[place]), int(schedule.run[place])] = (
            int(schedule.version[place]), int(schedule.reference[place]), int(schedule.local_steps[place])
        )  # fmt: skip
    ring: list[int | None] = [None] * plan.slots
    ring[0] = 0
    store: list[list[tuple[int, int] | None]] = [[None] * plan.rows for _ in range(stores)]
    lanes: list[Lane | None] = [None] * plan.lanes
    trained: list[tuple[int, int]] = []
    segment, current = 0, 0
    for step in range(schedule.server_steps):
        while segment < plan.steps.segments_before[step]:
            train(plan, segment, ring, store, lanes, runs, trained)
            segment += 1
        for entry in np.flatnonzero(schedule.mask[step]):
            who = int(schedule.client[step, entry]), int(schedule.run[step, entry])
            device, row = plan.steps.lane[step, entry] % stores, plan.steps.update_slot[step, entry]
            assert store[device][row] == who, "a store row holds another update"
            if plan.in_order:
                own = schedule.mask[step] & (plan.steps.lane[step] % stores == device)
                assert row == np.flatnonzero(own).tolist().index(entry), "updates are not in the order of arrival"
            if keep_base:
                reference = schedule.reference[step, entry]
                assert ring[plan.steps.base_slot[step, entry]] == reference, "x_s is gone from the ring"
        current = step + 1
        ring[plan.steps.write_slot[step]] = current
    assert segment == len(plan.segments.active) == plan.steps.segments_before[-1], "segments are left over"
    assert sorted(trained) == sorted(runs), "a run that no step consumes is trained, or one twice"
    assert plan.needed == sum(steps for _, _, steps in runs.values()) == plan.segments.active.sum()
    assert plan.runs == len(runs)


def train(plan: Plan, number: int, ring: Any, store: Any, lanes: Any, runs: Any, trained: Any) -> None:
    """One segment of a plan."""
    segment = type(plan.segments)(*(leaf[number] for leaf in plan.segments))
    loaded = segment.load_lane[: segment.load_count]
    saved = segment.save_lane[: segment.save_count]
    assert len(set(loaded)) == len(loaded) and len(set(saved)) == len(saved)
    for place in range(segment.load_count):
        lane = segment.load_lane[place]
        assert lanes[lane] is None, "a run is loaded over another that is being trained"
        run = Lane(int(segment.load_client[place]), int(segment.load_run[place]), ring[segment.load_slot[place]])
        assert run.version == runs[run.client, run.run][0], "a run starts from another version"
        lanes[lane] = run
    for lane, made in enumerate(segment.active):
        assert made == 0 or lanes[lane] is not None, "an empty lane trains"
        if made:
            lanes[lane].made += made
    if plan.uniform:
        assert len(set(segment.active) - {0}) <= 1
    for place in range(segment.save_count):
        lane = segment.save_lane[place]
        run = lanes[lane]
        _, reference, steps = runs[run.client, run.run]
        assert run.made == steps, "a run ends with another number of local steps"
        assert ring[segment.save_slot[place]] == reference, "an update is measured against another version"
        store[lane % len(store)][segment.save_row[place]] = (run.client, run.run)
        trained.append((run.client, run.run))
        lanes[lane] = None


def local_steps(ragged: bool, seed: int) -> Any:
    """One number of local steps for all runs, or random ones per client and run."""
    return np.random.default_rng(seed).integers(1, 9, (CLIENTS, 40)) if ragged else 3


@pytest.mark.parametrize("name", slow_but(OPTIONS, "start_skew"))
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(["real", "ties", "late", "heavy"]),
    lanes=st.integers(1, 8),
    ragged=st.booleans(),
    keep_base=st.booleans(),
    stores=st.integers(1, 3),
)
def test_the_ring_never_serves_a_wrong_version(
    name: str, seed: int, kind: str, lanes: int, ragged: bool, keep_base: bool, stores: int
) -> None:
    recorded = record(seed, CLIENTS, STEPS, kind, **OPTIONS[name])
    clock = recorded.clock()
    schedule = compute_schedule(clock, CLIENTS, local_steps(ragged, seed), STEPS, 0)
    plan = make_plan(schedule, lanes=lanes * stores, keep_base=keep_base, stores=stores)
    assert plan.slots <= clock.ring_slots(CLIENTS)
    replay(plan, schedule, keep_base, stores)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), lanes=st.integers(1, 8), keep_base=st.booleans(), stores=st.integers(1, 3))
def test_the_ring_never_serves_a_wrong_version_under_any_schedule(
    seed: int, lanes: int, keep_base: bool, stores: int
) -> None:
    """Whatever a protocol may ask for: runs of any age, updates offered again and again, empty steps."""
    schedule = arbitrary_schedule(np.random.default_rng(seed))
    plan = make_plan(schedule, lanes=lanes * stores, keep_base=keep_base, stores=stores)
    replay(plan, schedule, keep_base, stores)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), lanes=st.integers(1, 8), replacement=st.booleans())
def test_rounds_need_two_versions(seed: int, lanes: int, replacement: bool) -> None:
    rng = np.random.default_rng(seed)
    sets = (
        rng.integers(CLIENTS, size=(STEPS, 4))
        if replacement
        else np.argsort(rng.random((STEPS, CLIENTS)), axis=1)[:, :4]
    )
    protocol = synchronous(cohort=4, durations=constant(0), replacement=replacement)
    clock = trace(protocol, durations=rng.uniform(1, 5, (CLIENTS, STEPS)), sets=sets)
    schedule = compute_schedule(clock, CLIENTS, local_steps(True, seed), STEPS, 0)
    plan = make_plan(schedule, lanes=lanes, keep_base=True)
    assert plan.slots <= 2
    replay(plan, schedule, True)


def test_skewed_runs_pin_one_version_more() -> None:
    """A late newcomer must not hold on to both the version it trains from and the one it is measured against."""
    for seed in range(40):
        recorded = record(seed, CLIENTS, 40, "heavy", **OPTIONS["start_skew, buffer 2"])
        schedule = compute_schedule(recorded.clock(), CLIENTS, 1, 40, 0)
        plan = make_plan(schedule, lanes=1, keep_base=False)
        assert plan.slots <= schedule.ring_slots
        replay(plan, schedule, False)


@pytest.mark.parametrize("chunk", [1, 2, 4])
def test_local_steps_that_lanes_execute_together(chunk: int) -> None:
    """Lanes of a chunk make as many as the longest of them."""
    schedule = arbitrary_schedule(np.random.default_rng(3))
    plan = make_plan(schedule, lanes=4, keep_base=False)
    expected = 0
    for active in plan.segments.active.tolist():
        for first in range(0, 4, chunk):
            expected += chunk * max(active[first : first + chunk])
    assert plan.executed(chunk) == expected > 0
    assert plan.executed(1) == plan.needed


def test_a_wrong_plan_is_noticed() -> None:
    """The replay above can fail: one slot, row or segment changed, and it does."""
    recorded = record(0, CLIENTS, STEPS, "late", **OPTIONS["arrival, buffer"])
    schedule = compute_schedule(recorded.clock(), CLIENTS, 3, STEPS, 0)
    plan = make_plan(schedule, lanes=2, keep_base=True)
    for part, name in (
        ("segments", "load_slot"),
        ("segments", "save_row"),
        ("steps", "update_slot"),
        ("steps", "write_slot"),
    ):
        array = getattr(getattr(plan, part), name)
        size = plan.rows if name in ("save_row", "update_slot") else plan.slots
        flat = array.ravel()
        place = int(np.flatnonzero(schedule.mask.ravel())[-1]) if name == "update_slot" else 0
        kept, flat[place] = flat[place], (flat[place] + 1) % size
        with pytest.raises((AssertionError, KeyError)):
            replay(plan, schedule, True)
        flat[place] = kept
    replay(plan, schedule, True)


def arbitrary_schedule(rng: np.random.Generator) -> Schedule:
    """Random arrivals with random versions and references, some updates consumed more than once."""
    shape = (STEPS, 4)
    columns = {
        name: np.zeros(shape, np.int32) for name in ("client", "run", "run_id", "version", "reference", "local_steps")
    }
    mask = rng.random(shape) < 0.7
    offered: list[tuple[int, ...]] = []
    for step, entry in zip(*np.nonzero(mask), strict=True):
        if offered and rng.random() < 0.3:
            chosen = offered[rng.integers(len(offered))]
            if any(columns["run_id"][step, other] == chosen[2] for other in range(entry) if mask[step, other]):
                mask[step, entry] = False
                continue
        else:
            version, reference = rng.integers(0, step + 1, 2)
            number = len(offered)
            chosen = (
                number % CLIENTS,
                number // CLIENTS,
                number,
                int(version),
                int(reference),
                int(rng.integers(1, 9)),
            )
            offered.append(chosen)
        for name, value in zip(columns, chosen, strict=True):
            columns[name][step, entry] = value
    times = np.zeros(shape)
    return Schedule(
        "any", CLIENTS, 4 * STEPS, STEPS + 1, np.arange(STEPS, dtype=float), mask, **columns,
        started=times, arrived=times, multiplicity=np.ones(shape, np.int32), kind=np.zeros(shape, np.int32),
        runs_begun=np.full(STEPS, len(offered), np.int32), runs_refused=times, runs_stopped=times, runs_lost=times,
        starts_skipped=times,
    )  # fmt: skip
