"""Synchronous rounds: cohorts, times, and what a trace replays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxafl.clock import constant, recorded, suspension, synchronous, three_tier, trace, uniform
from jaxafl.clock import schedule as run_clock
from tests.oracle import clock as oracle_clock
from tests.problems_protocols import KINDS, durations, losses

CLIENTS, ROUNDS = 9, 10


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), ties=st.booleans())
def test_recorded_rounds_are_those_of_the_reference(seed: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    sets = np.argsort(rng.random((ROUNDS, CLIENTS)), axis=1)[:, :4]
    times = rng.integers(1, 4, (CLIENTS, ROUNDS)) if ties else rng.uniform(1, 5, (CLIENTS, ROUNDS))
    clock = trace(synchronous(cohort=4, durations=constant(0)), durations=times, sets=sets)
    schedule = run_clock(clock, CLIENTS, 1, ROUNDS, 0)
    expected = oracle_clock.synchronous(sets.tolist(), lambda client, run: times[client, run])
    np.testing.assert_allclose(schedule.time, [step.time for step in expected], rtol=1e-12)
    for t, step in enumerate(expected):
        mine = sorted(zip(schedule.client[t], schedule.run[t], schedule.arrived[t], strict=True))
        theirs = sorted((arrival.client, arrival.run, arrival.arrival_time) for arrival in step.arrivals)
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)
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


def test_everyone_takes_part_by_default() -> None:
    schedule = run_clock(synchronous(durations=constant(2.0)), CLIENTS, 1, 3, 0)
    np.testing.assert_array_equal(schedule.client, np.tile(np.arange(CLIENTS), (3, 1)))
    np.testing.assert_array_equal(schedule.run, np.tile([[0], [1], [2]], CLIENTS))
    np.testing.assert_array_equal(schedule.time, [2, 4, 6])


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


@pytest.mark.slow
def test_a_round_lasts_as_long_as_its_slowest_run() -> None:
    schedule = run_clock(synchronous(cohort=4, durations=three_tier()), CLIENTS, 1, 30, 0)
    np.testing.assert_allclose(schedule.time, schedule.arrived.max(axis=1))
    np.testing.assert_allclose(schedule.started[1:], np.repeat(schedule.time[:-1, None], 4, axis=1))


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


def early_rounds(times: np.ndarray, rounds: int, lost: Any, **options: Any) -> tuple[list[Any], tuple[int, int]]:
    """A slow reference with all clients in every round: (time, clients), and the runs stopped and lost."""
    clients, now, drawn, made, counts = len(times), 0.0, 0, [], [0, 0]
    wanted = clients - options.get("extra", 0)
    while len(made) < rounds:
        ends = [now + times[c, drawn] for c in range(clients)]
        good = sorted((ends[c], c) for c in range(clients) if not lost(c, drawn))
        close = good[wanted - 1][0] if len(good) >= wanted else max(ends)
        if "deadline" in options:
            close = min(close, now + options["deadline"])
        if "deadline_quantile" in options:
            close = min(close, sorted(ends)[int(np.ceil(options["deadline_quantile"] * clients)) - 1])
        close = max([close, *[end for end, _ in good[:1]]])
        taken = sorted(c for end, c in good[:wanted] if end <= close)
        failed = sum(lost(c, drawn) and ends[c] <= close for c in range(clients))
        counts[0] += clients - len(taken) - failed
        counts[1] += failed
        now, drawn = close, drawn + 1
        if taken:
            made.append((now, taken))
    return made, (counts[0], counts[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("options", "odds"),
    [
        pytest.param({"extra": 2}, 0.0, marks=pytest.mark.slow),
        ({"deadline": 2.0}, 0.0),
        ({"deadline_quantile": 0.5, "extra": 1}, 0.0),
        pytest.param({}, 0.6, marks=pytest.mark.slow),
        ({"deadline": 2.0}, 0.8),
    ],
)
def test_rounds_end_early_as_the_reference_says(options: dict[str, Any], odds: float, kind: str) -> None:
    times = durations(np.random.default_rng(4), 4, 200, kind)
    cohort = 4 - options.get("extra", 0)
    chosen = synchronous(cohort=cohort, durations=recorded(times), lost=odds or None, **options)
    found = run_clock(chosen, 4, 1, 25, 7)
    expected, (stopped, lost) = early_rounds(times, 25, losses(7, odds), **options)
    assert found.time.tolist() == [time for time, _ in expected]
    assert [found.client[t][found.mask[t]].tolist() for t in range(25)] == [clients for _, clients in expected]
    assert (found.runs_stopped[-1], found.runs_lost[-1]) == (stopped, lost)
    assert (found.staleness[found.mask] == 0).all()


def test_a_quantile_of_a_whole_number_of_runs_is_not_rounded_up() -> None:
    """0.07 · 100 is 7.000000000000001 in floating point."""
    times = np.arange(1.0, 101.0)[:, None]
    found = run_clock(synchronous(cohort=100, durations=recorded(times), deadline_quantile=0.07), 100, 1, 1)
    assert found.time.tolist() == [7] and found.mask.sum() == 7


@pytest.mark.slow
def test_without_early_ends_the_draws_are_the_usual_ones() -> None:
    """A deadline that nobody misses changes nothing."""
    usual = run_clock(synchronous(cohort=3, durations=uniform(1, 2)), 8, 1, 20, 3)
    late = run_clock(synchronous(cohort=3, durations=uniform(1, 2), deadline=5.0), 8, 1, 20, 3)
    for name in ("time", "client", "run", "run_id", "started", "arrived", "mask"):
        np.testing.assert_array_equal(getattr(late, name), getattr(usual, name))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cohort": 3, "extra": 6}, "cohort \\+ extra=9 is more than the 8 clients"),
        ({"extra": 1}, "give cohort=n"),
        ({"cohort": 2, "deadline": 1.0, "deadline_quantile": 0.5}, "not both"),
        ({"cohort": 2, "deadline": 0.0}, "deadline"),
        ({"cohort": 2, "lost": np.full(7, 0.1)}, "8"),
    ],
)
def test_contradictory_early_ends_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        run_clock(synchronous(durations=uniform(1, 2), **options), 8, 1, 3)
