"""DeFedAvg-nIID's rounds: send and receive buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxafl.clock import constant, exponential, sampled, trace, uniform
from jaxafl.clock import schedule as run_clock
from tests.oracle.clock_sampled import sampled as reference
from tests.problems_protocols import KINDS, assert_schedule, durations, lookup
from tests.variants import slow_but

CLIENTS, ROUNDS, DRAWN, RUNS = 6, 12, 3, 500
BUFFERS = [(receive, send) for receive in ("keep", "consume") for send in ("overwrite", "hold")]


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


@pytest.mark.slow
def test_all_combinations_of_buffers_hand_in_different_runs() -> None:
    """On one schedule, all four combinations hand in different runs."""
    rng = np.random.default_rng(0)
    sets, times = rng.integers(0, CLIENTS, (ROUNDS, DRAWN)), durations(rng, CLIENTS, RUNS, "late")
    handed_in = set()
    for receive, send in BUFFERS:
        schedule = run_clock(replay(sets, times, receive, send), CLIENTS, 1, ROUNDS, 0)
        handed_in.add(tuple(schedule.run[schedule.mask].tolist()))
    assert len(handed_in) == 4


def test_full_buffers_are_served_at_once() -> None:
    """Rounds whose clients have results already take no time, and all of them come from the same version."""
    schedule = run_clock(replay(np.asarray([[0], [1], [2]]), np.ones((3, 9)), "keep", "overwrite"), 3, 1, 3, 0)
    assert schedule.time.tolist() == [1, 1, 1]
    assert schedule.staleness.ravel().tolist() == [0, 1, 2]


@pytest.mark.slow
def test_clients_are_drawn_uniformly_with_replacement() -> None:
    rounds = 3000
    schedule = run_clock(sampled(drawn=4, durations=uniform(1, 5)), 7, 1, rounds, 0)
    counts = np.where(schedule.mask, schedule.multiplicity, 0)
    assert (counts.sum(axis=1) == 4).all()
    per_client = np.bincount(schedule.client[schedule.mask], counts[schedule.mask], minlength=7)
    assert np.abs(per_client - 4 * rounds / 7).max() < 4.5 * np.sqrt(4 * rounds * 6 / 49)
    all_different = (counts.max(axis=1) == 1).mean()
    exact = 6 * 5 * 4 / 7**3
    assert abs(all_different - exact) < 4 * np.sqrt(exact * (1 - exact) / rounds)


def test_only_runs_that_ended_are_handed_in_and_each_once() -> None:
    schedule = run_clock(sampled(drawn=3, durations=exponential(2.0)), 9, 1, 300, 1)
    assert (schedule.arrived <= schedule.time[:, None] + 1e-9)[schedule.mask].all()
    handed_in = schedule.run_id[schedule.mask]
    assert len(set(handed_in.tolist())) == len(handed_in)
    assert (np.diff(schedule.time) >= 0).all() and schedule.runs_started > len(handed_in)


BAD: dict[str, tuple[Any, str]] = {
    "nobody drawn": (lambda: sampled(drawn=0, durations=constant(1)), "drawn must be at least 1, got 0"),
    "half a client": (lambda: sampled(drawn=1.5, durations=constant(1)), "drawn must be a whole number"),
    "receive buffer": (lambda: sampled(drawn=2, durations=constant(1), receive_buffer="drop"), "'keep', 'consume'"),
    "send buffer": (lambda: sampled(drawn=2, durations=constant(1), send_buffer="keep"), "'overwrite', 'hold'"),
    "sets of another size": (
        lambda: trace(sampled(drawn=2, durations=constant(1)), sets=np.zeros((9, 3), int)),
        r"\[round, n\] with n = 2.*\(9, 3\)",
    ),
    "an unknown client": (
        lambda: trace(sampled(drawn=2, durations=constant(1)), sets=np.full((9, 2), 4)),
        r"clients 0\.\.3; round 0 names 4",
    ),
    "sets run out": (
        lambda: trace(sampled(drawn=2, durations=constant(1)), sets=np.zeros((3, 2), int)),
        "sets run out at round 3",
    ),
    "durations run out": (
        lambda: trace(sampled(drawn=2, durations=constant(1)), durations=np.ones((4, 2))),
        "run 2 of client 0",
    ),
    "a number instead of durations": (lambda: sampled(drawn=2, durations=5.0), "durations must be a duration"),
}


@pytest.mark.parametrize("name", slow_but(BAD, *(BAD.keys() - {"durations run out"})))
def test_invalid_options_raise(name: str) -> None:
    make, message = BAD[name]
    with pytest.raises((ValueError, TypeError), match=message):
        run_clock(make(), 4, 1, 8, 0)
