"""AUDG's and PSURDG's bounds on the cost of delays, for gradients that are used once or reused."""

from __future__ import annotations

from typing import Any, Literal

import xarray as xr

from jaxafl.theory.bounds import AVERAGE_GAP, Condition, Number, Statement, Terms, bounded, numbers

_PAPER = "hao2025"
_SFL = Statement(_PAPER, "eq. (20)", AVERAGE_GAP, "printed", True, ("audg", "psurdg"))
_AUDG = Statement(_PAPER, "eq. (21)", AVERAGE_GAP, "printed", True, ("audg",))
_PDD = Statement(
    _PAPER, "eq. (45)", "gap_difference", "printed", False, (), "a difference of two bounds bounds nothing"
)
_PSURDG = Statement(_PAPER, "eq. (48)", AVERAGE_GAP, "printed", True, ("psurdg",))


def sfl(
    *,
    server_steps: Number,
    learning_rate: Number,
    distance: float,
    smoothness: float,
    strong_convexity: float,
    optimum_spread: float,
) -> xr.Dataset:
    """Eq. (20), every client at every tick: f(ŵ(T)) - f(w*) <= S = R²/(2ηT) + (2L/(μT²))[LR² + (μ+L)h²], if η <= 1/L.

    ŵ(T) is the running average of w² .. w^{T+1}, here x_1 .. x_T.

    Args:
        server_steps: T, one number or several.
        learning_rate: η.
        distance: R, which bounds ‖w^t - w*‖ from the first model on.
        smoothness: L.
        strong_convexity: μ.
        optimum_spread: h², which bounds ‖w_i* - w*‖² (the paper's ϕ²).

    Returns:
        The terms `initial` and `transient`; see `jaxafl.theory.bounds.bounded`.
    """
    v = numbers("theory.delayed_gradients.sfl", locals())
    return bounded(_SFL, v, _synchronous(v), _small_rate(v))


def audg(
    *,
    server_steps: Number,
    learning_rate: Number,
    distance: float,
    smoothness: float,
    strong_convexity: float,
    optimum_spread: float,
    gradient_bound: float,
    clients: float,
    mean_arrivals: float,
    mean_staleness: float,
    cubic_staleness: float,
) -> xr.Dataset:
    """Eq. (21), AUDG: S + LR²A/2 + (N-I)[(2L-μ)h²/2 + 3LR²/2] + (η²G²(L-μ)/2) I A + (η²G²LN/2) B, if η <= 1/L.

    A = Σλ_i E[τ_i] and B = Σλ_i E[τ_i³/3 + 3τ_i²/2 + 13τ_i/6]. τ_i is the age of a client's model, and of its gradient
    at the arrival (`theory.staleness.bernoulli(age="model")`). Two terms fall neither with T nor with η, so the bound
    is informative only for short delays and few absent clients. With c the factor of η², the bound is smallest at
    η³ = R²/(4cT), or at 1/L if that is smaller. Neither bound of the paper predicts a speed-up with more clients.

    Args:
        server_steps, learning_rate, distance, smoothness, strong_convexity, optimum_spread: see `sfl`.
        gradient_bound: G, on the ball of radius R around w*.
        clients: N.
        mean_arrivals: I = Σp_i, expected arrivals per tick.
        mean_staleness: A.
        cubic_staleness: B.

    Returns:
        The terms `initial`, `transient`, `staleness`, `absence`, `staleness_of_arrivals` and `cubic_staleness`.
    """
    v = numbers("theory.delayed_gradients.audg", locals())
    terms = _synchronous(v) | _delayed(v, v.optimum_spread)
    return bounded(_AUDG, v, terms, _small_rate(v))


def pdd(
    *,
    server_steps: Number,
    learning_rate: Number,
    distance: float,
    smoothness: float,
    strong_convexity: float,
    gradient_bound: float,
    clients: float,
    mean_arrivals: float,
    mean_staleness: float,
    cubic_staleness: float,
) -> xr.Dataset:
    """Eq. (45), the cost of delays to AUDG without heterogeneity: eq. (21) minus S, at h = 0.

    Args:
        server_steps, learning_rate, distance, smoothness, strong_convexity, gradient_bound, clients, mean_arrivals,
            mean_staleness, cubic_staleness: see `audg`.

    Returns:
        The last four terms of `audg`.
    """
    v = numbers("theory.delayed_gradients.pdd", locals())
    return bounded(_PDD, v, _delayed(v, 0.0), _small_rate(v))


def psurdg(
    *,
    server_steps: Number,
    learning_rate: Number,
    distance: float,
    smoothness: float,
    strong_convexity: float,
    optimum_spread: float,
    gradient_bound: float,
    clients: float,
    mean_staleness: float,
    cubic_staleness: float,
) -> xr.Dataset:
    """Eq. (48), PSURDG: S + (Nη²G²/2)[(L-μ)A + LB] + LR²A/2, if η <= 1/L.

    The delay is that of the gradients in the step, Σ_i λ_i ∇f_i(w^{t-τ_i}). PSURDG reuses a gradient until the next one
    arrives, so τ_i is the age of the GRADIENT: the age of its model at the arrival plus the ticks since
    (`theory.staleness.bernoulli(age="gradient")`). It is about twice the age of the model that the client holds now,
    the paper's definition of τ_i. With the paper's smaller age the formula is as printed and not guaranteed. (Over 97
    random quadratics and all T <= 120, the mean of 30 seeds was at most 0.34 of it; 0.33 with the age of gradients.)

    Args:
        server_steps, learning_rate, distance, smoothness, strong_convexity, optimum_spread: see `sfl`.
        gradient_bound: G, on the ball of radius R around w*.
        clients: N.
        mean_staleness: A, of gradients.
        cubic_staleness: B, of gradients.

    Returns:
        The terms `initial`, `transient`, `linear_staleness`, `cubic_staleness` and `staleness`.
    """
    v = numbers("theory.delayed_gradients.psurdg", locals())
    L, size = v.smoothness, v.clients * v.learning_rate**2 * v.gradient_bound**2 / 2
    terms = _synchronous(v) | {
        "linear_staleness": ("(Nη²G²/2)(L-μ) A", size * (L - v.strong_convexity) * v.mean_staleness),
        "cubic_staleness": ("(Nη²G²/2) L B", size * L * v.cubic_staleness),
        "staleness": ("LR²A/2", L * v.distance**2 * v.mean_staleness / 2),
    }
    return bounded(_PSURDG, v, terms, _small_rate(v))


def psurdg_less_audg(
    *,
    server_steps: Number,
    learning_rate: Number,
    distance: float,
    smoothness: float,
    strong_convexity: float,
    optimum_spread: float,
    gradient_bound: float,
    clients: float,
    mean_arrivals: float,
    mean_staleness: float,
    form: Literal["corrected", "printed"] = "corrected",
) -> xr.Dataset:
    """Bound of PSURDG minus bound of AUDG at equal A and B: (N-I)[(η²G²(L-μ)/2) A - (3LR²/2 + (2L-μ)h²/2)].

    Negative where, by the paper, gradients are worth reusing. The paper prints L for L-μ (`form="printed"`), which is
    not the difference of its bounds.

    Args:
        server_steps, learning_rate, distance, smoothness, strong_convexity, optimum_spread, gradient_bound, clients,
            mean_arrivals, mean_staleness: see `audg`.
        form: `"corrected"` or `"printed"`.

    Returns:
        The terms `staleness` and `absence`.
    """
    v = numbers("theory.delayed_gradients.psurdg_less_audg", locals())
    L, absent = v.smoothness, v.clients - v.mean_arrivals
    factor, says = (L - v.strong_convexity, "L-μ") if form == "corrected" else (L, "L")
    stale = v.learning_rate**2 * v.gradient_bound**2 * factor / 2 * v.mean_staleness
    terms = {
        "staleness": (f"(N-I)(η²G²({says})/2) A", absent * stale),
        "absence": ("-(N-I)[3LR²/2 + (2L-μ)h²/2]", -absent * _of_the_absent(v, v.optimum_spread)),
    }
    statement = _PDD._replace(name="PSURDG - AUDG", form=form)
    return bounded(statement, v, terms, _small_rate(v))


def _small_rate(v: Any) -> list[Condition]:
    return [Condition("η <= 1/L", v.learning_rate, 1 / v.smoothness)]


def _synchronous(v: Any) -> Terms:
    """Returns the terms of S."""
    T, L, mu, square = v.server_steps, v.smoothness, v.strong_convexity, v.distance**2
    later = 2 * L / (mu * T**2) * (L * square + (mu + L) * v.optimum_spread)
    return {
        "initial": ("R²/(2ηT)", square / (2 * v.learning_rate * T)),
        "transient": ("(2L/(μT²))[LR² + (μ+L)h²]", later),
    }


def _of_the_absent(v: Any, spread: Number) -> Number:
    """Returns (2L-μ)h²/2 + 3LR²/2."""
    return (2 * v.smoothness - v.strong_convexity) * spread / 2 + 3 * v.smoothness * v.distance**2 / 2


def _delayed(v: Any, spread: Number) -> Terms:
    """Returns the terms that delays add to S in the bound of AUDG."""
    L, square = v.smoothness, v.learning_rate**2 * v.gradient_bound**2
    linear = square * (L - v.strong_convexity) / 2 * v.mean_arrivals * v.mean_staleness
    return {
        "staleness": ("LR²A/2", L * v.distance**2 * v.mean_staleness / 2),
        "absence": ("(N-I)[(2L-μ)h²/2 + 3LR²/2]", (v.clients - v.mean_arrivals) * _of_the_absent(v, spread)),
        "staleness_of_arrivals": ("(η²G²(L-μ)/2) I A", linear),
        "cubic_staleness": ("(η²G²LN/2) B", square * L * v.clients / 2 * v.cubic_staleness),
    }
