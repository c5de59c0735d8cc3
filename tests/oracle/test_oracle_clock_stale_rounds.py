"""The reference clock of rounds from drawn versions, worked by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .clock import synchronous
from .clock_stale_rounds import stale_rounds
from .small_cases import per_client, rows


def test_stale_rounds_by_hand():
    # Runs of 1, 2, 3 s. Round 0 clamps at v0 and lasts 3 s. Round 1 starts at 3 s and lasts 2 s. Round 2 draws client 1
    # twice: two runs, from v0 and v1.
    steps = stale_rounds([[2, 0], [0, 1], [1, 1]], [[0, 3], [1, 0], [2, 1]], per_client([1.0, 2.0, 3.0]), num_clients=3)
    assert [step.time for step in steps] == [3, 5, 7]
    assert rows(steps, "client", "run", "dispatch", "start_version", "staleness", "start_time", "arrival_time") == [
        [(0, 0, 1, 0, 0, 0.0, 1.0), (2, 0, 0, 0, 0, 0.0, 3.0)],
        [(0, 1, 2, 0, 1, 3.0, 4.0), (1, 0, 3, 1, 0, 3.0, 5.0)],
        [(1, 1, 4, 0, 2, 5.0, 7.0), (1, 2, 5, 1, 1, 5.0, 7.0)],
    ]


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_fresh_rounds_are_synchronous_and_stale_ones_keep_their_times(data):
    members = st.lists(st.integers(0, 4), min_size=1, max_size=5, unique=True)
    sets = data.draw(st.lists(members, min_size=1, max_size=6))
    stale = [[data.draw(st.integers(0, 4)) for _ in row] for row in sets]
    duration = per_client([1.0, 2.5, 2.5, 0.5, 4.0])
    fresh = stale_rounds(sets, [[0] * len(row) for row in sets], duration, num_clients=5)
    assert fresh == synchronous(sets, duration)
    steps = stale_rounds(sets, stale, duration, num_clients=5)
    assert [step.time for step in steps] == [step.time for step in fresh]
    for t, step in enumerate(steps):
        for arrival in step.arrivals:
            assert arrival.staleness == min(t, stale[t][sets[t].index(arrival.client)])
            assert arrival.start_version == arrival.trained_from == t - arrival.staleness


@pytest.mark.parametrize(
    ("sets", "stale", "message"),
    [([[]], [[]], "no clients"), ([[2]], [[0]], "client 2"), ([[0]], [[0, 0]], "every slot"), ([[0]], [[-1]], "back")],
)
def test_stale_rounds_rejects(sets, stale, message):
    with pytest.raises(ValueError, match=message):
        stale_rounds(sets, stale, per_client([1.0, 1.0]), num_clients=2)
