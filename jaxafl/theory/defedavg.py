"""DeFedAvg's bounds and their step sizes, with a linear speed-up in the updates n of a server step."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import xarray as xr

from jaxafl.theory.bounds import MEAN_GRADIENT, Condition, Number, Statement, bounded, numbers, quotient

Form = Literal["corrected", "printed"]

_PAPER = "wang2024defedavg"
_THEOREM_1 = Statement(_PAPER, "Theorem 1, eq. (12)", MEAN_GRADIENT, "corrected", True, ("defedavg_niid",))
_THEOREM_2 = Statement(_PAPER, "Theorem 2", MEAN_GRADIENT, "corrected", True, ("defedavg_iid", "defedavg_niid"))
_NO_DELAY = "not guaranteed: with λ = 0 its conditions leave η free"
_NO_VARIANCE = "not guaranteed: it has lost σ², so its dimensions are wrong"


def theorem_1(
    *,
    server_steps: Number,
    local_steps: float,
    arrivals: float,
    gap: float,
    smoothness: float,
    gradient_bound: float,
    local_variance: float,
    global_variance: float,
    staleness_max: float,
    unit_of_objective: float = 1.0,
    form: Form = "corrected",
) -> xr.Dataset:
    """Eq. (12), heterogeneous clients: (1/T) Σ E‖∇F(x_t)‖² <= √(256(F_0 - F*)(16σ²L + 8LG²K)/(nKT)) + 8L²(σ² +
    8Kν²)/((4σ²L + 2LKG²)KT) with the rates of `step_sizes`.

    Conditions (11): η̄ <= 1/(8LK) and ηη̄ <= min{1/(4LKλ), (2σ² + G²K)/(8σ²LKλ + 4LG²K²λ²)}. The printed form differs
    in two points: its η̄ is not that of the appendix, which gives (12), and for λ = 0 its conditions leave η free. The
    corrected form takes max(λ, 1). The second term has the 1 of η̄ as a factor, an objective (`unit_of_objective`),
    which makes its dimensions right.

    Args:
        server_steps: T, one number or several; the rates depend on T, so each T is a separate run.
        local_steps: K.
        arrivals: n, clients drawn for a server step.
        gap: F_0 - F*.
        smoothness: L.
        gradient_bound: G.
        local_variance: σ².
        global_variance: ν².
        staleness_max: λ, the largest staleness.
        unit_of_objective: the 1 in the local rate.
        form: `"corrected"` or `"printed"`.

    Returns:
        The terms `leading` and `drift`; see `jaxafl.theory.bounds.bounded`.
    """
    v = numbers("theory.defedavg.theorem_1", locals())
    T, K, L, n = v.server_steps, v.local_steps, v.smoothness, v.arrivals
    noise, G2 = v.local_variance, v.gradient_bound**2
    rising = _rising_1(v)
    drift = quotient(8 * L**2 * (noise + 8 * K * v.global_variance) * v.unit_of_objective, rising * K * T)
    terms = {
        "leading": ("√(256(F_0 - F*)(16σ²L + 8LG²K)/(nKT))", np.sqrt(256 * v.gap * 4 * rising / (n * K * T))),
        "drift": ("8L²(σ² + 8Kν²)/((4σ²L + 2LKG²)KT)", drift),
    }
    late, step = _late(v, form), _rate(v, rising, 4.0 * n * K * v.gap)
    limit = quotient(2 * noise + G2 * K, 8 * noise * L * K * late + 4 * L * G2 * K**2 * late**2)
    conditions = [
        Condition("η̄ <= 1/(8LK)", _rate(v, rising, v.unit_of_objective), 1 / (8 * L * K)),
        _delays(v, step, late),
        Condition("ηη̄ <= (2σ² + G²K)/(8σ²LKλ + 4LG²K²λ²)", step, limit),
    ]
    return bounded(_of(_THEOREM_1, form, _NO_DELAY), v, terms, conditions)


def theorem_2(
    *,
    server_steps: Number,
    local_steps: float,
    arrivals: float,
    gap: float,
    smoothness: float,
    local_variance: float,
    staleness_max: float,
    unit_of_objective: float = 1.0,
    form: Form = "corrected",
) -> xr.Dataset:
    """Theorem 2, identical clients: (1/T) Σ E‖∇F(x_t)‖² <= √(128σ²L(F_0 - F*)/(nKT)) + 8L/(KT) with the rates of
    `step_sizes(alike=True)`.

    Conditions (13): η̄ <= 1/(4√3 LK), ηη̄ <= 1/(4LKλ). `form="printed"` drops σ² from the first term, as the paper's
    appendix does (its statement drops L too). With λ = 0 the printed conditions leave η free, and then even the bound
    with σ² fails (at T = 1 where L(F_0 - F*) > 32σ²); the corrected form takes max(λ, 1). The 1 of η̄, an objective, is
    a factor of the second term.

    Args:
        server_steps, local_steps, arrivals, gap, smoothness, local_variance, staleness_max, unit_of_objective: see
            `theorem_1`.
        form: `"corrected"` or `"printed"`.

    Returns:
        The terms `leading` and `drift`.
    """
    v = numbers("theory.defedavg.theorem_2", locals())
    T, K, L = v.server_steps, v.local_steps, v.smoothness
    variance = v.local_variance if form == "corrected" else 1.0
    says = "√(128σ²L(F_0 - F*)/(nKT))" if form == "corrected" else "√(128L(F_0 - F*)/(nKT))"
    terms = {
        "leading": (says, np.sqrt(128 * variance * L * v.gap / (v.arrivals * K * T))),
        "drift": ("8L/(KT)", 8 * L * v.unit_of_objective / (K * T)),
    }
    rising = v.local_variance * L
    conditions = [
        Condition("η̄ <= 1/(4√3 LK)", _rate(v, rising, v.unit_of_objective), 1 / (4 * np.sqrt(3) * L * K)),
        _delays(v, _rate(v, rising, 0.5 * v.arrivals * K * v.gap), _late(v, form)),
    ]
    return bounded(_of(_THEOREM_2, form, _NO_VARIANCE), v, terms, conditions)


def step_sizes(
    *,
    server_steps: Number,
    local_steps: float,
    arrivals: float,
    gap: float,
    smoothness: float,
    local_variance: float,
    gradient_bound: float = 0.0,
    unit_of_objective: float = 1.0,
    alike: bool = False,
) -> dict[str, Number]:
    """Returns the rates of a run of T server steps, `server_rate` η and `local_rate` η̄.

    Theorem 1: η = √(4nK(F_0 - F*)), η̄ = 1/(K√((4σ²L + 2LKG²)T)) (from the appendix). Theorem 2: η = √(nK(F_0 - F*)/2),
    η̄ = 1/(K√(σ²LT)). The theorems fix the product only. `unit_of_objective` u multiplies η̄ by √u and divides η by √u;
    with u = F_0 - F* neither depends on units.

    Args:
        server_steps, local_steps, arrivals, gap, smoothness, local_variance, gradient_bound, unit_of_objective: see
            `theorem_1`.
        alike: if True, the rates of Theorem 2.
    """
    v = numbers("theory.defedavg.step_sizes", locals())
    rising = v.local_variance * v.smoothness if alike else _rising_1(v)
    rate = np.sqrt((0.5 if alike else 4.0) * v.arrivals * v.local_steps * v.gap / v.unit_of_objective)
    return {"server_rate": rate, "local_rate": _rate(v, rising, v.unit_of_objective)}


def _rising_1(v: Any) -> Number:
    """Returns 4σ²L + 2LKG²."""
    return 4 * v.local_variance * v.smoothness + 2 * v.smoothness * v.local_steps * v.gradient_bound**2


def _rate(v: Any, rising: Number, square: Number) -> Number:
    """Returns η̄ if `square` is the 1 of the local rate, and ηη̄ if it is the square of η."""
    return quotient(np.sqrt(square), v.local_steps * np.sqrt(rising * v.server_steps))


def _late(v: Any, form: Form) -> Number:
    return v.staleness_max if form == "printed" else np.maximum(v.staleness_max, 1)


def _delays(v: Any, step: Number, late: Number) -> Condition:
    return Condition("ηη̄ <= 1/(4LKλ)", step, quotient(1.0, 4 * v.smoothness * v.local_steps * late))


def _of(statement: Statement, form: Form, note: str) -> Statement:
    return statement if form == "corrected" else statement._replace(form=form, guaranteed=False, note=note)
