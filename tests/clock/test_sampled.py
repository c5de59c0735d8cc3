"""DeFedAvg-nIID's rounds: send and receive buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxafl.clock import constant, exponential, sampled, trace
from jaxafl.clock import schedule as run_clock
from tests.oracle.clock_sampled import sampled as reference
from tests.problems_protocols import KINDS, assert_schedule, durations, lookup

CLIENTS, ROUNDS, DRAWN, RUNS = 6, 12, 3, 500


def replay(sets: np.ndarray, times: np.ndarray, receive: str, send: str) -> Any:
    protocol = sampled(drawn=sets.shape[1], durations=constant(0), receive_buffer=receive, send_buffer=send)
    return trace(protocol, sets=sets, durations=times)


@pytest.mark.parametrize(
    ("receive", "send"),
    [
        ("keep", "overwrite"),
        pytest.param("keep", "hold", marks=pytest.mark.slow),
        pytest.param("consume", "overwrite", marks=pytest.mark.slow),
        ("consume", "hold"),
    ],
)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(KINDS))
def test_recorded_rounds_are_those_of_the_reference(receive: str, send: str, seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    sets = rng.integers(0, CLIENTS - 1, (ROUNDS, DRAWN))  # client 5 is never drawn
    sets[2], sets[3], sets[4] = [1, 1, 1], [2, 1, 2], [2, 1, 2]
    times = durations(rng, CLIENTS, RUNS, kind)
    schedule = run_clock(replay(sets, times, receive, send), CLIENTS, 1, ROUNDS, 0)
    options = {"num_clients": CLIENTS, "receive_buffer": receive, "send_buffer": send}
    assert_schedule(schedule, reference(sets.tolist(), lookup(times), **options))
    for t in range(ROUNDS):
        assert (np.diff(schedule.client[t][schedule.mask[t]]) > 0).all()


def test_full_buffers_are_served_at_once() -> None:
    """Rounds whose clients have results already take no time, and all of them come from the same version."""
    schedule = run_clock(replay(np.asarray([[0], [1], [2]]), np.ones((3, 9)), "keep", "overwrite"), 3, 1, 3, 0)
    assert schedule.time.tolist() == [1, 1, 1]
    assert schedule.staleness.ravel().tolist() == [0, 1, 2]


def test_only_runs_that_ended_are_handed_in_and_each_once() -> None:
    schedule = run_clock(sampled(drawn=3, durations=exponential(2.0)), 9, 1, 300, 1)
    assert (schedule.arrived <= schedule.time[:, None] + 1e-9)[schedule.mask].all()
    handed_in = schedule.run_id[schedule.mask]
    assert len(set(handed_in.tolist())) == len(handed_in)
    assert (np.diff(schedule.time) >= 0).all() and schedule.runs_started > len(handed_in)
