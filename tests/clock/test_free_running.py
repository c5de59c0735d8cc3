"""The free-running clock: what holds after every event of every schedule, and agreement with an event queue."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxafl.clock import constant, free_running, trace, uniform
from jaxafl.clock import schedule as run_clock
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


@pytest.mark.parametrize("dispatch", ["arrival", pytest.param("step", marks=pytest.mark.slow)])
def test_clients_start_uniformly(dispatch: str) -> None:
    """Equal speeds, few in flight: chi-square of starts per client, 30 clients, against its 99.9 % quantile."""
    clock = free_running(concurrency=2, buffer=2, dispatch=dispatch, durations=uniform(1, 2))
    schedule = run_clock(clock, 30, 1, 3000, 5)
    counts = np.bincount(schedule.client.ravel(), minlength=30)
    expected = counts.sum() / 30
    assert ((counts - expected) ** 2 / expected).sum() < 58.3  # 29 degrees of freedom


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


def test_the_buffer_of_single_arrivals_is_not_shown() -> None:
    times = constant(1.0)
    made = [free_running(concurrency=4, durations=times, **more) for more in ({}, {"buffer": 1})]
    assert {repr(one) for one in made} == {"free_running(concurrency=4, durations=constant(value=1.0))"}
    assert [one.buffer for one in made] == [1, 1]
    assert "buffer=2" in repr(free_running(concurrency=4, durations=times, buffer=2))
