"""Numbers of server steps from bounds, and the speed-up that DeFedAvg's theorem predicts."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from jaxafl.options import UserError
from jaxafl.theory import Quadratic, defedavg, evaluate, quadratic, speed_up, steps_to
from tests.theory.cases import CASES

_STEPS, _SIZES = 8192, [1, 2, 4, 8]
_RUN = dict(local_steps=2, staleness_max=3)


@pytest.fixture(scope="module")
def problem() -> Quadratic:
    return quadratic(10, 3, noise=2.0, strong_convexity=0.3, heterogeneity=0.3, samples=2, alike=True)


def constants(problem: Quadratic) -> dict[str, float]:
    return problem.constants(2.0, batch_size=1) | {"unit_of_objective": problem.constants()["gap"]}


def test_steps_to_is_the_inverse_of_the_bound() -> None:
    function, given = CASES["defedavg 2"]

    def bound(steps: np.ndarray) -> Any:
        return function(**given | {"server_steps": steps})

    target = bound(np.array([3e6]))["total"].item()
    assert steps_to(target, bound) == pytest.approx(3e6, rel=1e-9)
    assert steps_to(1e-12, bound) == np.inf
    with warnings.catch_warnings(action="error"):
        assert np.isnan(speed_up(1e-12, [1, 2], lambda steps, size: bound(steps))).all()
    with pytest.raises(UserError, match="target must be > 0"):
        steps_to(0.0, bound)


def test_the_predicted_speed_up_of_defedavg_is_linear_in_n(problem) -> None:
    own = constants(problem)

    def bound(steps: np.ndarray, size: float) -> Any:
        return evaluate(defedavg.theorem_1, own, server_steps=steps, arrivals=size, **_RUN)

    target = bound(np.array([_STEPS]), 1)["total"].item()
    assert speed_up(target, _SIZES, bound) == pytest.approx(_SIZES, rel=1e-3)
    # a looser target needs so few steps that delays set the limit
    assert speed_up(8 * target, _SIZES, bound)[-1] < 8
