"""Measured constants: exact where they are known, for any model, the same for the same seed."""

from __future__ import annotations

import numpy as np
import pytest

import jaxafl as afl
from jaxafl import theory
from jaxafl.options import UserError
from tests.problems import Normalised, descent, points
from tests.test_frozen import FROZEN


def simulation(problem: theory.Quadratic, rate: float = 0.1) -> afl.Simulation:
    client = afl.Client(learning_rate=rate, steps=2, batch_size=2)
    return descent(data=problem.data, model=problem.model, client=client)


@pytest.fixture(scope="module")
def problem() -> theory.Quadratic:
    return theory.quadratic(5, 4, noise=0.5, heterogeneity=0.8, samples=[2, 4, 6, 8, 4])


@pytest.mark.slow
def test_the_constants_of_a_quadratic_are_found(problem) -> None:
    sim = simulation(problem)
    result = sim.run(12, seed=3)
    found, known = theory.estimate(result, sim), problem.constants(batch_size=2)
    for name in ("smoothness", "strong_convexity", "local_variance", "gap", "distance", "clients"):
        assert found[name].item() == pytest.approx(known[name], rel=2e-3), name
    assert found["optimum_spread"].item() == pytest.approx(known["optimum_spread"], rel=1e-2)
    assert found["optimum"].item() == pytest.approx(problem.optimum, rel=1e-4)
    gradients = problem.gradients(problem.start)
    mean = problem.weights @ gradients
    between = problem.weights @ np.sum((gradients - mean) ** 2, axis=1)
    assert found["gradient_norm_squared"].values[0] == pytest.approx(mean @ mean, rel=1e-4)
    assert between * (1 - 1e-4) <= found["global_variance"].item() <= known["global_variance"]
    largest = np.linalg.norm(gradients, axis=1).max()
    assert largest - 0.5 < found["gradient_bound"].item() <= known["gradient_bound"]
    statistics = sim.schedule(12, seed=3).statistics()
    assert found["staleness_max"].item() == statistics["staleness_max"]
    assert (found["local_steps"].item(), found["arrivals"].item(), found["server_steps"].item()) == (2, 2, 12)
    assert found["smoothness"].attrs["symbol"] == "L"
    assert "5 of 5 clients, up to 8 samples" in found["smoothness"].attrs["measured_on"]
    bound = theory.evaluate(theory.defedavg.theorem_1, found)
    assert np.isfinite(bound["total"].item())
    again = theory.estimate(sim.train(12, seed=3, eval_every=int(result.attrs["eval_every"])), sim, run_seed=3)
    assert again.identical(found)
    with pytest.raises(UserError, match="the result is not of this simulation"):
        theory.estimate(result, simulation(problem, 0.2))
    with pytest.raises(UserError, match="samples must be at least 1"):
        theory.estimate(result, sim, samples=0)


@pytest.mark.slow
def test_weights_are_those_of_the_staleness_too(problem) -> None:
    """All clients must have arrived: the weights of the others are given to these."""
    sim = simulation(problem)
    trained = sim.train(40)
    steps = np.arange(40)[:, None] - trained.schedule.reference
    mask, client = trained.schedule.mask, trained.schedule.client
    each = np.array([steps[mask & (client == one)].mean() for one in range(5)])
    for weights, shares in (("samples", problem.weights), ("uniform", np.full(5, 0.2))):
        found = theory.estimate(trained, sim, optimum=0.0, iterations=5, weights=weights)
        assert found["mean_staleness"].item() == pytest.approx(shares @ each)


@pytest.mark.slow
@pytest.mark.parametrize("model", [FROZEN, afl.models.from_linen(Normalised())], ids=["frozen", "statistics"])
def test_any_model_can_be_measured(model) -> None:
    """With frozen arrays and with non-trainable state; softmax scores have a flat direction, so there is no μ."""
    sim = descent(data=points(), model=model, client=afl.Client(learning_rate=0.01, steps=2, batch_size=4))
    found = theory.estimate(sim.run(6), sim, samples=20, iterations=30, optimum_steps=20)
    assert np.isnan(found["strong_convexity"]) and np.isnan(found["optimum_spread"])
    for name in ("smoothness", "local_variance", "global_variance", "gradient_bound", "gap", "distance"):
        assert 0 < found[name].item() < np.inf, name
