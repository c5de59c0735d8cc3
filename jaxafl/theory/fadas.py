"""FADAS's bounds (β1 = 0) for an adaptive step on a buffer of stale updates, with and without delay-adaptive rates."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from jaxafl.theory.bounds import (
    MEAN_GRADIENT,
    Condition,
    Number,
    Statement,
    Terms,
    bounded,
    left_out,
    numbers,
    quotient,
)  # fmt: skip

_PAPER = "wang2024fadas"
_UNSURE = "its proof has not been checked: v̂_t depends on the update that it divides"
_THEOREM_5_6 = Statement(_PAPER, "Theorem 5.6, eq. (5)", MEAN_GRADIENT, "printed", False, ("fadas", "fedams"), _UNSURE)
_THEOREM_5_9 = Statement(_PAPER, "Theorem 5.9, eq. (8)", MEAN_GRADIENT, "printed", False, ("fadas",), _UNSURE)
_COROLLARY_5_7 = Statement(
    _PAPER, "Corollary 5.7", MEAN_GRADIENT, "order", False, ("fadas",), "an order: its constants are left out"
)
_COROLLARY_5_10 = _COROLLARY_5_7._replace(name="Corollary 5.10")


def theorem_5_6(
    *,
    server_steps: Number,
    local_steps: float,
    arrivals: float,
    clients: float,
    gap: float,
    smoothness: float,
    local_rate: Number,
    adaptive_rate: Number,
    epsilon: float,
    gradient_bound: float,
    local_variance: float,
    global_variance: float,
    staleness_max: float,
    staleness_mean_of_max: float,
) -> xr.Dataset:
    """Eq. (5): (1/T) Σ E‖∇f(x_t)‖² <= 4C_G F/(ηη_lKT) + 20C_Gη_l²KL²(σ² + 6Kσ_g²)/ε + [8C_Gη²η_l²KL²τ_avgτ_max/(Mε³)
    + 12C_Gηη_lL/(Mε²)] {σ² + (N-M)/(N-1) V}, C_G = η_lKG + ε, V = 15η_l²K²L²(σ² + 6Kσ_g²) + 3Kσ_g².

    Conditions: ηη_l <= min{ε²M(N-1)/(180C_GN(N-M)τ_maxKL), √(ε³M(N-1))/(12√(C_GN(M-1)τ_max³) KL)} and η_l <=
    √ε/(√(360C_Gτ_max) KL). They are reported as printed. If τ_max = 0 or N = M = 1 they leave η free, and the statement
    is wrong: on F = x²/2 without noise a large η keeps oscillating. Otherwise it is not guaranteed, because its proof
    has not been checked; no violation was found. An update is a normalised step, so η and ε are lengths.

    Args:
        server_steps: T, one number or several.
        local_steps: K.
        arrivals: M.
        clients: N.
        gap: F = f(x_1) - f*.
        smoothness: L.
        local_rate: η_l.
        adaptive_rate: η.
        epsilon: ε.
        gradient_bound: G.
        local_variance: σ².
        global_variance: σ_g².
        staleness_max: τ_max.
        staleness_mean_of_max: τ_avg, the mean over server steps of the largest delay.

    Returns:
        The terms `initial`, `drift`, `staleness` and `noise`; see `jaxafl.theory.bounds.bounded`.
    """
    v = _checked("theory.fadas.theorem_5_6", locals())
    L, K, M, eps, eta, rate = v.smoothness, v.local_steps, v.arrivals, v.epsilon, v.adaptive_rate, v.local_rate
    inside = v.local_variance + v.left_out * v.between
    late = 8 * v.bound * eta**2 * rate**2 * K * L**2 * v.staleness_mean_of_max * v.staleness_max / (M * eps**3)
    says = "{σ² + (N-M)/(N-1) V}"
    terms = _common(v) | {
        "staleness": (f"8C_Gη²η_l²KL²τ_avgτ_max/(Mε³) {says}", late * inside),
        "noise": (f"12C_Gηη_lL/(Mε²) {says}", 12 * v.bound * eta * rate * L / (M * eps**2) * inside),
    }
    return bounded(_THEOREM_5_6, v, terms, _conditions(v, 180))


def theorem_5_9(
    *,
    server_steps: Number,
    local_steps: float,
    arrivals: float,
    clients: float,
    gap: float,
    smoothness: float,
    local_rate: Number,
    adaptive_rate: Number,
    epsilon: float,
    gradient_bound: float,
    local_variance: float,
    global_variance: float,
    staleness_max: float,
    staleness_mean_of_max: float,
    staleness_threshold: float,
    mean_rate: Number | None = None,
    unit_of_length: float = 1.0,
) -> xr.Dataset:
    """Eq. (8), with the delay-adaptive rates η_t and H = Σ η_t: the sum of 4C_G F/(ηη_lKT), 20C_Gη_l²KL²(σ² +
    6Kσ_g²)/ε, 8C_Gη³η_l²KL²Tτ_avgσ²/(Mε³H), 8C_Gη²η_l²KL²Tτ_avg/(√M ε³H) (N-M)/(N-1) V and (4C_Gηη_lL/(Mε²)) {σ² +
    (N-M)/(N-1) V + 3Kσ_g²}.

    The conditions are those of `theorem_5_6` with 60 for 180, and η <= √M/τ_c. The rate min(η, 1/τ_max) compares η, a
    length, with a number, and so does the statement. The 1 is `unit_of_length` in this function, a factor of the fourth
    term and of the last condition, which makes all dimensions right. Not guaranteed, as Theorem 5.6.

    Args:
        server_steps, local_steps, arrivals, clients, gap, smoothness, local_rate, adaptive_rate, epsilon,
            gradient_bound, local_variance, global_variance, staleness_max, staleness_mean_of_max: see `theorem_5_6`.
        staleness_threshold: τ_c.
        mean_rate: H/T, by default η.
        unit_of_length: the numerator of min(η, 1/τ_max).

    Returns:
        The terms `initial`, `drift`, `staleness_of_noise`, `staleness` and `noise`.
    """
    v = _checked("theory.fadas.theorem_5_9", locals())
    L, K, M, eps, eta, rate = v.smoothness, v.local_steps, v.arrivals, v.epsilon, v.adaptive_rate, v.local_rate
    share = eta / (eta if mean_rate is None else v.mean_rate)  # ηT/H
    late = 8 * v.bound * eta * rate**2 * K * L**2 * v.staleness_mean_of_max / eps**3 * share
    noise = v.local_variance + v.left_out * v.between + 3 * K * v.global_variance
    sampled = late * v.unit_of_length / np.sqrt(M) * v.left_out * v.between
    terms = _common(v) | {
        "staleness_of_noise": ("8C_Gη³η_l²KL²Tτ_avgσ²/(Mε³H)", late * eta / M * v.local_variance),
        "staleness": ("8C_Gη²η_l²KL²Tτ_avg/(√M ε³H) (N-M)/(N-1) V", sampled),
        "noise": (
            "(4C_Gηη_lL/(Mε²)) {σ² + (N-M)/(N-1) V + 3Kσ_g²}",
            4 * v.bound * eta * rate * L / (M * eps**2) * noise,
        ),
    }
    reach = quotient(v.unit_of_length * np.sqrt(M), v.staleness_threshold)
    conditions = [*_conditions(v, 60), Condition("η <= √M/τ_c", eta, reach)]
    return bounded(_THEOREM_5_9, v, terms, conditions)


def corollary_5_7(
    *,
    server_steps: Number,
    local_steps: float,
    arrivals: float,
    gap: float,
    smoothness: float,
    epsilon: float,
    gradient_bound: float,
    local_variance: float,
    global_variance: float,
    staleness_max: float,
    staleness_mean_of_max: float,
) -> xr.Dataset:
    """Orders of the terms of Theorem 5.6 with the rates of `step_sizes`: √(LF)σ/√(TKM) + √(LF)σ_g/√(TM) + LF/T +
    FG/(εT√M) + LFτ_maxτ_avg/T.

    The paper leaves out L and ε, which are included as the rates imply, so dimensions are right. The orders predict a
    linear speed-up in M as long as the first two terms dominate. They are no bound: numerical constants are left out.

    Args:
        server_steps, local_steps, arrivals, gap, smoothness, epsilon, gradient_bound, local_variance, global_variance,
            staleness_max, staleness_mean_of_max: see `theorem_5_6`.

    Returns:
        The terms `noise`, `heterogeneity`, `drift`, `initial` and `staleness`.
    """
    v = numbers("theory.fadas.corollary_5_7", locals())
    late = v.smoothness * v.gap / v.server_steps * v.staleness_max * v.staleness_mean_of_max
    return bounded(_COROLLARY_5_7, v, _orders(v) | {"staleness": ("LFτ_maxτ_avg/T", late)})


def corollary_5_10(
    *,
    server_steps: Number,
    local_steps: float,
    arrivals: float,
    gap: float,
    smoothness: float,
    epsilon: float,
    gradient_bound: float,
    local_variance: float,
    global_variance: float,
    staleness_mean_of_max: float,
    staleness_threshold: float,
) -> xr.Dataset:
    """Orders of the terms of Theorem 5.9 with τ_c the median delay: those of Corollary 5.7 with FGτ_c/(εT√M) for
    FG/(εT√M), and LFτ_avg/T + LF(τ_c² + τ_cτ_avg)/T for the last: τ_max is gone. No bound.

    Args:
        server_steps, local_steps, arrivals, gap, smoothness, epsilon, gradient_bound, local_variance, global_variance,
            staleness_mean_of_max: see `theorem_5_6`.
        staleness_threshold: τ_c, the median over server steps of the largest delay.

    Returns:
        The terms `noise`, `heterogeneity`, `drift`, `initial`, `staleness` and `threshold`.
    """
    v = numbers("theory.fadas.corollary_5_10", locals())
    orders = _orders(v)
    fall = v.smoothness * v.gap / v.server_steps
    mean, threshold = v.staleness_mean_of_max, v.staleness_threshold
    says, value = orders["initial"]
    orders["initial"] = (says.replace("FG", "FGτ_c"), value * threshold)
    orders["staleness"] = ("LFτ_avg/T", fall * mean)
    orders["threshold"] = ("LF(τ_c² + τ_cτ_avg)/T", fall * (threshold**2 + threshold * mean))
    return bounded(_COROLLARY_5_10, v, orders)


def step_sizes(
    *,
    server_steps: Number,
    local_steps: float,
    arrivals: float,
    gap: float,
    smoothness: float,
    epsilon: float,
    local_variance: float,
    global_variance: float,
) -> dict[str, Number]:
    """Returns the rates of Corollaries 5.7 and 5.10, η = Θ(√M) and η_l = Θ(√F/√(TK(σ² + Kσ_g²))).

    The constants make the dimensions right: `adaptive_rate` η = ε√M and `local_rate` η_l = √(F/(TKL(σ² + Kσ_g²))).

    Args:
        server_steps, local_steps, arrivals, gap, smoothness, epsilon, local_variance, global_variance: see
            `theorem_5_6`; at least one variance is > 0.
    """
    v = numbers("theory.fadas.step_sizes", locals())
    noise = v.local_variance + v.local_steps * v.global_variance
    rate = np.sqrt(quotient(v.gap, v.server_steps * v.local_steps * v.smoothness * noise))
    return {"adaptive_rate": v.epsilon * np.sqrt(v.arrivals), "local_rate": rate}


def _checked(owner: str, given: dict[str, Any]) -> Any:
    """Returns the checked constants with `bound` (C_G), `left_out` ((N-M)/(N-1)), `noise` and `between` (V)."""
    v = numbers(owner, given)
    K = v.local_steps
    v.bound = v.local_rate * K * v.gradient_bound + v.epsilon
    v.left_out = left_out(v.clients, v.arrivals)
    v.noise = v.local_variance + 6 * K * v.global_variance
    v.between = 15 * v.local_rate**2 * K**2 * v.smoothness**2 * v.noise + 3 * K * v.global_variance
    return v


def _common(v: Any) -> Terms:
    """Returns the first two terms of both theorems."""
    drift = 20 * v.bound * v.local_rate**2 * v.local_steps * v.smoothness**2 * v.noise / v.epsilon
    step = v.adaptive_rate * v.local_rate * v.local_steps
    return {
        "initial": ("4C_G F/(ηη_lKT)", 4 * v.bound * v.gap / (step * v.server_steps)),
        "drift": ("20C_Gη_l²KL²(σ² + 6Kσ_g²)/ε", drift),
    }


def _conditions(v: Any, factor: float) -> list[Condition]:
    M, N, late, eps, KL = v.arrivals, v.clients, v.staleness_max, v.epsilon, v.local_steps * v.smoothness
    step = v.adaptive_rate * v.local_rate
    sampled = quotient(eps**2 * M * (N - 1), factor * v.bound * N * (N - M) * late * KL)
    buffered = quotient(np.sqrt(eps**3 * M * (N - 1)), 12 * np.sqrt(v.bound * N * (M - 1) * late**3) * KL)
    local = quotient(np.sqrt(eps), np.sqrt(360 * v.bound * late) * KL)
    return [
        Condition(f"ηη_l <= ε²M(N-1)/({factor:g}C_G N(N-M)τ_max KL)", step, sampled),
        Condition("ηη_l <= √(ε³M(N-1))/(12√(C_G N(M-1)τ_max³) KL)", step, buffered),
        Condition("η_l <= √ε/(√(360C_G τ_max) KL)", v.local_rate, local),
    ]


def _orders(v: Any) -> Terms:
    T, M, fall = v.server_steps, v.arrivals, v.smoothness * v.gap
    return {
        "noise": ("√(LF)σ/√(TKM)", np.sqrt(fall * v.local_variance / (T * v.local_steps * M))),
        "heterogeneity": ("√(LF)σ_g/√(TM)", np.sqrt(fall * v.global_variance / (T * M))),
        "drift": ("LF/T", fall / T),
        "initial": ("FG/(εT√M)", v.gap * v.gradient_bound / (v.epsilon * T * np.sqrt(M))),
    }
