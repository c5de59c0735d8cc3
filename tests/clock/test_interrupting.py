"""A server that contacts a few clients every period, whatever they have done."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxafl.clock import constant, interrupting, suspension, trace
from jaxafl.clock import schedule as run_clock
from tests.problems_protocols import sets_without_repeats

CLIENTS, CONTACTS, CONTACTED = 6, 25, 3


def recorded(seed: int, exact: bool) -> tuple[np.ndarray, np.ndarray]:
    """Sets, and seconds per step [client, run]; client 0 makes a step in 6 periods, client 5 is never contacted.

    `exact`: multiples of 1/4, so that many steps end at the very instant of a contact.
    """
    rng = np.random.default_rng(seed)
    sets = sets_without_repeats(rng, CONTACTS, CONTACTED, CLIENTS - 1)
    times = rng.integers(1, 9, (CLIENTS, CONTACTS + 1)) / 4 if exact else rng.uniform(0.2, 3, (CLIENTS, CONTACTS + 1))
    times[0] = 12.0
    return sets, times


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), exact=st.booleans(), most=st.sampled_from([1, 4, 50, np.array([1, 2, 3, 40, 5, 6])])
)
def test_local_steps_by_counting(seed: int, exact: bool, most: Any) -> None:
    sets, times = recorded(seed, exact)
    protocol = interrupting(period=2.0, contacted=CONTACTED, durations=constant(0))
    made = trace(protocol, sets=sets, durations=times, per="step")
    schedule = run_clock(made, CLIENTS, most, CONTACTS, 0)
    np.testing.assert_array_equal(schedule.client, np.sort(sets))
    np.testing.assert_array_equal(schedule.time, 2.0 * np.arange(1, CONTACTS + 1))
    restarted, runs = np.zeros(CLIENTS, int), np.zeros(CLIENTS, int)
    for t, contacted in enumerate(schedule.client):
        np.testing.assert_array_equal(schedule.version[t], restarted[contacted])
        np.testing.assert_array_equal(schedule.started[t], 2.0 * restarted[contacted])
        np.testing.assert_array_equal(schedule.run[t], runs[contacted])
        fitting = np.floor((t + 1 - restarted[contacted]) * 2.0 / times[contacted, runs[contacted]])
        np.testing.assert_array_equal(schedule.local_steps[t], np.minimum(fitting, np.broadcast_to(most, 6)[contacted]))
        restarted[contacted], runs[contacted] = t + 1, runs[contacted] + 1
    assert schedule.mask.all() and schedule.runs_started == CLIENTS + CONTACTS * CONTACTED


def test_a_latency_comes_before_the_first_step() -> None:
    """Whole steps of 1/2 s after 3/4 s: none by 1 s, two by 2 s, ..., and a step that ends at the contact counts."""
    durations = constant(0.75) + constant(0.5, per="step")
    for period, made in ((0.25, 0), (1.0, 0), (1.25, 1), (2.0, 2), (2.25, 3), (7.0, 5)):
        schedule = run_clock(interrupting(period=period, contacted=2, durations=durations), 2, 5, 1, 0)
        assert (schedule.local_steps == made).all(), period


def test_rounding_of_times_loses_no_step() -> None:
    """0.1 s steps at periods of 0.3 s: three steps fit, at every contact."""
    schedule = run_clock(interrupting(period=0.3, contacted=1, durations=constant(0.1, per="step")), 1, 100, 2000, 0)
    assert (schedule.local_steps == 3).all()


def test_a_hang_before_the_first_step_is_no_work() -> None:
    durations = constant(1.0, per="step") + suspension(1.0)
    clock = interrupting(period=10.0, contacted=1, sets=[[2], [0]], durations=durations)
    np.testing.assert_allclose(run_clock(clock, 3, 4, 2, 0).work[:, 0], 4.0)
