"""Predicted times: the specification's numbers, schedules without training, and networks of queues by enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import jaxafl as afl
from jaxafl.theory import optimal_times, queues

TIMES = np.array([10.0, 1.0, 2.0])
EFFORT = optimal_times.effort(0.1, smoothness=1.0, local_variance=1.0, gap=1.0)


def test_bounds_are_those_computed_by_hand() -> None:
    """τ = (1, 2, 10), L = Δ = σ² = 1, ε = 0.1: the terms of the lower bound are 110, 80 and 81.25."""
    assert optimal_times.harmonic_means(TIMES) == pytest.approx([1, 4 / 3, 1.875])
    assert optimal_times.homogeneous(TIMES, EFFORT) == pytest.approx((80, 2))
    assert optimal_times.heterogeneous(TIMES, EFFORT) == pytest.approx(100 + 13 / 3 * 100 / 3)
    assert optimal_times.asynchronous_sgd(TIMES, EFFORT) == pytest.approx(81.25)
    assert optimal_times.minibatch_sgd(TIMES, EFFORT) == pytest.approx(10 * (10 + 100 / 3))
    assert optimal_times.ringmaster_window(TIMES, 10) == pytest.approx(16)
    assert optimal_times.ringmaster(TIMES, EFFORT) == pytest.approx((1200, 1920))
    changing = [1] * 5 + [10] * 11  # five windows of 1, two of 10
    assert optimal_times.ringmaster_seconds(TIMES, changing) == pytest.approx(5 * 4 + 2 * 16)
    # B = 10 / (2 · 13/3); K = 3 · 10 + 100/B = 116.67, in 39 rounds of 20 s
    assert optimal_times.ringleader(TIMES, EFFORT) == pytest.approx((117, 39 * 20))
    assert optimal_times.delay_adaptive_steps(0.1, local_variance=1, concurrency=4) == pytest.approx(140)
    constant = optimal_times.delay_adaptive_steps(0.1, local_variance=1, concurrency=4, staleness_max=9)
    assert constant == pytest.approx(160)
    convex = optimal_times.effort(0.1, smoothness=2, local_variance=1, strong_convexity=0.5, distance=1)
    assert convex == pytest.approx((4 * np.log(10), 40 * np.log(10)))


def test_rounds_are_exact_and_below_their_bounds() -> None:
    assert optimal_times.rennala_round(TIMES, 10) == pytest.approx((7, 8))
    assert optimal_times.malenia_round(TIMES, 6) == pytest.approx((10, 2 * (10 + 13 / 3 * 6 / 3)))
    assert optimal_times.malenia_round(TIMES, 0) == (10, 20)
    rng = np.random.default_rng(0)
    for _ in range(50):
        times, batch = rng.uniform(0.1, 3, rng.integers(1, 7)), int(rng.integers(1, 20))
        arrivals = np.sort(np.concatenate([one * np.arange(1, 200) for one in times]))
        found = optimal_times.rennala_round(times, batch)
        assert found.seconds == pytest.approx(arrivals[batch - 1], rel=1e-12)
        counts = (np.floor(t / times + 1e-9) for t in arrivals)
        closes = (c.all() and len(times) / (1 / c).sum() > batch / len(times) + 1e-9 for c in counts)
        malenia = optimal_times.malenia_round(times, batch)
        assert malenia.seconds == pytest.approx(next(itertools.compress(arrivals, closes)), rel=1e-12)
        assert found.seconds <= found.bound * (1 + 1e-9) and malenia.seconds <= malenia.bound * (1 + 1e-9)


def test_a_closed_network_has_the_means_of_all_its_states() -> None:
    found = queues.closed_network([0.5, 0.5], [1, 2], 2)
    assert found["throughput"].item() == pytest.approx(0.75 / 0.4375)
    assert found["tasks"].values == pytest.approx([0.625 / 0.4375, 2 - 0.625 / 0.4375])
    p, mu, tasks = np.array([0.2, 0.5, 0.3]), np.array([0.3, 2.0, 1.0]), 5
    found = queues.closed_network(p, mu, tasks)
    states = [s for s in itertools.product(range(tasks + 1), repeat=3) if sum(s) == tasks]
    weights = np.array([np.prod((p / mu) ** s) for s in states])
    weights /= weights.sum()
    busy = weights @ (np.array(states) > 0)
    assert found["tasks"].values == pytest.approx(weights @ np.array(states))
    assert found["busy"].values == pytest.approx(busy)
    assert found["throughput"].item() == pytest.approx(busy @ mu)
    assert found["staleness"].values @ p == pytest.approx(tasks - 1)
    large = queues.closed_network(np.full(500, 1 / 500), np.linspace(1e-3, 1e3, 500), 400)
    assert np.isfinite(large.to_array()).all() and large["tasks"].sum().item() == pytest.approx(400)


@pytest.mark.slow
def test_schedules_of_routed_tasks_have_the_predicted_throughput_and_staleness() -> None:
    p, mu, tasks, steps = np.array([0.2, 0.5, 0.3]), np.array([0.3, 2.0, 1.0]), 5, 100_000
    made = afl.clock.routed(tasks=tasks, durations=afl.clock.exponential(1 / mu), probabilities=p)
    found, expected = afl.clock.schedule(made, 3, 1, steps), queues.closed_network(p, mu, tasks)
    client, late, busy = found.client.ravel(), found.staleness.ravel(), (found.arrived - found.started).ravel()
    assert steps / found.time[-1] == pytest.approx(expected["throughput"].item(), rel=0.02)
    counts = np.bincount(client)
    assert np.bincount(client, late) / counts == pytest.approx(expected["staleness"].values, rel=0.05)
    assert np.bincount(client, busy) / found.time[-1] == pytest.approx(expected["busy"].values, rel=0.02)
