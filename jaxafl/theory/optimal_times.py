"""Predicted simulated seconds of methods with fixed computation times: lower bounds, rounds, and counts of steps.

Client i needs τ_i seconds per stochastic gradient, and communication takes no time. h_m is the harmonic mean of the m
smallest τ_i. Without constants, a value is an order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxafl.options import UserError, check_number, check_whole
from jaxafl.theory.bounds import bisected, numbers

_ROUNDING = 1e-9  # relative: an arrival counts if its time equals that of another client but for rounding


class Effort(NamedTuple):
    """Difficulty of a problem, from `effort`."""

    steps: float  # steps that a method without noise needs: LΔ/ε
    gradients: float  # gradients that average the noise: σ²LΔ/ε²


class Round(NamedTuple):
    """Length of one server step in simulated seconds."""

    seconds: float  # exact, if all clients start together
    bound: float  # upper bound of the paper


class Optimum(NamedTuple):
    """Lower bound for homogeneous data."""

    seconds: float
    clients: int  # m*, the number of fastest clients whose gradients the bound uses


class Prediction(NamedTuple):
    """Predicted server steps and simulated seconds of a method."""

    server_steps: int
    seconds: float


def effort(
    target: float,
    *,
    smoothness: float,
    local_variance: float,
    gap: float | None = None,
    strong_convexity: float | None = None,
    distance: float | None = None,
) -> Effort:
    """Returns LΔ/ε and σ²LΔ/ε², or L/μ · log(R²/ε) and σ²/(εμ²) · log(R²/ε) for Polyak-Łojasiewicz functions.

    Args:
        target: ε. It bounds E‖∇f‖² if `gap` is given, else the squared distance to the optimum.
        smoothness: L.
        local_variance: σ², variance of a stochastic gradient.
        gap: Δ = f(x_0) - inf f.
        strong_convexity: μ, in place of `gap`.
        distance: R, distance of x_0 from the optimum; above √ε. Required with `strong_convexity`.

    Raises:
        ValueError: a constant is out of bounds, or the problem has both `gap` and `strong_convexity`, or neither.

    References:
        Tyurin & Richtárik, "Optimal time complexities of parallel stochastic optimization methods under a fixed
        computation model", NeurIPS 2023.
    """
    owner = "theory.optimal_times.effort"
    numbers(owner, locals())
    check_number(owner, "target", target, above=0)
    if gap is not None and strong_convexity is None and distance is None:
        steps = smoothness * gap / target
        return Effort(steps, local_variance / target * steps)
    if gap is not None or strong_convexity is None or distance is None:
        raise UserError(f"{owner}: expected either gap, or strong_convexity and distance")
    check_number(owner, "distance", distance, above=float(np.sqrt(target)))
    factor = float(np.log(distance**2 / target))
    return Effort(factor * smoothness / strong_convexity, factor * local_variance / (target * strong_convexity**2))


def harmonic_means(times: Any) -> np.ndarray:
    """Returns h_m = (1/m Σ_{i <= m} 1/τ_i)^(-1) of the m smallest τ_i, float64 [n] for m = 1 .. n.

    Args:
        times: τ_i [n], seconds per gradient, in any order.
    """
    speeds = 1 / _sorted("harmonic_means", times)
    return np.arange(1, len(speeds) + 1) / np.cumsum(speeds)


def homogeneous(times: Any, effort: Effort) -> Optimum:
    """Returns the lower bound min_m h_m (LΔ/ε + σ²LΔ/(mε²)), an order, which Rennala and Ringmaster attain.

    Args:
        times: τ_i [n], seconds per gradient.
        effort: see `effort`.

    References:
        Tyurin & Richtárik, NeurIPS 2023; Maranjyan, Tyurin & Richtárik, "Ringmaster ASGD", ICML 2025.
    """
    h = harmonic_means(times)
    seconds = h * (effort.steps + effort.gradients / np.arange(1, len(h) + 1))
    best = int(np.argmin(seconds))
    return Optimum(float(seconds[best]), best + 1)


def heterogeneous(times: Any, effort: Effort) -> float:
    """Returns the lower bound τ_n LΔ/ε + τ_avg σ²LΔ/(nε²), an order, which Malenia and Ringleader attain.

    τ_n is the largest of the times, and τ_avg their mean.

    Args:
        times, effort: as in `homogeneous`.

    References:
        Tyurin & Richtárik, NeurIPS 2023; Maranjyan & Richtárik, "Ringleader ASGD", ICLR 2026.
    """
    tau = _sorted("heterogeneous", times)
    return float(tau[-1] * effort.steps + tau.mean() * effort.gradients / len(tau))


def asynchronous_sgd(times: Any, effort: Effort) -> float:
    """Returns h_n (LΔ/ε + σ²LΔ/(nε²)), the order of asynchronous SGD, also with delay-adaptive rates.

    Args:
        times, effort: as in `homogeneous`.
    """
    h = harmonic_means(times)
    return float(h[-1] * (effort.steps + effort.gradients / len(h)))


def minibatch_sgd(times: Any, effort: Effort) -> float:
    """Returns τ_n (LΔ/ε + σ²LΔ/(nε²)), the order of mini-batch SGD; of IA²SGD if L bounds each client's smoothness.

    Args:
        times, effort: as in `homogeneous`.
    """
    tau = _sorted("minibatch_sgd", times)
    return float(tau[-1] * (effort.steps + effort.gradients / len(tau)))


def rennala_round(times: Any, batch: int) -> Round:
    """Returns the length of a round of Rennala: min {t : Σ ⌊t/τ_i⌋ >= B} <= min_m h_m (1 + B/m).

    The printed bound of a later text has B in the place of B/m.

    Args:
        times: τ_i [n], seconds per gradient.
        batch: B >= 1, gradients per server step.
    """
    tau = _sorted("rennala_round", times)
    check_whole("theory.optimal_times.rennala_round", "batch", batch)
    bound = homogeneous(tau, Effort(1, batch)).seconds
    return Round(_first(tau, bound, lambda received: received.sum() >= batch), bound)


def malenia_round(times: Any, batch: float) -> Round:
    """Returns the length of a round of Malenia: min {t : (1/n Σ 1/⌊t/τ_i⌋)^(-1) > S/n} <= 2 (τ_n + τ_avg S/n).

    Args:
        times: τ_i [n], seconds per gradient.
        batch: S >= 0.
    """
    tau = _sorted("malenia_round", times)
    check_number("theory.optimal_times.malenia_round", "batch", batch, least=0)
    bound = float(2 * (tau[-1] + tau.mean() * batch / len(tau)))

    def closes(received: np.ndarray) -> bool:
        return bool((received > 0).all()) and bool(np.sum(1 / received) * batch * (1 + _ROUNDING) < len(tau) ** 2)

    return Round(_first(tau, bound, closes), bound)


def ringmaster_window(times: Any, max_staleness: int) -> float:
    """Returns t(R) = 2 min_m h_m (1 + R/m), the most seconds that R consecutive steps of Ringmaster last.

    Args:
        times: τ_i [n], seconds per gradient.
        max_staleness: R >= 1.

    References:
        Maranjyan, Tyurin & Richtárik, "Ringmaster ASGD", ICML 2025, Lemma 4.1.
    """
    check_whole("theory.optimal_times.ringmaster_window", "max_staleness", max_staleness)
    return 2 * homogeneous(times, Effort(1, max_staleness)).seconds


def ringmaster(times: Any, effort: Effort, max_staleness: int | None = None) -> Prediction:
    """Returns K = 4RLΔ/ε + 8σ²LΔ/ε², rounded up, and at most ⌈K/R⌉ t(R) seconds.

    The rate is η = min{1/(2L), 1/(2(R-1)L), ε/(4σ²L)}. The constants are those of a later text (Birch SGD, Theorem
    2.4), whose form for Polyak-Łojasiewicz functions is an order.

    Args:
        times, effort: as in `homogeneous`.
        max_staleness: R >= 1; `None` is max{1, ⌈gradients/steps⌉} of `effort`: with a `gap`, max{1, ⌈σ²/ε⌉}.
    """
    if max_staleness is None:
        ratio = effort.gradients / effort.steps if effort.steps else 0.0
        max_staleness = max(1, math.ceil(ratio * (1 - _ROUNDING)))
    window = ringmaster_window(times, max_staleness)
    steps = max(1, math.ceil((4 * max_staleness * effort.steps + 8 * effort.gradients) * (1 - _ROUNDING)))
    return Prediction(steps, -(-steps // max_staleness) * window)


def ringmaster_seconds(times: Any, max_staleness: Any) -> float:
    """Returns Σ_r ⌈|{t : R_t = r}| / r⌉ t(r), the most seconds of Ringmaster's steps with bounds R_t that change.

    Args:
        times: τ_i [n], seconds per gradient.
        max_staleness: R_t >= 1, int [K], one per server step.
    """
    values, counts = np.unique(max_staleness, return_counts=True)
    return float(sum(-(-k // r) * ringmaster_window(times, r) for r, k in zip(values, counts, strict=True)))


def ringleader(times: Any, effort: Effort) -> Prediction:
    """Returns K = nLΔ/ε (1 + σ²/(nBε)), an order, rounded up, and at most ⌈K/n⌉ · 2τ_n seconds.

    Any n consecutive steps last at most 2τ_n. B >= τ_n/(2τ_avg) bounds the harmonic mean of the gradients per client.

    Args:
        times, effort: as in `homogeneous`.

    References:
        Maranjyan & Richtárik, "Ringleader ASGD: the first asynchronous SGD with optimal time complexity under data
        heterogeneity", ICLR 2026. K follows from a third party's account.
    """
    tau = _sorted("ringleader", times)
    least = tau[-1] / (2 * tau.mean())
    steps = max(1, math.ceil((len(tau) * effort.steps + effort.gradients / least) * (1 - _ROUNDING)))
    return Prediction(steps, -(-steps // len(tau)) * float(2 * tau[-1]))


def delay_adaptive_steps(
    target: float, *, local_variance: float, concurrency: float, staleness_max: float | None = None
) -> float:
    """Returns σ²/ε² + τ_C/ε, the order of server steps with delay-adaptive rates; constants of the problem left out.

    With a constant rate it is σ²/ε² + √(τ_C τ_max)/ε.

    Args:
        target: ε, bounds E‖∇f‖².
        local_variance: σ².
        concurrency: τ_C, largest number of runs in flight.
        staleness_max: τ_max of a constant rate; `None` for delay-adaptive rates.

    References:
        Koloskova, Stich & Jaggi, "Sharper convergence guarantees for asynchronous SGD for distributed and federated
        learning", NeurIPS 2022, Theorem 8 and eq. (11).
    """
    owner = "theory.optimal_times.delay_adaptive_steps"
    numbers(owner, locals())
    check_number(owner, "target", target, above=0)
    check_number(owner, "concurrency", concurrency, above=0)
    late = concurrency if staleness_max is None else np.sqrt(concurrency * staleness_max)
    return float(local_variance / target**2 + late / target)


def _sorted(name: str, times: Any) -> np.ndarray:
    """Returns the times in increasing order, float64 [n]."""
    check_number(f"theory.optimal_times.{name}", "times", times, above=0, per_client=True)
    return np.sort(np.ravel(times).astype(float))


def _first(tau: np.ndarray, until: float, closes: Callable[[np.ndarray], bool]) -> float:
    """Returns the time of the first arrival, up to `until`, at which the numbers received per client close a round."""

    def received(seconds: float) -> np.ndarray:
        return np.floor(seconds / tau * (1 + _ROUNDING))

    found = bisected(lambda seconds: closes(received(seconds)), until, _ROUNDING / 10)
    return float(np.max(received(found) * tau))  # the arrival itself, without the error of the bisection
