"""Tasks in queues: against a slow event loop, invariants, and the stationary means of the closed network."""

from __future__ import annotations

import numpy as np
import pytest

from jaxafl import clock, theory
from jaxafl.clock import schedule as run_clock

CLIENTS, STEPS = 4, 40


@pytest.mark.slow
def test_means_of_long_runs_are_those_of_the_closed_network() -> None:
    """N = m = 2, p = 1/2, μ = (1, 2): 1.714286 steps a second, 1.428571 tasks at client 0."""
    steps = 40_000
    made = clock.routed(tasks=2, durations=clock.exponential(np.array([1.0, 0.5])))
    found = run_clock(made, 2, 1, steps)
    network = theory.queues.closed_network([0.5, 0.5], [1.0, 2.0], 2)
    assert float(network.throughput) == pytest.approx(1.714286, abs=1e-6)
    assert steps / found.time[-1] == pytest.approx(1.714286, rel=0.02)
    sent = np.insert(found.time, 0, 0)[found.version[:, 0]]
    for client in range(2):
        mine = found.client[:, 0] == client
        at_client = (found.time - sent)[mine].sum() / found.time[-1]  # Little's law
        assert at_client == pytest.approx(float(network.tasks[client]), rel=0.03)
        assert found.staleness[mine].mean() == pytest.approx(float(network.staleness[client]), rel=0.03)


@pytest.mark.slow
def test_clients_that_never_come_back_keep_their_tasks() -> None:
    times = np.tile([[1.0], [np.inf]], (1, 60))
    made = clock.routed(tasks=3, durations=clock.recorded(times), probabilities=np.array([0.9, 0.1]))
    assert (run_clock(made, 2, 1, 8, seed=1).client == 0).all()
    with pytest.raises(ValueError, match="all clients that are at work are gone"):
        run_clock(made, 2, 1, 55, seed=1)
