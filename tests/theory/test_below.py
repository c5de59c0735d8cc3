"""The mean over seeds stays below every bound that is guaranteed, on random quadratics; below FADAS's too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jaxafl.theory import Quadratic, defedavg, delayed_gradients, evaluate, fadas, quadratic, staleness
from jaxafl.theory import afl as afl_theory
from tests.theory.loops import buffered, delayed, gaps_of_averages, mean_gradient_norms, radius

_SEEDS = 20


@st.composite
def problems(draw: st.DrawFn, noise: float = 0.0, clients: int | None = None) -> Quadratic:
    return quadratic(
        clients or draw(st.integers(1, 6)),
        3,
        strong_convexity=draw(st.sampled_from([0.05, 0.3, 0.9])),
        heterogeneity=draw(st.sampled_from([0.0, 0.5, 3.0])),
        distance=draw(st.sampled_from([0.3, 2.0])),
        noise=noise,
        alike=draw(st.booleans()),
        samples=2,
        seed=draw(st.integers(0, 1000)),
    )


def below(seen: np.ndarray, bound: xr.Dataset) -> None:
    assert bound.attrs["holds"], bound.attrs["conditions"]
    assert (seen <= bound["total"].values).all(), (seen / bound["total"].values).max()


@settings(max_examples=25, deadline=None)
@given(problems(), st.sampled_from([0.3, 0.6, 0.9, 0.99]), st.sampled_from([0.1, 0.5, 1.0]), st.booleans())
def test_audg_and_psurdg(problem: Quadratic, upload: float, rate: float, reuse: bool) -> None:
    """R and G are those of the largest ball that any seed has been to."""
    clients, T = len(problem.weights), np.arange(1, 81)
    path = delayed(problem, rate, np.full(clients, upload), len(T), _SEEDS, reuse)
    moments = staleness.bernoulli(upload, clients=clients, age="gradient" if reuse else "model")
    constants = problem.constants(radius(problem, path))
    theorem = delayed_gradients.psurdg if reuse else delayed_gradients.audg
    below(gaps_of_averages(problem, path), evaluate(theorem, constants, moments, server_steps=T, learning_rate=rate))


def defedavg_rates(problem: Quadratic, theorem: Any, given: dict[str, Any], longer: int) -> tuple[Any, ...]:
    """The smallest T = 2^k with which all conditions hold, or 2^longer times that; its rates and its bound."""
    reach = 1.5 * float(np.linalg.norm(problem.start - problem.solution)) + 1
    constants = problem.constants(reach, batch_size=1) | {"unit_of_objective": problem.constants()["gap"]}
    for exponent in range(1, 9):
        bound = evaluate(theorem, constants, server_steps=2.0**exponent, **given)
        if bound.attrs["holds"]:
            exponent += longer
            bound = evaluate(theorem, constants, server_steps=2.0**exponent, **given)
            own = {"gradient_bound"} if theorem is defedavg.theorem_2 else set()
            names = {"gap", "smoothness", "local_variance", "gradient_bound", "unit_of_objective"} - own
            rates = defedavg.step_sizes(
                server_steps=2.0**exponent, alike=theorem is defedavg.theorem_2,
                **{name: given[name] for name in ("local_steps", "arrivals")},
                **{name: constants[name] for name in names},
            )  # fmt: skip
            return 2**exponent, rates | {"reach": reach}, bound
    return None, {}, bound


@pytest.mark.parametrize("theorem", [defedavg.theorem_1, defedavg.theorem_2])
@settings(max_examples=12, deadline=None)
@given(problems(noise=2.0), st.integers(1, 3), st.integers(1, 4), st.integers(0, 2), st.integers(0, 6))
def test_defedavg(theorem, problem: Quadratic, local_steps: int, arrivals: int, late: int, longer: int) -> None:
    if theorem is defedavg.theorem_2:  # clients alike
        problem = quadratic(3, 3, noise=2.0, heterogeneity=0.0, alike=True, samples=2, seed=local_steps + 10 * late)
    given = dict(local_steps=local_steps, arrivals=arrivals, staleness_max=late)
    steps, rates, bound = defedavg_rates(problem, theorem, given, longer)
    assume(steps is not None)
    reach = rates.pop("reach")
    path = buffered(problem, steps=steps, seeds=_SEEDS, **given, **rates)
    assume(radius(problem, path) <= reach)  # where G and ν² are valid
    below(mean_gradient_norms(problem, path)[-1], bound)


@settings(max_examples=15, deadline=None)
@given(
    problems(noise=0.5, clients=6), st.integers(1, 3), st.integers(2, 4), st.integers(1, 3), st.sampled_from([0.1, 1.0])
)
def test_fadas_inside_its_conditions(problem, local_steps, arrivals, late, share) -> None:
    """Not guaranteed, but no random case exceeds it; the largest rates that its conditions allow, or a tenth."""
    steps, epsilon, reach = 200, 0.05, 1.2 * float(np.linalg.norm(problem.start - problem.solution)) + 0.2
    constants = problem.constants(reach, batch_size=1)
    given = dict(
        local_steps=local_steps, arrivals=arrivals, epsilon=epsilon, staleness_max=late, staleness_mean_of_max=late,
        server_steps=np.arange(1, steps + 1),
    )  # fmt: skip
    local_rate = share * 0.5 * np.sqrt(epsilon) / (np.sqrt(360 * 0.1 * late) * local_steps)
    probe = evaluate(fadas.theorem_5_6, constants, local_rate=local_rate, adaptive_rate=1e-12, **given)
    limits = [float(one.rpartition("<= ")[2].split()[0]) for one in probe.attrs["conditions"].split("; ")]
    eta = 0.999 * share * min(limits[:2]) / local_rate
    bound = evaluate(fadas.theorem_5_6, constants, local_rate=local_rate, adaptive_rate=eta, **given)
    assume(bound.attrs["holds"])
    path = buffered(
        problem, steps=steps, seeds=_SEEDS, arrivals=arrivals, staleness_max=late, local_rate=local_rate,
        local_steps=local_steps, adaptive=(eta, epsilon, 0.99), replacement=False,
    )  # fmt: skip
    assume(radius(problem, path) <= reach)
    below(mean_gradient_norms(problem, path), bound)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 30), st.integers(0, 1000))
def test_the_weighted_mean_of_lemma_3(steps: int, seed: int) -> None:
    """Any Ψ that the recursion allows: d_{t+1} = d_t - bζ_tΨ_t + a_1ζ_t² + a_2ζ_t³ >= 0."""
    rng = np.random.default_rng(seed)
    late, alpha, b, a1, a2 = rng.integers(0, 9, steps + 1), *rng.uniform(0.1, 2, 4)
    rates = afl_theory.schedule(server_steps=steps, initial_rate=0.7, delay_penalty=alpha, staleness=late)
    d, psi = 1.5, []
    for rate in rates:
        available = d + a1 * rate**2 + a2 * rate**3
        spent = available * rng.choice([0.0, 1.0, rng.uniform()])
        psi.append(spent / (b * rate))
        d = available - spent
    bound = afl_theory.lemma_3(
        server_steps=steps, start=1.5, descent=b, quadratic=a1, cubic=a2, initial_rate=0.7, delay_penalty=alpha,
        staleness=late,
    )["total"].item()  # fmt: skip
    assert rates @ psi / rates.sum() <= bound * (1 + 1e-12) and min(psi) <= bound


def test_lemma_3_as_printed_fails_where_only_the_last_step_is_late() -> None:
    T, alpha, late = 9, 1.0, np.zeros(10)
    late[-1] = 4
    given = dict(
        server_steps=T, start=1.0, descent=1.0, quadratic=0.0, cubic=0.0, initial_rate=0.5, delay_penalty=alpha
    )
    rates = afl_theory.schedule(server_steps=T, initial_rate=0.5, delay_penalty=alpha, staleness=late)
    assert rates[-1] == pytest.approx(0.5 / (np.sqrt(10) * 5))
    psi = np.zeros(T + 1)
    psi[-1] = 1.0 / rates[-1]  # d falls from 1 to 0 in the last step
    printed = afl_theory.lemma_3(**given, staleness=late, form="printed")["total"].item()
    assert psi.mean() > 2 * printed
    corrected = afl_theory.lemma_3(**given, staleness=late)["total"].item()
    assert (rates @ psi) / rates.sum() <= corrected * (1 + 1e-12)
