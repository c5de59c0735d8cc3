"""Differential privacy of composed Gaussian mechanisms: ε for a δ."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

ORDERS = np.array([*(1 + np.arange(1, 100) / 10), *range(11, 64), 128, 256, 512, 1024])
"""Orders α of Rényi divergences, those that dp-accounting tries."""
_POINTS = 2**18  # most points of an integral; orders that need more count as unbounded


def gaussian_epsilon(mu: np.ndarray, delta: float) -> np.ndarray:
    """Computes ε of Gaussian mechanisms with sensitivity over noise μ, exactly.

    The smallest ε >= 0 with Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ) <= δ. Gaussian mechanisms compose exactly: several with
    μ_1, μ_2 ... are one with μ² = Σ μ_k².

    Args:
        mu: μ = 1/z of mechanisms with noise multiplier z, float [...]; 0 for no release.
        delta: δ in (0, 1).

    References:
        Balle, Wang (2018), "Improving the Gaussian mechanism for differential privacy", ICML, Theorem 8.
    """
    from scipy.special import log_ndtr

    released = mu > 0
    mu = np.where(released, mu, 1.0)

    def exceeded(epsilon: np.ndarray) -> np.ndarray:
        above, below = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
        with np.errstate(divide="ignore"):
            return above + np.log1p(-np.exp(np.minimum(below - above, 0.0))) > np.log(delta)

    low = np.zeros_like(mu)
    high = np.where(exceeded(low), mu * mu / 2 + mu * np.sqrt(2 * np.log(1 / delta)), 0.0)  # Φ(-t) <= exp(-t²/2)
    for _ in range(60):  # halves to the last bit
        middle = (low + high) / 2
        more = exceeded(middle)
        low, high = np.where(more, middle, low), np.where(more, high, middle)
    return np.where(released, high, 0.0)


def renyi_epsilon(divergences: np.ndarray, delta: float) -> np.ndarray:
    """Computes ε from Rényi divergences ρ(α) [..., orders], the least over `ORDERS`.

    ε = ρ(α) + log(1 - 1/α) - log(δ α) / (α - 1), and 0 if δ² >= 1 - exp(-ρ(α)).

    References:
        Mironov (2017), "Rényi differential privacy", CSF; Canonne, Kamath, Steinke (2020), "The discrete Gaussian for
        differential privacy", NeurIPS, Proposition 12.
    """
    found = divergences + np.log1p(-1 / ORDERS) - np.log(delta * ORDERS) / (ORDERS - 1)
    return np.maximum(np.where(delta**2 + np.expm1(-divergences) > 0, 0.0, found).min(-1), 0.0)


@functools.lru_cache(maxsize=64)
def sampled_divergences(share: float, noise_multiplier: float) -> np.ndarray:
    """Computes the Rényi divergences [orders] of one Gaussian mechanism on a Poisson sample.

    ρ(α) = log E[(1 - q + q exp((2x - 1) / (2z²)))^α] / (α - 1) with x ~ N(0, z²), by the trapezoidal rule.

    Args:
        share: q in [0, 1], probability of each client.
        noise_multiplier: z > 0.

    References:
        Mironov, Talwar, Zhang (2019), "Rényi differential privacy of the sampled Gaussian mechanism", section 3.
    """
    q, z = share, noise_multiplier
    if q in (0, 1):
        return q * ORDERS / (2 * z * z)
    found = []
    for order in ORDERS:
        width = min(z, z * z) / 4  # the error falls as exp(-2π² · 4)
        count = (order + 24 * z) / width
        if count > _POINTS:
            found.append(np.inf)
            continue
        x = np.linspace(-12 * z, order + 12 * z, int(count) + 2)
        tilt = np.logaddexp(np.log1p(-q), np.log(q) + (2 * x - 1) / (2 * z * z))
        value = order * tilt - x * x / (2 * z * z)
        largest = value.max()
        total = largest + np.log(np.exp(value - largest).sum() * (x[1] - x[0])) - np.log(z * np.sqrt(2 * np.pi))
        found.append(max(total, 0.0) / (order - 1))
    return np.array(found)


def sampled_epsilon_by_pld(shares: dict[float, int], noise_multiplier: float, delta: float) -> float:
    """Computes ε of Gaussian mechanisms on Poisson samples from their privacy loss distribution, by dp-accounting.

    Args:
        shares: q -> number of mechanisms.
        noise_multiplier: z > 0.
        delta: δ.

    Raises:
        ImportError: dp-accounting is not installed; the extra `privacy` brings it.
    """
    import dp_accounting

    accountant: Any = dp_accounting.pld.PLDAccountant()
    for share, count in shares.items():
        event = dp_accounting.PoissonSampledDpEvent(share, dp_accounting.GaussianDpEvent(noise_multiplier))
        accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))
