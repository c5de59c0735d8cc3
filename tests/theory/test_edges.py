"""Where printed statements fail inside their own conditions: the numbers that docstrings name, measured."""

from __future__ import annotations

import numpy as np
import pytest

from jaxafl.theory import afl as afl_theory
from jaxafl.theory import asyncfeded

_QUIET = dict(smoothness=1.0, local_variance=0.0, global_variance=0.0)  # F = x²/2, x_0 = 1, no noise
_GAP = 0.5


def contraction_ratio(factor: float, steps: int, bound: float) -> float:
    """(1/T) Σ ‖∇F(x_t)‖² of x_{t+1} = factor · x_t over the bound."""
    return float(np.mean(factor ** (2 * np.arange(steps))) / bound)


def edge_of_asyncfeded(local_steps: int, steps: int) -> tuple[float, bool]:
    k = np.arange(1, local_steps + 1)
    rates = 1 / np.sqrt(6 * (2 * k + 1) * k)
    rate = 1 / rates.sum()
    bound = asyncfeded.theorem_2(
        server_steps=steps, local_steps=local_steps, gap=_GAP, local_rate=rates, server_rate=rate,
        euclidean_staleness=0.0, **_QUIET,
    )  # fmt: skip
    factor = 1 + rate * (np.prod(1 - rates) - 1)
    return contraction_ratio(factor, steps, bound["total"].item()), bool(bound.attrs["holds"])


@pytest.mark.parametrize(("local_steps", "ratio"), [(2, 1.007), (5, 1.038), (10, 1.076), (50, 1.196)])
def test_asyncfeded_exceeds_its_theorem_at_the_edge(local_steps, ratio) -> None:
    found, holds = edge_of_asyncfeded(local_steps, 1000)
    assert holds and found == pytest.approx(ratio, abs=5e-4)
    assert f"{ratio:.3f} for K = {local_steps}" in " ".join(
        asyncfeded.theorem_2.__doc__.replace("1.0070", "1.007").split()
    )


@pytest.mark.parametrize(("cohort", "ratio"), [(4, 0.678), (6, 1.012), (7, 1.179), (8, 1.346)])
def test_afl_exceeds_its_theorem_where_clients_are_averaged(cohort, ratio) -> None:
    rate = 1 / (6 * (1 + 1 / cohort)) / cohort
    bound = afl_theory.theorem_1(
        server_steps=20_000, local_steps=1, arrivals=cohort, clients=cohort, gap=_GAP, local_rate=rate, **_QUIET
    )
    assert bound.attrs["holds"] and not bound.attrs["guaranteed"]
    assert contraction_ratio(1 - rate, 20_000, bound["total"].item()) == pytest.approx(ratio, abs=5e-4)


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
