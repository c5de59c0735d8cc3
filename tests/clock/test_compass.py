"""FedCompass's scheduler, against a slow one in plain Python, and by hand."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl import clock
from jaxafl.clock import schedule as run_clock
from tests.problems import START, descent, observe_w, quadratic


@pytest.mark.slow
def test_two_clients_by_hand() -> None:
    """1 and 2.4 s per step: client 0 alone, its own group, client 1 joins it with 25 steps, then with 41."""
    made = clock.compass(durations=clock.constant(np.array([1.0, 2.4]), per="step"))
    found = run_clock(made, 2, 1, 5)
    assert found.time.tolist() == pytest.approx([100, 200, 240, 300, 400])
    assert found.mask.sum(axis=1).tolist() == [1, 1, 1, 2, 2]
    assert found.client[3:].tolist() == [[0, 1], [1, 0]]  # in the order in which they arrive
    assert found.local_steps[3].tolist() == [100, 25] and found.local_steps[4].tolist() == [41, 100]
    assert found.staleness[3].tolist() == [1, 0]
    assert found.arrived[4].tolist() == pytest.approx([398.4, 400])


@pytest.mark.slow
def test_times_without_a_next_arrival_are_errors() -> None:
    with pytest.raises(ValueError, match="took 0 s"):
        run_clock(clock.compass(durations=clock.constant(0.0)), 2, 1, 3)
    with pytest.raises(ValueError, match="are gone"):
        run_clock(clock.compass(durations=clock.recorded(np.full((2, 9), np.inf))), 2, 1, 3)


@pytest.mark.slow
def test_the_server_runs_the_chosen_steps_and_discounts_stale_members() -> None:
    """x_{t+1} - x_t = (0.9/N) Σ (1 + τ)^(-1/2) Δ_i, with Δ_i of the chosen number of steps of gradient descent."""
    problem, rate = quadratic(), 0.02
    made = clock.compass(
        durations=clock.uniform(0.1, 1, per="client") * clock.uniform(0.4, 1, per="step"), min_steps=2, max_steps=6
    )
    client = afl.Client(optax.sgd, learning_rate=rate, steps=3, batch_size=None)
    sim = descent(client=client, server=afl.server.fedcompass(), clock=made)
    found = sim.schedule(20, seed=1)
    assert len(set(found.local_steps[found.mask])) > 1 and found.staleness.max() > 0
    xs = [np.asarray(START)]
    for t in range(20):
        total = np.zeros_like(xs[0])
        for i in np.flatnonzero(found.mask[t]):
            one, x = problem.clients[found.client[t, i]], xs[found.version[t, i]]
            for _ in range(found.local_steps[t, i]):
                x = x - rate * np.asarray((one.a * (x - one.c)).mean(axis=0))
            total += (x - xs[found.version[t, i]]) / np.sqrt(1 + found.staleness[t, i])
        xs.append(xs[-1] + 0.9 / len(problem.clients) * total)
    with jax.enable_x64(True):
        result = sim.run(20, seed=1, observe=observe_w)
    np.testing.assert_allclose(result.observe_w.values, np.stack(xs), rtol=1e-12, atol=1e-14)
