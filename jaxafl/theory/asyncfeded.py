"""AsyncFedED's bounds on the drift of local steps, the length of an update, and the mean gradient."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import xarray as xr

from jaxafl.theory.bounds import MEAN_GRADIENT, Condition, Number, Statement, bounded, check_counts, numbers, quotient

_PAPER = "wang2022asyncfeded"
_UNSURE = (
    "not guaranteed: the local steps after the first are taken at other points than x_s, which the proof leaves out"
)
_THEOREM_1 = Statement(_PAPER, "Theorem 1", "local_drift", "printed", True, ("asyncfeded",))
_COROLLARY_1 = Statement(_PAPER, "Corollary 1, eq. (10)", "update_norm_squared", "printed", True, ("asyncfeded",))
_THEOREM_2 = Statement(_PAPER, "Theorem 2, eq. (11)", MEAN_GRADIENT, "printed", False, ("asyncfeded",), _UNSURE)


def theorem_1(
    *,
    local_steps: Number,
    smoothness: float,
    local_rate: Any,
    gradient_norm_squared: float,
    local_variance: float,
    global_variance: float,
) -> xr.Dataset:
    """E‖x_k - x_s‖² <= (k/2L²)(σ_g² + E‖∇F(x_s)‖²) + ((k+1)/24L²) σ_l², if η_k² <= 1/(6(2k+1)kL²).

    Guaranteed. With the rate at its limit, a_k = E‖x_k - x_s‖² obeys a_k <= (1 + 1/k) a_{k-1} + (σ_g² + ‖∇F‖²)/(2kL²)
    + σ_l²/(6k(2k+1)L²). The solution stays below the bound, because Σ 1/(k(k+1)(2k+1)) = 3 - 4 ln 2 < 1/4.

    Args:
        local_steps: k, one number or several: the dimension of the result.
        smoothness: L.
        local_rate: η_k of local step k = 1, 2, ..., one number or [max k].
        gradient_norm_squared: E‖∇F(x_s)‖².
        local_variance: σ_l².
        global_variance: σ_g².

    Returns:
        The terms `gradient`, `heterogeneity` and `noise`; see `jaxafl.theory.bounds.bounded`.
    """
    v = _checked("theory.asyncfeded.theorem_1", locals())
    k, L = v.local_steps, v.smoothness
    terms = {
        "gradient": ("(k/2L²) E‖∇F(x_s)‖²", k / (2 * L**2) * v.gradient_norm_squared),
        "heterogeneity": ("(k/2L²) σ_g²", k / (2 * L**2) * v.global_variance),
        "noise": ("((k+1)/24L²) σ_l²", (k + 1) / (24 * L**2) * v.local_variance),
    }
    return bounded(_THEOREM_1, v, terms, [_small_steps(v)], axis="local_steps")


def corollary_1(
    *,
    local_steps: int,
    smoothness: float,
    local_rate: Any,
    euclidean_staleness: float,
    gradient_norm_squared: Number,
    local_variance: float,
    global_variance: float,
) -> xr.Dataset:
    """Eq. (10): E‖Δ‖² <= [(12K²L²m₂ + K ln(K+1))/(3L²Θ)] E‖∇F(x_t)‖² + [(72K²L²m₂ + K ln(K+1))/(72L²Θ)] σ_l² +
    [(24K²L²m₂ + K ln(K+1))/(6L²Θ)] σ_g², if Γ² < 3/(12K²L²m₂ + K ln(K+1)) and the rates are those of Theorem 1.

    m₁ and m₂ are the means over the local steps of η_k and η_k² (the paper's M and N), Θ = 1 - Γ²(K ln(K+1)/3 +
    4K²L²m₂). Guaranteed: it follows from Theorem 1 for the steps before each local step.

    Args:
        local_steps: K.
        smoothness: L.
        local_rate: η_k, one number or [K].
        euclidean_staleness: Γ, which bounds γ = ‖x_t - x_s‖ / ‖Δ‖.
        gradient_norm_squared: E‖∇F(x_t)‖².
        local_variance: σ_l².
        global_variance: σ_g².

    Returns:
        The terms `gradient`, `noise` and `heterogeneity`, all infinite where Γ is too large.
    """
    v = _of_rates("theory.asyncfeded.corollary_1", locals())
    L2, log = v.smoothness**2, v.steps * np.log(v.steps + 1)
    quadratic = v.steps**2 * L2 * v.m2
    gradient = (12 * quadratic + log) / (3 * L2) * v.gradient_norm_squared
    noise = (72 * quadratic + log) / (72 * L2) * v.local_variance
    spread = (24 * quadratic + log) / (6 * L2) * v.global_variance
    terms = {
        "gradient": ("(12K²L²m₂ + K ln(K+1))/(3L²Θ) E‖∇F(x_t)‖²", quotient(gradient, v.theta)),
        "noise": ("(72K²L²m₂ + K ln(K+1))/(72L²Θ) σ_l²", quotient(noise, v.theta)),
        "heterogeneity": ("(24K²L²m₂ + K ln(K+1))/(6L²Θ) σ_g²", quotient(spread, v.theta)),
    }
    return bounded(_COROLLARY_1, v, terms, v.conditions, axis="gradient_norm_squared")


def theorem_2(
    *,
    server_steps: Number,
    local_steps: int,
    gap: float,
    smoothness: float,
    local_rate: Any,
    server_rate: Number,
    euclidean_staleness: float,
    local_variance: float,
    global_variance: float,
) -> xr.Dataset:
    """Eq. (11): (1/T) Σ E‖∇F(x_t)‖² <= 2(F(x_1) - F*)/(η_g K m₁ T) + (η_g/m₁)[(ln(K+1) + 4K)/(72LΘ) σ_l² +
    (3 ln(K+1) + 4K)/(18LΘ) σ_g²], if η_g <= 1/(m₁KL) and the conditions of Corollary 1 hold.

    Not guaranteed, and no corrected form is known. A counterexample is F = L‖x‖²/2 at the edge of the conditions
    (η_g = 1/(m₁KL), η_k² = 1/(6(2k+1)kL²)) without noise and staleness, for large T. The left side exceeds the right
    one by a factor of 1.0070 for K = 2, 1.038 for K = 5, 1.076 for K = 10 and 1.196 for K = 50, because an update is
    shorter than K m₁‖∇F(x_s)‖.

    The bound is smallest at η_g² = 2(F(x_1) - F*)/(KTd), where d is the bracket, or at 1/(m₁KL) if that is smaller. One
    update makes a server step, so it predicts no speed-up with more clients.

    Args:
        server_steps: T, one number or several.
        local_steps: K.
        gap: F(x_1) - F*.
        smoothness: L.
        local_rate: η_k, one number or [K].
        server_rate: η_g.
        euclidean_staleness: Γ.
        local_variance: σ_l².
        global_variance: σ_g².

    Returns:
        The terms `initial`, `noise` and `heterogeneity`.
    """
    v = _of_rates("theory.asyncfeded.theorem_2", locals())
    T, K, L = v.server_steps, v.steps, v.smoothness
    log, scale = np.log(K + 1), L * v.m1
    noise = quotient((log + 4 * K) / (72 * scale) * v.local_variance, v.theta)
    spread = quotient((3 * log + 4 * K) / (18 * scale) * v.global_variance, v.theta)
    terms = {
        "initial": ("2(F(x_1) - F*)/(η_g K m₁ T)", 2 * v.gap / (v.server_rate * K * v.m1 * T)),
        "noise": ("(η_g/m₁)(ln(K+1) + 4K)/(72LΘ) σ_l²", v.server_rate * noise),
        "heterogeneity": ("(η_g/m₁)(3 ln(K+1) + 4K)/(18LΘ) σ_g²", v.server_rate * spread),
    }
    edge = Condition("η_g <= 1/(m₁ K L)", v.server_rate, 1 / (v.m1 * K * L))
    return bounded(_THEOREM_2, v, terms, [edge, *v.conditions])


def _checked(owner: str, given: dict[str, Any]) -> SimpleNamespace:
    """Returns the checked constants, and as `rates` η_1 .. η_K of the largest K."""
    v = numbers(owner, given)
    check_counts(owner, "local_steps", v.local_steps)
    v.rates = np.broadcast_to(v.local_rate, (int(np.max(v.local_steps)),))
    return v


def _of_rates(owner: str, given: dict[str, Any]) -> SimpleNamespace:
    """Returns the checked constants, with `steps` (K), `m1`, `m2`, `theta` and `conditions` of the rates."""
    v = _checked(owner, given)
    K = v.steps = int(v.local_steps)
    v.m1, v.m2 = float(np.mean(v.rates)), float(np.mean(v.rates**2))
    L2, log, square = v.smoothness**2, K * np.log(K + 1), v.euclidean_staleness**2
    v.theta = max(1 - square * (log / 3 + 4 * K**2 * L2 * v.m2), 0.0)
    fresh = Condition("Γ² < 3/(12K²L²m₂ + K ln(K+1))", square, 3 / (12 * K**2 * L2 * v.m2 + log), strict=True)
    v.conditions = [_small_steps(v), fresh]
    return v


def _small_steps(v: SimpleNamespace) -> Condition:
    """Returns the condition on the rates of local steps 1 .. K, for each K of `local_steps`."""
    k = np.arange(1, len(v.rates) + 1)
    tightness = v.rates**2 * (6 * (2 * k + 1) * k)
    tightest = np.maximum.accumulate(np.where(tightness == np.maximum.accumulate(tightness), k, 0))
    worst = tightest[np.asarray(v.local_steps, int) - 1]
    says = f"η_k² <= 1/(6(2k+1)kL²), at its tightest k = {np.max(worst)}"
    return Condition(says, v.rates[worst - 1] ** 2, 1 / (6 * (2 * worst + 1) * worst * v.smoothness**2))
