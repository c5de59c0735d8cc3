"""Differential privacy of composed Gaussian mechanisms: ε for a δ."""

from __future__ import annotations

from typing import Any

import numpy as np


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
