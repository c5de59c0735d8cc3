"""Numbers of server steps, optimal rates, and the speed-up of each theorem: predicted, and DeFedAvg's simulated."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import numpy as np
import pytest

from jaxafl.options import UserError
from jaxafl.theory import (
    Quadratic,
    asyncfeded,
    defedavg,
    delayed_gradients,
    evaluate,
    quadratic,
    speed_up,
    steps_to,
)
from jaxafl.theory import afl as afl_theory
from tests.theory.cases import CASES

_STEPS, _SIZES = 8192, [1, 2, 4, 8]
_RUN = dict(local_steps=2, staleness_max=3)


def known(function: Any, *constants: dict[str, Any]) -> dict[str, Any]:
    names = inspect.signature(function).parameters
    return {name: value for one in constants for name, value in one.items() if name in names}


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


@pytest.mark.parametrize("T", [np.array([10.0, 1e4, 1e8])])
def test_optimal_rates_are_optimal_among_those_allowed(T) -> None:
    """A rate 1 % larger or smaller is no better, or not allowed."""
    for theorem, rate_of, name in (
        ("asyncfeded 2", asyncfeded.optimal_server_rate, "server_rate"),
        ("audg", delayed_gradients.optimal_learning_rate, "learning_rate"),
        ("psurdg", delayed_gradients.optimal_learning_rate, "learning_rate"),
        ("afl 1", afl_theory.optimal_local_rate, "local_rate"),
    ):
        function, given = CASES[theorem]
        given = given | {"server_steps": T}
        best = rate_of(**known(rate_of, given))
        assert best.shape == T.shape
        at_best = function(**given | {name: best})
        assert at_best.attrs["holds"], theorem
        for factor in (0.99, 1.01):
            other = function(**given | {name: best * factor})
            assert ((other["total"] >= at_best["total"]) | ~other["holds"]).all(), theorem
