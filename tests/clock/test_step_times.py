"""The distribution of a client's time per local step."""

from __future__ import annotations

import numpy as np
import pytest

from jaxafl.clock import constant, exponential, interrupting, uniform
from jaxafl.clock.step_times import step_times
from jaxafl.schedule import compute_schedule


def test_constant_times() -> None:
    latency, per_step = step_times(constant(0.5) + constant(np.asarray([1.0, 2.0, 3.0]), per="step"), 3)
    np.testing.assert_allclose(latency, np.full((3, 1), 0.5))
    np.testing.assert_allclose(per_step, [[1], [2], [3]])


def test_one_distribution_is_cut_into_equal_parts() -> None:
    latency, per_step = step_times(exponential(2.0, per="step"), 4)
    assert (latency == 0).all() and per_step.shape[0] == 4
    np.testing.assert_allclose(per_step.mean(axis=1), 2.0, rtol=2e-3)
    # P(X <= 1) to a part
    np.testing.assert_allclose((per_step <= 1).mean(axis=1), 1 - np.exp(-0.5), atol=2 / per_step.shape[1])


def test_a_time_per_run_is_a_latency() -> None:
    latency, per_step = step_times(uniform(1, 3), 2)
    assert (per_step == 0).all()
    np.testing.assert_allclose(latency.mean(axis=1), 2.0, rtol=1e-6)


def test_a_product_is_drawn() -> None:
    latency, per_step = step_times(uniform(1, 3) * uniform(0.1, 0.3, per="step"), 3)
    assert (latency == 0).all()
    error = per_step.std(axis=1) / np.sqrt(per_step.shape[1])
    assert (np.abs(per_step.mean(axis=1) - 0.4) < 5 * error).all() and (error < 0.01).all()


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_client_speeds_are_those_of_the_seed(seed: int) -> None:
    """A time drawn once per client is the one that the clock of a run with this seed draws."""
    durations = uniform(0.1, 5, per="client") * constant(1.0, per="step")
    latency, per_step = step_times(durations, 5, seed)
    assert per_step.shape == (5, 1) and (latency == 0).all()
    schedule = compute_schedule(interrupting(period=1000.0, contacted=5, durations=durations), 5, 10**6, 1, seed)
    np.testing.assert_allclose(schedule.local_steps[0], np.floor(1000 / per_step[:, 0]), atol=1)
