"""Moments of the staleness: closed forms against simulated ticks, schedules against counting."""

from __future__ import annotations

import numpy as np
import pytest

import jaxafl as afl
from jaxafl.options import UserError
from jaxafl.theory import staleness


def ages(upload: float, download: float, ticks: int) -> tuple[np.ndarray, np.ndarray]:
    """Ages at each tick of the model that a client holds, and of the gradient last received once this tick's upload has
    been tried."""
    rng = np.random.default_rng(0)
    version, received, model, gradient = 0, 0, [], []
    for tick in range(ticks):
        model.append(tick - version)
        arrives = rng.random() < upload
        received = version if arrives else received
        gradient.append(tick - received)
        if arrives and rng.random() < download:
            version = tick + 1
    return np.array(model, float), np.array(gradient, float)


@pytest.mark.parametrize(("upload", "download"), [(0.7, 1.0), (0.4, 1.0), (0.6, 0.5)])
def test_closed_forms_are_those_of_simulated_ticks(upload, download) -> None:
    for age, seen in zip(("model", "gradient"), ages(upload, download, 200_000), strict=True):
        found = staleness.bernoulli(upload, download, age=age)
        for power, name in enumerate(("mean", "square", "cube"), start=1):
            assert found[f"staleness_{name}"].item() == pytest.approx(np.mean(seen**power), rel=0.03 * power)
        cubic = np.mean(seen**3 / 3 + 1.5 * seen**2 + 13 / 6 * seen)
        assert found["cubic_staleness"].item() == pytest.approx(cubic, rel=0.08)


def test_the_mean_is_that_of_the_clock_and_weights_are_used() -> None:
    found = staleness.bernoulli([0.5, 0.25], weights=[3, 1])
    assert found["staleness_mean"].values.tolist() == [1.0, 3.0]
    assert found["mean_staleness"].item() == pytest.approx(1.5)
    assert (found["mean_arrivals"].item(), found["clients"].item()) == (0.75, 2.0)
    assert staleness.bernoulli(0.5, clients=4)["mean_arrivals"].item() == 2.0
    assert staleness.bernoulli(1.0)["cubic_staleness"].item() == 0


@pytest.mark.slow
def test_a_schedule_has_the_moments_of_its_clock() -> None:
    upload = np.array([0.9, 0.6, 0.4])
    made = afl.clock.schedule(afl.clock.bernoulli(upload), 3, 1, 20_000, seed=1)
    for age in ("model", "gradient"):
        found, expected = staleness.of_schedule(made, age=age), staleness.bernoulli(upload, age=age)
        np.testing.assert_allclose(found["staleness_mean"], expected["staleness_mean"], rtol=0.05)
        assert found["cubic_staleness"].item() == pytest.approx(expected["cubic_staleness"].item(), rel=0.1)
        assert found["mean_arrivals"].item() == pytest.approx(1.9, rel=0.02)


def test_a_schedule_by_hand_and_its_units() -> None:
    """Three ticks of two clients, the second heard once; seconds do not matter."""
    uploads = np.array([[True, False], [False, True], [True, False]])
    made = afl.clock.schedule(afl.clock.trace(afl.clock.bernoulli(0.5), uploads=uploads, downloads=uploads), 2, 1, 3)
    found = staleness.of_schedule(made)
    assert found["staleness_mean"].values.tolist() == [0.5, 1.0]  # 0 and 2 - 1; 1 - 0
    assert found["mean_staleness"].item() == 0.75
    assert (found["staleness_max"].item(), found["staleness_mean_of_max"].item()) == (1.0, pytest.approx(2 / 3))
    gradient = staleness.of_schedule(made, age="gradient")
    assert gradient["staleness_mean"].values.tolist() == [pytest.approx(2 / 3), 1.5]  # 0, 1, 1; 1, 2


@pytest.mark.slow
def test_units_of_time_do_not_matter() -> None:
    slow = [afl.clock.free_running(concurrency=3, durations=unit * afl.clock.uniform(1, 5)) for unit in (1.0, 60.0)]
    once, again = (staleness.of_schedule(afl.clock.schedule(clock, 4, 1, 50)) for clock in slow)
    assert once.equals(again)


@pytest.mark.slow
def test_a_result_has_the_moments_of_its_schedule() -> None:
    problem = afl.theory.quadratic(4, 2, samples=2)
    sim = afl.Simulation(
        problem.data, problem.model, afl.Client(learning_rate=0.1, steps=1, batch_size=1), afl.server.fedbuff(),
        afl.clock.free_running(concurrency=3, buffer=2, durations=afl.clock.uniform(1, 5)),
    )  # fmt: skip
    found, expected = staleness.of_schedule(sim.run(20, seed=3)), staleness.of_schedule(sim.schedule(20, seed=3))
    assert found.equals(expected)


def test_clients_that_are_never_heard_and_errors() -> None:
    made = afl.clock.schedule(afl.clock.bernoulli([0.5, 0.0]), 2, 1, 30)
    found = staleness.of_schedule(made)
    assert np.isnan(found["staleness_mean"].values).tolist() == [False, True] and found["clients_heard"].item() == 1
    assert found["mean_staleness"].item() == found["staleness_mean"].values[0]
    with pytest.raises(UserError, match="nobody arrived"):
        staleness.of_schedule(afl.clock.schedule(afl.clock.bernoulli(0.0), 2, 1, 3))
    with pytest.raises(UserError, match="upload must be"):
        staleness.bernoulli(0.0)
    with pytest.raises(UserError, match="of different numbers of clients"):
        staleness.bernoulli([0.5, 0.5], weights=[1, 1, 1])
    for weight in (-1.0, np.inf):
        with pytest.raises(UserError, match="weights must be finite and >= 0"):
            staleness.bernoulli(0.5, weights=[weight])
    with pytest.raises(UserError, match="age must be one of 'model', 'gradient'"):
        staleness.bernoulli(0.5, age="both")
