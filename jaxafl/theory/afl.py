"""AFL's bounds for training from stale models with a rate that falls with the staleness."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import xarray as xr

from jaxafl.theory.bounds import (
    MEAN_GRADIENT,
    Condition,
    Number,
    Statement,
    bounded,
    check_counts,
    left_out,
    numbers,
)  # fmt: skip

_PAPER = "afl2025"
_UNSURE = "not guaranteed: the proof lets clients take summed steps one after another, the algorithm averages them"
_THEOREM_1 = Statement(_PAPER, "Theorem 1, eq. (17)", MEAN_GRADIENT, "printed", False, ("afl",), _UNSURE)
_LEMMA_3 = Statement(_PAPER, "Lemma 3", "lemma", "corrected", True, (), "bounds Σζ_tΨ_t / Σζ_t, hence the smallest Ψ_t")
_PRINTED_3 = Statement(
    _PAPER, "Lemma 3", "lemma", "printed", False, (), "not guaranteed: its sum over t does not telescope"
)


def theorem_1(
    *,
    server_steps: Number,
    local_steps: float,
    arrivals: float,
    clients: float,
    gap: float,
    smoothness: float,
    local_rate: Number,
    local_variance: float,
    global_variance: float,
    dissimilarity: float = 1.0,
) -> xr.Dataset:
    """Eq. (17): (1/T) Σ E‖∇L‖² <= 6(L(θ_0) - L*)/(γ̃T) + 12Lγ̃σ²/(IJ) + 12Lγ̃ν²(C-J)/(J(C-1)) + 45L²γ̃²σ²/(4IJ) +
    45L²γ̃²ν²/(4IJ), with γ̃ = IJγ <= 1/(6L(1 + β²/J)).

    Not guaranteed, and no corrected form is known. The proof lets the J clients of a round take SUMMED steps in
    sequence, but Algorithm 1 averages them. A counterexample is identical quadratics (β = 1, no noise, I = 1, large T)
    with γ̃ at its limit. The left side exceeds the right one by a factor of at least J/6: 1.012 for J = 6, 1.179 for
    J = 7 and 1.346 for J = 8.

    With the best allowed γ the leading term is √(288L(L(θ_0) - L*)(σ²/I + ν²(C-J)/(C-1))/(JT)): the bound predicts a
    linear speed-up in J.

    Args:
        server_steps: T rounds, one number or several.
        local_steps: I, local steps of a client.
        arrivals: J, clients of a round.
        clients: C.
        gap: L(θ_0) - L*.
        smoothness: L.
        local_rate: γ, of a local step.
        local_variance: σ².
        global_variance: ν².
        dissimilarity: β² in (1/C) Σ‖∇L_i‖² <= ν² + β²‖∇L‖².

    Returns:
        The terms `initial`, `noise`, `sampling`, `drift_of_noise` and `drift`; see `jaxafl.theory.bounds.bounded`.
    """
    v = numbers("theory.afl.theorem_1", locals())
    T, L, cohort = v.server_steps, v.smoothness, v.local_steps * v.arrivals
    rate = cohort * v.local_rate
    noise, spread = v.local_variance / cohort, v.global_variance
    sampling = 12 * L * spread * left_out(v.clients, v.arrivals) / v.arrivals
    terms = {
        "initial": ("6(L(θ_0) - L*)/(γ̃T)", 6 * v.gap / (rate * T)),
        "noise": ("12Lγ̃σ²/(IJ)", rate * (12 * L * noise)),
        "sampling": ("12Lγ̃ν²(C-J)/(J(C-1))", rate * sampling),
        "drift_of_noise": ("45L²γ̃²σ²/(4IJ)", rate**2 * (45 * L**2 / 4 * noise)),
        "drift": ("45L²γ̃²ν²/(4IJ)", rate**2 * (45 * L**2 / 4 * spread / cohort)),
    }
    edge = Condition("γ̃ = IJγ <= 1/(6L(1 + β²/J))", rate, 1 / (6 * L * (1 + v.dissimilarity / v.arrivals)))
    return bounded(_THEOREM_1, v, terms, [edge])


def schedule(*, server_steps: int, initial_rate: float, delay_penalty: float = 0.0, staleness: Any = 0) -> np.ndarray:
    """Returns the rates of Lemma 3, ζ_t = ζ_0/(√(t+1)(1 + ατ_t)) for t = 0 .. T, [T + 1].

    Args:
        server_steps: T.
        initial_rate: ζ_0.
        delay_penalty: α.
        staleness: τ_t, a number or [T + 1].
    """
    v = numbers("theory.afl.schedule", locals())
    check_counts("theory.afl.schedule", "server_steps", v.server_steps)
    t = np.arange(int(v.server_steps) + 1)
    return v.initial_rate / (np.sqrt(t + 1) * (1 + v.delay_penalty * np.asarray(staleness, float)))


def lemma_3(
    *,
    server_steps: Number,
    start: float,
    descent: float,
    quadratic: float,
    cubic: float,
    initial_rate: float,
    delay_penalty: float = 0.0,
    staleness: Any = 0,
    form: Literal["corrected", "printed"] = "corrected",
) -> xr.Dataset:
    """Lemma 3, for d_{t+1} <= d_t - bζ_tΨ_t + a_1ζ_t² + a_2ζ_t³ with all d_t, Ψ_t >= 0 and the rates of `schedule`.

    Corrected: Σζ_tΨ_t / Σζ_t <= (d_0 + a_1Σζ_t² + a_2Σζ_t³)/(bΣζ_t), with sums over t = 0 .. T. It bounds the smallest
    Ψ_t too. Printed, for the plain mean: (d_0/(bζ_0(T+1)))(√(T+1) + αΣτ_t) + (a_1ζ_0/b) log(T+1)/√(T+1) + (a_2ζ_0²/b)
    log(T+1)/T. Its sum does not telescope if ζ_t varies. For example, let a_1 = a_2 = 0 and Ψ_t = 0 except in the last
    step. Then d_0 = bζ_TΨ_T gives the mean (d_0/(bζ_0(T+1)))√(T+1)(1 + ατ_T), which is larger if only τ_T > 0.

    Args:
        server_steps: T, one number or several.
        start: d_0.
        descent: b > 0.
        quadratic: a_1.
        cubic: a_2.
        initial_rate: ζ_0.
        delay_penalty: α.
        staleness: τ_t, a number or [max T + 1].
        form: `"corrected"` or `"printed"`.

    Returns:
        The terms `initial`, `quadratic` and `cubic`.
    """
    owner = "theory.afl.lemma_3"
    v = numbers(owner, locals())
    check_counts(owner, "server_steps", v.server_steps)
    T = v.server_steps = v.server_steps.astype(int)
    most = int(np.max(T))
    rates = schedule(server_steps=most, initial_rate=initial_rate, delay_penalty=delay_penalty, staleness=staleness)
    b = v.descent
    if form == "corrected":
        first, second, third = (np.cumsum(rates**power)[T] for power in (1, 2, 3))
        terms = {
            "initial": ("d_0/(bΣζ_t)", v.start / (b * first)),
            "quadratic": ("a_1 Σζ_t²/(bΣζ_t)", v.quadratic * second / (b * first)),
            "cubic": ("a_2 Σζ_t³/(bΣζ_t)", v.cubic * third / (b * first)),
        }
        return bounded(_LEMMA_3, v, terms)
    late = v.delay_penalty * np.cumsum(np.broadcast_to(staleness, most + 1))[T]
    root, log = np.sqrt(T + 1), np.log(T + 1)
    terms = {
        "initial": ("(d_0/(bζ_0(T+1)))(√(T+1) + αΣτ_t)", v.start / (b * v.initial_rate * (T + 1)) * (root + late)),
        "quadratic": ("(a_1ζ_0/b) log(T+1)/√(T+1)", v.quadratic * v.initial_rate / b * log / root),
        "cubic": ("(a_2ζ_0²/b) log(T+1)/T", v.cubic * v.initial_rate**2 / b * log / T),
    }
    return bounded(_PRINTED_3, v, terms)
