"""FedCompass's scheduler, against a slow one in plain Python, and by hand."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxafl as afl
from jaxafl import clock
from jaxafl.clock import schedule as run_clock
from tests.clock.test_events import COLUMNS
from tests.oracle.clock_compass import compass
from tests.problems import START, observe_w, quadratic

CLIENTS, STEPS = 5, 40


def check(seed: int, spread: float, options: dict[str, Any], clients: int = CLIENTS, ties: bool = False) -> None:
    rng = np.random.default_rng(seed)
    table = rng.uniform(0.1, 1.5, (clients, 1)) * rng.uniform(1 - spread, 1 + spread, (clients, 600))
    if ties:
        table = np.ceil(4 * table)
    made = clock.compass(durations=clock.recorded(table, per="step"), **options)
    found = run_clock(made, clients, 1, STEPS, seed)
    own = {"min_steps": "low", "max_steps": "high", "tolerance": "tolerance", "momentum": "momentum"}
    given = {own[name]: value for name, value in options.items()}
    log, steps = compass(clients, lambda client, run, steps: table[client, run] * steps, STEPS, **given)
    np.testing.assert_allclose(found.time, [time for time, _, _ in log.steps], rtol=1e-12)
    for t, (_, arrivals, _) in enumerate(log.steps):
        taken = np.flatnonzero(found.mask[t])
        taken = taken[np.argsort(found.client[t][taken])]
        for index, name in enumerate(COLUMNS):
            np.testing.assert_allclose(getattr(found, name)[t][taken], [one[index] for one in arrivals], rtol=1e-12)
        assert found.local_steps[t][taken].tolist() == steps[t]
    counted = np.stack([found.runs_begun, found.runs_refused], 1)
    np.testing.assert_array_equal(counted, np.array(log.counts)[:, :2])


@pytest.mark.parametrize(("seed", "spread", "tolerance"), [(3, 0.0, 1.2), (3, 0.9, 1.2), (0, 0.3, 1.0)])
def test_groups_are_those_of_the_slow_scheduler(seed: int, spread: float, tolerance: float) -> None:
    """In the third case a row is full of members, and what is left of the general buffer is replaced by them."""
    check(seed, spread, {"min_steps": 5, "max_steps": 30, "tolerance": tolerance})


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 0.3, 0.9]),
    st.sampled_from([1.0, 1.2, 3.0]),
    st.sampled_from([(5, 30), (1, 2), (3, 3)]),  # of three steps exactly there are almost as many groups as clients
    st.sampled_from([2, 5, 16, 17, 40]),
    st.booleans(),
)
def test_they_are_for_all_speeds(
    seed: int, spread: float, tolerance: float, steps: tuple[int, int], clients: int, ties: bool
) -> None:
    options = {"min_steps": steps[0], "max_steps": steps[1], "tolerance": tolerance, "momentum": 0.7}
    check(seed, spread, options, clients, ties)


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
    with pytest.raises(ValueError, match="takes no time"):
        run_clock(clock.compass(durations=clock.constant(0.0)), 2, 1, 3)
    with pytest.raises(ValueError, match="are gone"):
        run_clock(clock.compass(durations=clock.recorded(np.full((2, 9), np.inf))), 2, 1, 3)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ValueError, match="Give a smaller min_steps"):
        run_clock(clock.compass(durations=clock.constant(1.0), min_steps=101), 2, 1, 3)
    with pytest.raises(ValueError, match="tolerance must be >= 1"):
        run_clock(clock.compass(durations=clock.constant(1.0), tolerance=0.9), 2, 1, 3)
    problem, client = quadratic(), afl.Client(learning_rate=0.1, steps=2, batch_size=1, sampling="epochs")
    made = clock.compass(durations=clock.constant(1.0))
    with pytest.raises(ValueError, match="runs of equal length to go on from, but compass changes"):
        afl.Simulation(problem.data, problem.model, client, afl.server.fedcompass(), made).check()


@pytest.mark.slow
def test_the_server_runs_the_chosen_steps_and_discounts_stale_members() -> None:
    """x_{t+1} - x_t = (0.9/N) Σ (1 + τ)^(-1/2) Δ_i, with Δ_i of the chosen number of steps of gradient descent."""
    problem, rate = quadratic(), 0.02
    made = clock.compass(
        durations=clock.uniform(0.1, 1, per="client") * clock.uniform(0.4, 1, per="step"), min_steps=2, max_steps=6
    )
    client = afl.Client(optax.sgd, learning_rate=rate, steps=3, batch_size=None)
    sim = afl.Simulation(problem.data, problem.model, client, afl.server.fedcompass(), made)
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
