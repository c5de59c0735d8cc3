"""The free-running clock: what holds after every event of every schedule, and agreement with an event queue."""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxafl.clock import Schedule, constant, free_running, schedules, three_tier, trace, trees, uniform
from jaxafl.clock import schedule as run_clock
from jaxafl.clock.contract import Workload
from jaxafl.device import as_arrays, compiled
from jaxafl.device.keys import seed_key
from tests.problems import record
from tests.variants import slow_but

CLIENTS, STEPS = 6, 14
OPTIONS: dict[str, dict[str, Any]] = {
    "arrival": {"concurrency": 3, "buffer": 2},
    "arrival, everyone": {"concurrency": 6, "buffer": 4},
    "step": {"concurrency": 5, "buffer": 2, "dispatch": "step"},
    "step, everyone": {"concurrency": 6, "buffer": 6, "dispatch": "step"},
    "before_step": {"concurrency": 4, "buffer": 3, "before_step": True},
    "start_skew": {"concurrency": 5, "buffer": 3, "dispatch": "step", "start_skew": True},
}


@functools.partial(jax.jit, static_argnums=2)
def states(clock: Any, key: Any, num_clients: int) -> tuple[Any, Any]:
    """The clock's state after each of STEPS server steps, and the steps."""

    def one(state: Any, _: Any) -> tuple[Any, Any]:
        state, step = clock.next(state, Workload(jnp.int32(1), num_clients))
        return state, (state, step)

    return jax.lax.scan(one, clock.init(key, num_clients), length=STEPS)[1]


def stepped(clock: Any, seed: int) -> tuple[Any, Any]:
    with jax.enable_x64(True):
        return jax.device_get(states(as_arrays(clock, jnp.float64), seed_key(seed), CLIENTS))


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(["real", "ties", "late"]))
def test_invariants_hold_at_every_server_step(name: str, seed: int, kind: str) -> None:
    recorded = record(seed, CLIENTS, STEPS, kind, **OPTIONS[name])
    clock, options = recorded.clock(), OPTIONS[name]
    after, steps = stepped(clock, seed)
    for t in range(STEPS):
        state = jax.tree.map(lambda leaf, t=t: leaf[t], after)
        flight = clock.in_flight_runs(state)
        busy = flight.runs.client[flight.mask]
        assert len(set(busy.tolist())) == len(busy), "a client trains twice at once"
        assert sorted(busy.tolist()) == [client for client in range(CLIENTS) if trees.is_busy(state.busy, client)]
        assert flight.mask.sum() + after.waiting[t] == options["concurrency"]
        assert (flight.runs.arrived[flight.mask] >= after.now[t]).all(), "an arrival is in the past"
        assert np.isinf(flight.runs.arrived[~flight.mask]).all()
        assert after.version[t] == t + 1
        assert steps.mask[t].all() and len(set(steps.runs.run_id[t])) == options["buffer"]
    assert (np.diff(steps.time) >= 0).all() and (np.diff(steps.runs.arrived.ravel()) >= 0).all(), "time goes back"
    assert (steps.runs.started < steps.runs.arrived).all()
    np.testing.assert_array_equal(steps.time, steps.runs.arrived[:, -1])
    assert len(set(steps.runs.run_id.ravel())) == steps.runs.run_id.size, "a run arrives twice"
    in_flight_matches(runs_of(steps), options, steps)


def runs_of(steps: Any) -> list[tuple[int, int, int, float, float]]:
    """(dispatch, client, run, started, arrived) of all arrivals, in the order of their starts."""
    columns = (steps.runs.run_id, steps.runs.client, steps.runs.run, steps.runs.started, steps.runs.arrived)
    return sorted(zip(*(column.ravel().tolist() for column in columns), strict=True))


def in_flight_matches(runs: list[tuple[int, int, int, float, float]], options: dict[str, Any], steps: Any) -> None:
    """Runs start in dispatch order, one at a time per client, and never more than M_c are under way."""
    assert all(first[3] <= second[3] for first, second in itertools.pairwise(runs)), "dispatches go back in time"
    free_at: dict[int, float] = {}
    for _, client, _, started, arrived in runs:
        assert started >= free_at.get(client, 0.0), "a client starts while it trains"
        free_at[client] = arrived
    for moment in np.unique(steps.runs.started):
        assert sum(started <= moment < arrived for *_, started, arrived in runs) <= options["concurrency"]


@pytest.mark.parametrize("name", slow_but(OPTIONS, "before_step", "start_skew"))
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(["real", "ties", "late"]))
def test_the_schedule_is_that_of_an_event_queue(name: str, seed: int, kind: str) -> None:
    recorded = record(seed, CLIENTS, STEPS, kind, **OPTIONS[name])
    schedule = run_clock(recorded.clock(), CLIENTS, 1, STEPS, 0)
    expected = recorded.oracle(STEPS)
    for column, attribute in (
        ("client", "client"),
        ("run", "run"),
        ("run_id", "dispatch"),
        ("version", "trained_from"),
        ("reference", "start_version"),
        ("staleness", "staleness"),
    ):
        theirs = [[getattr(arrival, attribute) for arrival in step.arrivals] for step in expected]
        np.testing.assert_array_equal(getattr(schedule, column), theirs, err_msg=column)
    np.testing.assert_allclose(schedule.time, [step.time for step in expected], rtol=1e-12)
    np.testing.assert_allclose(
        schedule.started, [[a.start_time for a in step.arrivals] for step in expected], rtol=1e-12
    )


def drawn(seed: int, steps: int = 400, clients: int = 12, **options: Any) -> Schedule:
    return run_clock(free_running(durations=uniform(1, 5), **options), clients, 1, steps, seed)


@pytest.mark.slow
def test_runs_are_counted_per_client_in_the_order_they_start() -> None:
    schedule = drawn(0, concurrency=5)
    order = np.argsort(schedule.run_id, axis=None)
    clients, runs = schedule.client.ravel()[order], schedule.run.ravel()[order]
    for client in range(12):
        mine = runs[clients == client]
        assert len(mine) > 5
        # all but the last few runs have arrived; those that have not leave gaps only at the end
        assert (np.diff(mine) >= 1).all()
        np.testing.assert_array_equal(mine[:-1], np.arange(len(mine) - 1))


@pytest.mark.slow
def test_nobody_starves_when_all_are_in_flight() -> None:
    """With durations in [1, 5] nobody arrives less than once in 5 seconds, or more than once in 1."""
    schedule = drawn(1, concurrency=12, buffer=3)
    for client in range(12):
        arrived = np.sort(schedule.arrived[schedule.client == client])
        gaps = np.diff(np.concatenate([[0], arrived, [schedule.time[-1]]]))
        assert gaps.max() <= 5 and gaps[:-1].min() >= 1


@pytest.mark.parametrize("dispatch", ["arrival", pytest.param("step", marks=pytest.mark.slow)])
def test_clients_start_uniformly(dispatch: str) -> None:
    """Equal speeds, few in flight: chi-square of starts per client, 30 clients, against its 99.9 % quantile."""
    clock = free_running(concurrency=2, buffer=2, dispatch=dispatch, durations=uniform(1, 2))
    schedule = run_clock(clock, 30, 1, 3000, 5)
    counts = np.bincount(schedule.client.ravel(), minlength=30)
    expected = counts.sum() / 30
    assert ((counts - expected) ** 2 / expected).sum() < 58.3  # 29 degrees of freedom


@pytest.mark.slow
def test_starts_do_not_depend_on_the_durations() -> None:
    """The first M_c clients are drawn by dispatch index alone, so another duration leaves them alone."""
    firsts = []
    for durations in (uniform(1, 5), constant(3.0), three_tier()):
        schedule = run_clock(free_running(concurrency=4, durations=durations), 40, 1, 60, 7)
        first = schedule.run_id < 4
        firsts.append(dict(zip(schedule.run_id[first].tolist(), schedule.client[first].tolist(), strict=True)))
    common = set.intersection(*(set(first) for first in firsts))
    assert len(common) >= 3
    assert all(firsts[0][dispatch] == other[dispatch] for other in firsts for dispatch in common)


@pytest.mark.slow
def test_the_schedule_is_a_prefix_of_a_longer_one() -> None:
    short, long = drawn(3, steps=50, concurrency=5, buffer=2), drawn(3, steps=200, concurrency=5, buffer=2)
    for name in ("client", "run", "run_id", "version", "staleness"):
        np.testing.assert_array_equal(getattr(short, name), getattr(long, name)[:50])
    np.testing.assert_array_equal(short.time, long.time[:50])


@pytest.mark.slow
def test_equal_speeds_and_a_buffer_of_everyone_are_synchronous_rounds() -> None:
    clock = free_running(concurrency=8, buffer=8, durations=constant(2.0))
    schedule = run_clock(clock, 8, 1, 5, 0)
    np.testing.assert_array_equal(schedule.client, np.tile(np.arange(8), (5, 1)))
    np.testing.assert_array_equal(schedule.staleness, 0)
    np.testing.assert_array_equal(schedule.time, [2, 4, 6, 8, 10])


def test_time_is_float64() -> None:
    """A million seconds in, a tenth of a microsecond still counts."""
    durations = np.full((2, 2000), 1000.0)
    durations[1] += 1e-7
    clock = trace(free_running(concurrency=2, durations=constant(0)), durations=durations)
    schedule = run_clock(clock, 2, 1, 3000, 0)
    assert schedule.time.dtype == np.float64
    last = schedule.time[schedule.client[:, 0] == 1][-1]
    np.testing.assert_allclose(last, 1500 * (1000 + 1e-7), rtol=1e-13)


@pytest.mark.slow
def test_work_per_event_does_not_grow_with_the_population(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the run counters, and who is busy, have N entries, and they are never copied, nor before the first event."""
    clock = free_running(concurrency=10, durations=uniform(1, 5))
    population, made = 1_000_003, []
    monkeypatch.setattr(schedules, "compiled", lambda *what, **how: made.append(compiled(*what, **how)) or made[-1])
    run_clock(clock, population, 1, 5)
    begin, program = (one.as_text() for one, _ in made)
    with jax.enable_x64(True):
        state = jax.eval_shape(lambda key: clock.init(key, population), seed_key(0))
    tables = {leaf.shape for leaf in jax.tree.leaves(state) if leaf.size >= population / 2}
    assert tables == {state.busy.shape, state.runs.shape}
    for rows, width in tables:
        assert rows * width < 1.2 * population
        assert f"s32[{rows},{width}]" in program
        assert not re.findall(rf"s32\[{rows},{width}\]\S* copy\(", begin + program)


def test_the_buffer_of_single_arrivals_is_not_shown() -> None:
    times = constant(1.0)
    made = [free_running(concurrency=4, durations=times, **more) for more in ({}, {"buffer": 1})]
    assert {repr(one) for one in made} == {"free_running(concurrency=4, durations=constant(value=1.0))"}
    assert [one.buffer for one in made] == [1, 1]
    assert "buffer=2" in repr(free_running(concurrency=4, durations=times, buffer=2))
