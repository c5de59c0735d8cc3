"""FAVANO and QuAFL, step by step, against their slow references on recorded contacts."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
import pytest
import xarray as xr

from jaxafl import server
from jaxafl.client import Client
from jaxafl.clock import constant, exponential, interrupting, trace, uniform
from jaxafl.clock.schedules import schedule as compute_schedule
from jaxafl.server.favano import expectations
from tests.oracle.client import LocalTraining as OracleTraining
from tests.oracle.clock import ServerStep
from tests.oracle.clock_interrupting import interrupting as oracle_interrupting
from tests.oracle.server_interrupting import FAVANO, QuAFL, mixed_gap_expectations
from tests.oracle.simulate import Simulation as Expected
from tests.oracle.simulate_quafl import simulate_quafl
from tests.problems import START, quadratic, reference, simulate
from tests.problems_protocols import assert_versions, lookup, sets_without_repeats

CLIENTS, CONTACTS, CONTACTED, MOST, PERIOD = 6, 16, 3, 4, 2.0
PRECISIONS = {"float64": (True, 1e-9), "float32": (False, 1e-5)}
LOCAL = Client(optax.sgd, learning_rate=0.2, momentum=0.5, steps=MOST, batch_size=None)
ORACLE_LOCAL = OracleTraining(learning_rate=0.2, momentum=0.5)


def contacts(seed: int, constant_times: bool = True) -> tuple[Any, list[ServerStep], np.ndarray]:
    """Clock, the reference's contacts, seconds per step [client, run]; client 0 seldom ends a step, 5 never arrives."""
    rng = np.random.default_rng(seed)
    sets = sets_without_repeats(rng, CONTACTS, CONTACTED, CLIENTS - 1)
    times = rng.integers(1, 12, (CLIENTS, 1 if constant_times else CONTACTS + 1)) / 4
    times = np.broadcast_to(times, (CLIENTS, CONTACTS + 1)).copy()
    times[0] = 4.5
    protocol = interrupting(period=PERIOD, contacted=CONTACTED, durations=constant(0))
    steps = oracle_interrupting(sets.tolist(), lookup(times), num_clients=CLIENTS, period=PERIOD, max_steps=MOST)
    made = [arrival.local_steps for step in steps for arrival in step.arrivals]
    assert min(made) == 0 and max(made) == MOST
    return trace(protocol, sets=sets, durations=times, per="step"), steps, times


def assert_follows(result: xr.Dataset, expected: Expected, steps: list[ServerStep], tolerance: float) -> None:
    assert_versions(result, expected, tolerance)
    made = [[arrival.local_steps for arrival in step.arrivals] for step in steps]
    np.testing.assert_array_equal(result.local_steps.values, made)
    losses = np.asarray([record.losses for record in expected.records])
    worked = np.asarray(made) > 0
    np.testing.assert_allclose(result.local_loss.values[worked], losses[worked], rtol=10 * tolerance)


def normalisers(times: np.ndarray) -> tuple[list[float], list[float]]:
    """E[min(E, K)] and P(E > 0) of every client, its recorded times being equally likely."""
    both = [
        mixed_gap_expectations(
            period=PERIOD, step_times=row.tolist(), contact_probability=CONTACTED / CLIENTS, max_steps=MOST
        )
        for row in times
    ]
    return [expected for expected, _ in both], [positive for _, positive in both]


@pytest.mark.parametrize(
    ("reweight", "constant_times", "precision"),
    [
        ("deterministic", True, "float64"),
        pytest.param("deterministic", False, "float32", marks=pytest.mark.slow),
        pytest.param("stochastic", False, "float64", marks=pytest.mark.slow),
    ],
)
def test_favano(reweight: str, constant_times: bool, precision: str) -> None:
    wide, tolerance = PRECISIONS[precision]
    clock, steps, times = contacts(0, constant_times)
    expected_steps, positive = normalisers(times)
    theirs = FAVANO(normaliser=expected_steps if reweight == "deterministic" else positive, reweight=reweight)
    expected = reference(quadratic(), theirs, steps, ORACLE_LOCAL)
    with jax.enable_x64(wide):
        result = simulate(quadratic(), server.favano(reweight), clock, CONTACTS, LOCAL)
    assert_follows(result, expected, steps, tolerance)


@pytest.mark.parametrize("reweight", ["deterministic", pytest.param("stochastic", marks=pytest.mark.slow)])
def test_favano_with_numbers_of_ones_own(reweight: str) -> None:
    """They stand for E[min(E_i, K)], or for the P(E_i > 0) that multiplies the steps made."""
    clock, steps, _ = contacts(1)
    numbers = [1.0, 2.0, 0.5, 3.0, 1.5, 9.0]
    expected = reference(quadratic(), FAVANO(normaliser=numbers, reweight=reweight), steps, ORACLE_LOCAL)
    with jax.enable_x64(True):
        result = simulate(quadratic(), server.favano(reweight, np.asarray(numbers)), clock, CONTACTS, LOCAL)
    assert_follows(result, expected, steps, 1e-9)
    made = result.local_steps.values if reweight == "stochastic" else 1
    np.testing.assert_array_equal(result.normaliser.values, made * np.asarray(numbers)[result.client_id.values])


@pytest.mark.parametrize(
    ("scaled", "precision"),
    [(False, "float64"), (True, "float64"), pytest.param(False, "float32", marks=pytest.mark.slow)],
)
def test_quafl(scaled: bool, precision: str) -> None:
    wide, tolerance = PRECISIONS[precision]
    clock, steps, _ = contacts(2, False)
    theirs = QuAFL(num_clients=CLIENTS, x0=np.asarray(START))
    expected = simulate_quafl(steps, ORACLE_LOCAL, theirs, np.asarray(START), quadratic().clients, scale_rate=scaled)
    with jax.enable_x64(wide):
        result = simulate(quadratic(), server.quafl(scaled), clock, CONTACTS, LOCAL)
    assert_follows(result, expected, steps, tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("make", [server.favano, server.quafl])
def test_the_width_of_training_changes_nothing(make: Any) -> None:
    clock, _, _ = contacts(3)
    with jax.enable_x64(True):
        one, several = (
            simulate(quadratic(), make(), clock, CONTACTS, LOCAL, lanes=lanes, chunk=lanes) for lanes in (1, 4)
        )
    np.testing.assert_allclose(one.observe_w, several.observe_w, rtol=1e-12)


@pytest.mark.slow
def test_many_recorded_contacts() -> None:
    for seed in range(4, 12):
        clock, steps, times = contacts(seed, seed % 2 == 0)
        reweight = ("deterministic", "stochastic")[seed // 2 % 2]
        normaliser = normalisers(times)[seed // 2 % 2]
        expected = reference(quadratic(), FAVANO(normaliser=normaliser, reweight=reweight), steps, ORACLE_LOCAL)
        theirs = QuAFL(num_clients=CLIENTS, x0=np.asarray(START))
        own = simulate_quafl(steps, ORACLE_LOCAL, theirs, np.asarray(START), quadratic().clients)
        with jax.enable_x64(True):
            mine = simulate(quadratic(), server.favano(reweight), clock, CONTACTS, LOCAL)
            assert_follows(mine, expected, steps, 1e-9)
            assert_follows(simulate(quadratic(), server.quafl(), clock, CONTACTS, LOCAL), own, steps, 1e-9)


def test_expectations_are_those_of_the_reference() -> None:
    rng = np.random.default_rng(0)
    step_times, most = rng.uniform(0.05, 6, (5, 40)), np.asarray([1, 2, 7, 30, 100])
    expected, positive = expectations(np.zeros_like(step_times), step_times, 1.5, 0.2, most)
    theirs = [
        mixed_gap_expectations(period=1.5, step_times=row.tolist(), contact_probability=0.2, max_steps=int(k))
        for row, k in zip(step_times, most, strict=True)
    ]
    np.testing.assert_allclose(expected, [e for e, _ in theirs], rtol=1e-12)
    np.testing.assert_allclose(positive, [p for _, p in theirs], rtol=1e-12)


@pytest.mark.parametrize(
    "durations",
    [
        exponential(1.5, per="step"),
        pytest.param(
            constant(0.7) + constant(np.asarray([0.3, 0.5, 0.9, 1.7, 4.0]), per="step"), marks=pytest.mark.slow
        ),
        pytest.param(uniform(0.5, 2.0) * uniform(0.5, 2.0, per="step"), marks=pytest.mark.slow),
        pytest.param(uniform(0.2, 4.0, per="client") * constant(0.8, per="step"), marks=pytest.mark.slow),
    ],
    ids=["exponential", "latency", "product", "per client"],
)
def test_expectations_are_those_of_the_clock(durations: Any) -> None:
    """E[min(E, K)] and P(E > 0) against the mean over 20,000 simulated contacts."""
    clock, clients, most, rounds = interrupting(period=1.0, contacted=2, durations=durations), 5, 6, 10_000
    schedule = compute_schedule(clock, clients, most, rounds, 3)
    tables = {}
    for reweight in ("deterministic", "stochastic"):
        client = Client(optax.sgd, learning_rate=1.0, steps=most)
        made, _ = server.favano(reweight).prepare(clock, client, np.ones(clients, int), 3)
        tables[reweight] = made.table
    for client in range(clients):
        made = schedule.local_steps[200:][schedule.client[200:] == client]
        for values, exact in ((made, tables["deterministic"]), (made > 0, tables["stochastic"])):
            assert abs(values.mean() - exact[client]) < 5 * values.std() / np.sqrt(len(values)) + 0.01 * exact[client]
