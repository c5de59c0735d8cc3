"""Rounds of clients that start from versions of a random age."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxafl.clock import constant, stale_rounds, trace, uniform
from jaxafl.clock import schedule as run_clock
from tests.oracle.clock_stale_rounds import stale_rounds as reference
from tests.problems_protocols import KINDS, assert_schedule, durations, lookup, sets_without_repeats
from tests.variants import slow_but

CLIENTS, ROUNDS, DRAWN, OLDEST = 6, 15, 3, 4


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(KINDS), replacement=st.booleans())
def test_recorded_rounds_are_those_of_the_reference(seed: int, kind: str, replacement: bool) -> None:
    rng = np.random.default_rng(seed)
    sets = sets_without_repeats(rng, ROUNDS, DRAWN, CLIENTS - 1)  # client 5 never takes part
    if replacement:
        sets = rng.integers(0, CLIENTS - 1, (ROUNDS, DRAWN))
        sets[4], sets[5] = [2, 2, 2], [1, 4, 1]
    stale = rng.integers(0, OLDEST + 1, (ROUNDS, DRAWN))
    times = durations(rng, CLIENTS, DRAWN * ROUNDS, kind)
    protocol = stale_rounds(participants=DRAWN, max_staleness=OLDEST, durations=constant(0), replacement=replacement)
    schedule = run_clock(trace(protocol, sets=sets, stale=stale, durations=times), CLIENTS, 1, ROUNDS, 0)
    assert_schedule(schedule, reference(sets.tolist(), stale.tolist(), lookup(times), num_clients=CLIENTS))
    assert schedule.mask.all() and (schedule.multiplicity == 1).all()
    np.testing.assert_array_equal(schedule.staleness, np.minimum(stale, np.arange(ROUNDS)[:, None]))


def test_versions_are_drawn_uniformly_and_clamped() -> None:
    rounds = 3000
    clock = stale_rounds(participants=2, max_staleness=4, durations=uniform(1, 2))
    schedule = run_clock(clock, 9, 1, rounds, 0)
    assert schedule.staleness[0].tolist() == [0, 0] and (schedule.version >= 0).all()
    counts = np.bincount(schedule.staleness[4:].ravel(), minlength=5)
    assert len(counts) == 5
    assert np.abs(counts - 2 * rounds / 5).max() < 4.5 * np.sqrt(2 * rounds * 4 / 25)
    # the two draws of a round are independent, and so are those of successive rounds
    both = schedule.staleness[4:].astype(float)
    assert abs(np.corrcoef(both[:, 0], both[:, 1])[0, 1]) < 0.08
    assert abs(np.corrcoef(both[1:, 0], both[:-1, 0])[0, 1]) < 0.08


@pytest.mark.slow
def test_clients_are_drawn_uniformly_with_or_without_replacement() -> None:
    rounds = 3000
    for replacement, different in ((False, 1.0), (True, 8 / 9 * 7 / 9)):
        clock = stale_rounds(participants=3, max_staleness=0, durations=uniform(1, 2), replacement=replacement)
        schedule = run_clock(clock, 9, 1, rounds, 0)
        assert (np.diff(schedule.client, axis=1) >= 0).all()
        counts = np.bincount(schedule.client.ravel(), minlength=9)
        assert np.abs(counts - rounds / 3).max() < 4.5 * np.sqrt(rounds / 3)
        share = (np.diff(schedule.client, axis=1) > 0).all(axis=1).mean()
        assert abs(share - different) < 4 * np.sqrt(0.25 / rounds) if replacement else share == 1


@pytest.mark.slow
def test_a_round_lasts_as_long_as_its_slowest_run() -> None:
    schedule = run_clock(stale_rounds(participants=4, max_staleness=3, durations=uniform(1, 5)), 9, 1, 40, 0)
    np.testing.assert_array_equal(schedule.time, schedule.arrived.max(axis=1))
    np.testing.assert_array_equal(schedule.started[1:], np.repeat(schedule.time[:-1, None], 4, axis=1))


def clock(**options: Any) -> Any:
    return stale_rounds(**({"participants": 2, "max_staleness": 3, "durations": constant(1)} | options))


BAD: dict[str, tuple[Any, str]] = {
    "more than there are": (lambda: clock(participants=5), "participants=5 is more than the 4 clients"),
    "nobody": (lambda: clock(participants=0, replacement=True), "participants must be at least 1, got 0"),
    "negative age": (lambda: clock(max_staleness=-1), "max_staleness must be at least 0, got -1"),
    "half a version": (lambda: clock(max_staleness=1.5), "max_staleness must be a whole number"),
    "replacement unknown": (lambda: clock(replacement="yes"), "replacement must be True or False"),
    "sets of another size": (lambda: trace(clock(), sets=np.zeros((9, 3), int)), r"n = 2 clients, got shape \(9, 3\)"),
    "a client twice": (lambda: trace(clock(), sets=np.zeros((9, 2), int)), "names a client twice"),
    "stale of another size": (
        lambda: trace(clock(), stale=np.zeros((9, 3), int)),
        r"\[round, J\] with J = 2, got shape \(9, 3\)",
    ),
    "stale of fractions": (lambda: trace(clock(), stale=np.zeros((9, 2))), "integer array.*float64"),
    "stale negative": (lambda: trace(clock(), stale=np.full((9, 2), -1)), r"must be in 0\.\.3.*got -1\.\.-1"),
    "one stale negative among others": (
        lambda: trace(clock(), stale=np.eye(9, 2, dtype=int) - np.eye(9, 2, -3, dtype=int)),
        r"must be in 0\.\.3.*got -1\.\.1",
    ),
    "one too old among others": (
        lambda: trace(clock(), stale=4 * np.eye(9, 2, dtype=int)),
        r"must be in 0\.\.3.*got 0\.\.4",
    ),
    "stale too old": (lambda: trace(clock(), stale=np.full((9, 2), 4)), r"must be in 0\.\.3.*got 4\.\.4"),
    "stale run out": (lambda: trace(clock(), stale=np.zeros((5, 2), int)), "stale versions run out at round 5"),
    "sets run out": (lambda: trace(clock(), sets=np.tile([0, 1], (6, 1))), "sets run out at round 6"),
    "durations run out": (
        lambda: trace(clock(), sets=np.tile([0, 1], (9, 1)), durations=np.ones((4, 3))),
        "run 3 of client 0",
    ),
}


@pytest.mark.parametrize("name", slow_but(BAD, *(BAD.keys() - {"sets run out", "durations run out"})))
def test_invalid_options_raise(name: str) -> None:
    make, message = BAD[name]
    with pytest.raises((ValueError, TypeError), match=message):
        run_clock(make(), 4, 1, 8, 0)
