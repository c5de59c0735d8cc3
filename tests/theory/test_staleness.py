"""Moments of the staleness: closed forms against simulated ticks, schedules against counting."""

from __future__ import annotations

import numpy as np
import pytest

import jaxafl as afl
from jaxafl.theory import staleness
from tests.problems import descent


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
def test_a_result_has_the_moments_of_its_schedule() -> None:
    problem = afl.theory.quadratic(4, 2, samples=2)
    sim = descent(data=problem.data, model=problem.model)
    found, expected = staleness.of_schedule(sim.run(20, seed=3)), staleness.of_schedule(sim.schedule(20, seed=3))
    assert found.equals(expected)
