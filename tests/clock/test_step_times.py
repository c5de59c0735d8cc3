"""The distribution of a client's time per local step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxafl.clock import Duration, constant, exponential, interrupting, recorded, uniform, worked
from jaxafl.clock import schedule as run_clock


def test_constant_times() -> None:
    latency, per_step = (constant(0.5) + constant(np.asarray([1.0, 2.0, 3.0]), per="step")).step_times(3)
    np.testing.assert_allclose(latency, np.full((3, 1), 0.5))
    np.testing.assert_allclose(per_step, [[1], [2], [3]])


def test_times_that_are_not_linear_in_the_local_steps_are_refused() -> None:
    class square(Duration):
        def draw(self, prepared: Any, run: Any) -> Any:
            return worked(run.local_steps**2.0)

    with pytest.raises(ValueError, match="is not latency"):
        square().step_times(3)


def test_one_distribution_is_cut_into_equal_parts() -> None:
    latency, per_step = exponential(2.0, per="step").step_times(4)
    assert (latency == 0).all() and per_step.shape[0] == 4
    np.testing.assert_allclose(per_step.mean(axis=1), 2.0, rtol=2e-3)
    # P(X <= 1) to a part
    np.testing.assert_allclose((per_step <= 1).mean(axis=1), 1 - np.exp(-0.5), atol=2 / per_step.shape[1])


def test_recorded_times_of_clients_with_different_numbers_of_runs() -> None:
    """Each client's runs are equally likely, however many the others have."""
    latency, per_step = recorded([[1.0, 2.0], [3.0], [1.0, 5.0, 6.0]], per="step").step_times(3)
    assert (latency == 0).all()
    np.testing.assert_allclose(per_step.mean(axis=1), [1.5, 3, 4], rtol=2e-3)
    _, exact = recorded([[1.0, 2.0], [3.0, 7.0]], per="step").step_times(2)
    np.testing.assert_array_equal(exact, [[1, 2], [3, 7]])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 7])
def test_client_speeds_are_those_of_the_seed(seed: int) -> None:
    """A time drawn once per client is the one that the clock of a run with this seed draws."""
    durations = uniform(0.1, 5, per="client") * constant(1.0, per="step")
    latency, per_step = durations.step_times(5, seed)
    assert per_step.shape == (5, 1) and (latency == 0).all()
    schedule = run_clock(interrupting(period=1000.0, contacted=5, durations=durations), 5, 10**6, 1, seed)
    np.testing.assert_allclose(schedule.local_steps[0], np.floor(1000 / per_step[:, 0]), atol=1)
