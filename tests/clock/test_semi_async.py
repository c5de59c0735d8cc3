"""SAFA's rounds: a quota of arrivals, stragglers tolerated up to a lag."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxafl.clock import constant, semi_async, trace, uniform
from jaxafl.clock import schedule as run_clock
from jaxafl.clock.protocols.rounds import PICKED, RESYNCHRONISED
from tests.problems_protocols import KINDS, durations

CLIENTS, ROUNDS = 6, 20


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(KINDS), quota=st.integers(1, CLIENTS), lag=st.integers(0, 3)
)
def test_rounds_keep_their_promises(seed: int, kind: str, quota: int, lag: int) -> None:
    times = durations(np.random.default_rng(seed), CLIENTS, ROUNDS + 1, kind)
    clock = trace(semi_async(fraction=quota / CLIENTS, lag=lag, durations=constant(0)), durations=times)
    found = run_clock(clock, CLIENTS, 1, ROUNDS, 0)
    starts = np.insert(found.time, 0, 0.0)  # of every version
    version, run = np.zeros(CLIENTS, int), np.zeros(CLIENTS, int)  # of the run that each client makes in a round
    picked_before = np.zeros(CLIENTS, bool)
    np.testing.assert_array_equal(found.client, np.tile(np.arange(CLIENTS), (ROUNDS, 1)))
    for t in range(ROUNDS):
        abandoned, arrived = t - version > lag, found.mask[t]
        np.testing.assert_array_equal(found.kind[t] >= RESYNCHRONISED, abandoned)
        version, run = np.where(abandoned, t, version), run + abandoned
        ends = starts[version] + times[np.arange(CLIENTS), run]
        rank = np.lexsort((ends, picked_before))  # not picked before, then earlier, then the lower number
        filled = picked_before[rank[quota - 1]]  # by others, once nobody trains any more
        close = ends.max() if filled else ends[rank[quota - 1]]
        assert found.time[t] == pytest.approx(close, rel=1e-12)
        np.testing.assert_array_equal(arrived, ends <= close)
        picked_before = np.isin(np.arange(CLIENTS), rank[:quota])
        np.testing.assert_array_equal(arrived & (found.kind[t] % 2 == PICKED), picked_before)
        assert found.version[t][arrived].tolist() == version[arrived].tolist()
        assert found.run[t][arrived].tolist() == run[arrived].tolist()
        np.testing.assert_allclose(found.arrived[t][arrived], ends[arrived], rtol=1e-12)
        version, run = np.where(arrived, t + 1, version), run + arrived


@pytest.mark.parametrize(
    ("clients", "fraction", "quota"),
    [(5, 0.5, 3), (5, 0.01, 1), (5, 1.0, 5), (10, 0.25, 3), (100, 0.07, 7), (100, 0.29, 29)],
)
def test_the_quota_is_rounded_up_without_rounding_errors(clients: int, fraction: float, quota: int) -> None:
    """0.07 · 100 is above 7 in float64, and 0.29 · 100 below 29."""
    schedule = run_clock(semi_async(fraction=fraction, lag=2, durations=uniform(1, 5)), clients, 1, 5, 0)
    assert ((schedule.mask & (schedule.kind % 2 == PICKED)).sum(axis=1) == quota).all()
