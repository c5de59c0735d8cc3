"""Quadratic clients: what they say of themselves is true of the data and model that they give."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxafl as afl
from jaxafl.theory import quadratic
from tests.problems import descent


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.integers(2, 5), st.sampled_from([0.0, 0.7, 3.0]), st.booleans(), st.integers(0, 99))
def test_its_constants_are_those_asked_for(clients, dimension, heterogeneity, alike, seed) -> None:
    sizes = [2 * (1 + client % 3) for client in range(clients)]
    problem = quadratic(
        clients, dimension, strong_convexity=0.2, smoothness=3.0, heterogeneity=heterogeneity, noise=0.5, distance=2.0,
        samples=sizes, alike=alike, seed=seed,
    )  # fmt: skip
    found = problem.constants(batch_size=4)
    asked = dict(clients=clients, smoothness=3.0, strong_convexity=0.2, distance=2.0, local_variance=0.25 / 4)
    assert {name: found[name] for name in asked} == pytest.approx(asked, rel=1e-9)
    wanted = heterogeneity**2 if clients > 1 else 0.0
    assert found["optimum_spread"] == pytest.approx(wanted, abs=1e-9)
    np.testing.assert_allclose(problem.weights @ problem.gradients(problem.solution), 0, atol=1e-9)
    assert found["gap"] == pytest.approx(problem.loss(problem.start) - problem.optimum)
    rng, reach = np.random.default_rng(seed), 5.0
    inside = problem.constants(reach, batch_size=1)
    for _ in range(20):
        away = rng.normal(size=dimension)
        w = problem.solution + reach * rng.uniform() * away / np.linalg.norm(away)
        gradients = problem.gradients(w)
        mean = problem.weights @ gradients
        assert (
            problem.weights @ np.sum((gradients - mean) ** 2, axis=1) <= inside["global_variance"] * (1 + 1e-9) + 1e-12
        )
        assert np.linalg.norm(gradients, axis=1).max() + 0.5 <= inside["gradient_bound"] * (1 + 1e-9)
        if alike:
            at_optimum = problem.gradients(problem.solution)
            expected = problem.weights @ np.sum(at_optimum**2, axis=1)
            assert inside["global_variance"] == pytest.approx(expected, abs=1e-12)


def test_the_gap_at_the_optimum_is_not_negative() -> None:
    gaps = [quadratic(5, distance=0.0, seed=seed).constants()["gap"] for seed in range(6)]
    assert min(gaps) >= 0 and max(gaps) < 1e-15


@pytest.mark.slow
def test_losses_and_gradients_of_data_and_model_are_those_of_the_formula() -> None:
    problem = quadratic(3, 4, noise=0.8, samples=[2, 4, 6])
    data, apply = problem.data, problem.model.bound(None)
    w = np.random.default_rng(1).normal(size=4).astype(np.float32)
    key = jax.random.key(0)
    for client, size in enumerate((2, 4, 6)):
        x, y = data.fetch(data.arrays, client, np.arange(size), jax.random.split(key, size))
        batch = afl.models.model.Batch(x, y, np.ones(size, bool))

        def losses(params, batch=batch):
            return apply(params, {}, batch, key, True)[0].loss

        rows = jax.jacobian(losses)({"w": w})["w"]
        assert losses({"w": w}).mean() == pytest.approx(problem.losses(w)[client], rel=1e-4)
        np.testing.assert_allclose(rows.mean(axis=0), problem.gradients(w)[client], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(np.linalg.norm(rows - rows.mean(axis=0), axis=1), 0.8, rtol=1e-4)
    sim = descent(data=data, model=problem.model, clock=afl.clock.synchronous())
    run = sim.run(5, diagnostics="gradient_norm", observe=lambda params: params)
    models = run.observe_w.values
    np.testing.assert_allclose(models[0], problem.start, rtol=1e-6)
    np.testing.assert_allclose(
        run.loss.values, [problem.loss(models[step]) for step in run.eval_step.values], rtol=1e-5
    )
    norms = [np.sum((problem.weights @ problem.gradients(w)) ** 2) for w in models[:-1]]
    np.testing.assert_allclose(run.gradient_norm_squared.values, norms, rtol=1e-4)
