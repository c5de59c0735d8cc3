"""Tasks in queues: against a slow event loop, invariants, and the stationary means of the closed network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxafl import clock, theory
from jaxafl.clock import Schedule
from jaxafl.clock import schedule as run_clock
from tests.clock.test_events import assert_log
from tests.oracle import clock_events as oracle
from tests.problems_protocols import KINDS, durations, lookup, picks

CLIENTS, STEPS = 4, 40
P = np.array([0.5, 0.125, 0.125, 0.25])


def check(kind: str, seed: int, tasks: int) -> Schedule:
    times = durations(np.random.default_rng(seed), CLIENTS, 400, kind)
    made = clock.routed(tasks=tasks, durations=clock.recorded(times), probabilities=P)
    found = run_clock(made, CLIENTS, 1, STEPS, seed)
    assert_log(found, oracle.routed(CLIENTS, lookup(times), STEPS, tasks, picks(seed, P.tolist())))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_queue_as_in_the_event_loop(kind: str) -> None:
    found = check(kind, 3, 6)
    for client in range(CLIENTS):
        mine = found.client[:, 0] == client
        started, arrived = found.started[mine, 0], found.arrived[mine, 0]
        assert (started[1:] >= arrived[:-1]).all()  # no run of a client overlaps another
        assert (np.diff(found.run_id[mine, 0]) > 0).all()  # first in, first out
    assert (found.started[:, 0] >= np.insert(found.time, 0, 0)[found.version[:, 0]]).all()


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(kind=st.sampled_from(KINDS), seed=st.integers(0, 2**32 - 1), tasks=st.sampled_from([1, 2, 6]))
def test_they_do_so_for_all_kinds_of_durations(kind: str, seed: int, tasks: int) -> None:
    check(kind, seed, tasks)


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


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"probabilities": np.full(4, 0.2)}, "probabilities have the sum 0.8 over 4 clients; expected 1"),
        ({"probabilities": 0.5}, "the sum 2 over 4 clients"),
        ({"probabilities": np.array([0.5, 0.5, 0, 0])}, "probabilities must be in|probabilities must be > 0"),
        ({"probabilities": np.full(3, 1 / 3)}, "one number per client"),
        ({"tasks": 0}, "tasks must be at least 1"),
        ({"durations": clock.mac_network(17.0, 2.2)}, "freeze=False"),
    ],
)
def test_wrong_networks_are_refused(options: dict[str, Any], text: str) -> None:
    made = clock.routed(**({"tasks": 3, "durations": clock.constant(1.0)} | options))
    with pytest.raises(ValueError, match=text):
        run_clock(made, 4, 1, 3)


@pytest.mark.slow
def test_clients_that_never_come_back_keep_their_tasks() -> None:
    times = np.tile([[1.0], [np.inf]], (1, 60))
    made = clock.routed(tasks=3, durations=clock.recorded(times), probabilities=np.array([0.9, 0.1]))
    assert (run_clock(made, 2, 1, 8, seed=1).client == 0).all()
    with pytest.raises(ValueError, match="all clients that are at work are gone"):
        run_clock(made, 2, 1, 55, seed=1)
