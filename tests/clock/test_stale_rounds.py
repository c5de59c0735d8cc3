"""Rounds of clients that start from versions of a random age."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxafl.clock import constant, stale_rounds, trace, uniform
from jaxafl.clock import schedule as run_clock
from tests.problems_protocols import KINDS, durations, sets_without_repeats

CLIENTS, ROUNDS, DRAWN, OLDEST = 6, 15, 3, 4


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(KINDS), replacement=st.booleans())
def test_recorded_rounds_last_as_long_as_their_slowest_run(seed: int, kind: str, replacement: bool) -> None:
    rng = np.random.default_rng(seed)
    sets = sets_without_repeats(rng, ROUNDS, DRAWN, CLIENTS - 1)  # client 5 never takes part
    if replacement:
        sets = rng.integers(0, CLIENTS - 1, (ROUNDS, DRAWN))
        sets[4], sets[5] = [2, 2, 2], [1, 4, 1]
    stale = rng.integers(0, OLDEST + 1, (ROUNDS, DRAWN))
    times = durations(rng, CLIENTS, DRAWN * ROUNDS, kind)
    protocol = stale_rounds(participants=DRAWN, max_staleness=OLDEST, durations=constant(0), replacement=replacement)
    schedule = run_clock(trace(protocol, sets=sets, stale=stale, durations=times), CLIENTS, 1, ROUNDS, 0)
    np.testing.assert_array_equal(schedule.client, sets)
    np.testing.assert_array_equal(schedule.run_id, np.arange(ROUNDS * DRAWN).reshape(ROUNDS, DRAWN))
    earlier = [(sets.ravel()[:place] == client).sum() for place, client in enumerate(sets.ravel())]
    np.testing.assert_array_equal(schedule.run.ravel(), earlier)
    lasted = times[sets, schedule.run]
    np.testing.assert_allclose(schedule.time, lasted.max(axis=1).cumsum(), rtol=1e-9)
    np.testing.assert_allclose(schedule.arrived - schedule.started, lasted, rtol=1e-9)
    np.testing.assert_array_equal(schedule.started[1:], np.repeat(schedule.time[:-1, None], DRAWN, axis=1))
    assert schedule.mask.all() and (schedule.multiplicity == 1).all()
    np.testing.assert_array_equal(schedule.staleness, np.minimum(stale, np.arange(ROUNDS)[:, None]))
    np.testing.assert_array_equal(schedule.version, np.arange(ROUNDS)[:, None] - schedule.staleness)


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
