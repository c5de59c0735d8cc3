"""Synchronous rounds: cohorts, times, and what a trace replays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxafl.clock import constant, recorded, suspension, synchronous, trace, uniform
from jaxafl.clock import schedule as run_clock

CLIENTS, ROUNDS = 9, 10


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), ties=st.booleans())
def test_recorded_rounds_last_as_long_as_their_slowest_run(seed: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    sets = np.argsort(rng.random((ROUNDS, CLIENTS)), axis=1)[:, :4]
    times = rng.integers(1, 4, (CLIENTS, ROUNDS)) if ties else rng.uniform(1, 5, (CLIENTS, ROUNDS))
    clock = trace(synchronous(cohort=4, durations=constant(0)), durations=times, sets=sets)
    schedule = run_clock(clock, CLIENTS, 1, ROUNDS, 0)
    np.testing.assert_array_equal(np.sort(schedule.client), np.sort(sets))
    begun = np.cumsum((schedule.client[..., None] == np.arange(CLIENTS)).any(axis=1), axis=0) - 1
    np.testing.assert_array_equal(schedule.run, np.take_along_axis(begun, schedule.client, axis=1))
    lasted = times[schedule.client, schedule.run]
    np.testing.assert_allclose(schedule.time, lasted.max(axis=1).cumsum(), rtol=1e-12)
    np.testing.assert_allclose(schedule.arrived, (schedule.time - lasted.max(axis=1))[:, None] + lasted, rtol=1e-12)
    assert (schedule.staleness == 0).all() and schedule.mask.all()


@pytest.mark.parametrize("seed", range(3))
def test_cohorts_are_drawn_without_replacement_and_uniformly(seed: int) -> None:
    schedule = run_clock(synchronous(cohort=4, durations=uniform(1, 5)), CLIENTS, 1, 2000, seed)
    assert (np.diff(np.sort(schedule.client, axis=1), axis=1) > 0).all()
    counts = np.bincount(schedule.client.ravel(), minlength=CLIENTS)
    # each round is a draw without replacement: the variance of a count is T p (1 - p)
    assert np.abs(counts - 2000 * 4 / 9).max() < 4.5 * np.sqrt(2000 * 4 / 9 * 5 / 9)
    pairs = (schedule.client == 0).any(axis=1) & (schedule.client == 1).any(axis=1)
    probability = 4 / 9 * 3 / 8
    assert abs(pairs.mean() - probability) < 4 * np.sqrt(probability * (1 - probability) / 2000)


def test_with_replacement_a_client_trains_once_and_counts_as_often_as_it_is_drawn() -> None:
    clock = synchronous(cohort=6, replacement=True, durations=uniform(1, 5))
    schedule = run_clock(clock, CLIENTS, 1, 1500, 0)
    for t in range(1500):
        members = schedule.client[t][schedule.mask[t]]
        assert len(set(members)) == len(members)
        assert schedule.multiplicity[t][schedule.mask[t]].sum() == 6
    draws = np.zeros(CLIENTS)
    np.add.at(draws, schedule.client[schedule.mask], schedule.multiplicity[schedule.mask])
    assert np.abs(draws - 1000).max() < 4.5 * np.sqrt(9000 * 1 / 9 * 8 / 9)
    order = np.argsort(schedule.run_id[schedule.mask])
    np.testing.assert_array_equal(schedule.run_id[schedule.mask][order], np.arange(schedule.mask.sum()))


def test_hangs_are_bounded_by_the_longest_run_that_started_before() -> None:
    """In the order of dispatch, also within a round; the very first run never hangs."""
    durations = uniform(1, 5)
    plain = run_clock(synchronous(durations=durations), CLIENTS, 1, 20, 0)
    hung = run_clock(synchronous(durations=durations + suspension(0.7)), CLIENTS, 1, 20, 0)
    work, total = plain.arrived - plain.started, hung.arrived - hung.started
    hang = (total - work).ravel()
    longest = np.concatenate([[0], np.maximum.accumulate(work.ravel())[:-1]])
    assert (hang >= -1e-9).all() and (hang <= longest + 1e-9).all()
    assert abs((hang > 1e-9).mean() - 0.7) < 4 * np.sqrt(0.21 / hang.size)


# ---- rounds that end without all of their runs


def test_a_quantile_of_a_whole_number_of_runs_is_not_rounded_up() -> None:
    """0.07 · 100 is 7.000000000000001 in floating point."""
    times = np.arange(1.0, 101.0)[:, None]
    found = run_clock(synchronous(cohort=100, durations=recorded(times), deadline_quantile=0.07), 100, 1, 1)
    assert found.time.tolist() == [7] and found.mask.sum() == 7
