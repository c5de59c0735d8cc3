"""FADAS's clock: the staleness that the three tiers of clients give without any training."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jaxafl.clock import free_running, three_tier
from jaxafl.clock import schedule as run_clock
from jaxafl.clock.durations.duration import prepared_for
from jaxafl.device.keys import seed_key

SEEDS = 50


@pytest.mark.slow
def test_staleness_of_the_large_worst_case_delay() -> None:
    """N = 50, 25 in flight, buffers of 5, 500 steps. Over 200 seeds of an independent implementation the 5th and 95th
    percentile are 115-168 (τ_max), 7.7-10.6 (mean of the maximum) and 223-335 (units of time); the median is 6.4."""
    clock = free_running(concurrency=25, buffer=5, dispatch="step", durations=three_tier())
    rows = []
    for seed in range(SEEDS):
        figures = run_clock(clock, 50, 1, 500, seed).statistics()
        names = ("staleness_max", "max_staleness_per_step_mean", "max_staleness_per_step_median", "time")
        rows.append([figures[name] for name in names])
    worst, mean, median, time = np.asarray(rows).T
    error = 3 * np.sqrt(0.05 * 0.95 / SEEDS)
    for values, low, high in ((worst, 115, 168), (mean, 7.7, 10.6), (time / 10, 223, 335)):
        assert (values < low).mean() < 0.05 + error
        assert (values > high).mean() < 0.05 + error
        assert low < np.median(values) < high
    assert abs(median.mean() - 6.4) < 0.3
    assert np.quantile(mean, 0.8) < 10.89 < 1.2 * mean.max()  # the published seed lies in the upper tail
    assert np.quantile(worst, 0.05) < 127 < np.quantile(worst, 0.95)


@pytest.mark.parametrize(
    ("gamma", "expected"),
    [pytest.param(1.0, (0.645, 0.275, 0.08), marks=pytest.mark.slow), (1e-3, (1 / 2, 1 / 3, 1 / 6))],
)
def test_tiers_of_clients(gamma: float, expected: tuple[float, ...]) -> None:
    """The largest of Dirichlet(3γ, 2γ, γ); for γ → 0 all weight is on one tier, drawn in proportion to 3, 2, 1."""
    clients = 20_000
    if gamma == 1.0:  # the reference: NumPy's own Dirichlet
        weights = np.random.default_rng(0).dirichlet((3, 2, 1), 400_000)
        expected = tuple(np.bincount(weights.argmax(axis=1), minlength=3) / len(weights))
    duration = three_tier(gamma=gamma)
    with jax.enable_x64(True):
        _, tiers = jax.jit(lambda: prepared_for(clients, duration, seed_key(0)))()
    shares = np.bincount(np.asarray(tiers), minlength=3) / clients
    for share, probability in zip(shares, expected, strict=True):
        assert abs(share - probability) < 4 * np.sqrt(probability * (1 - probability) / clients)


@pytest.mark.slow
def test_a_split_of_the_population_follows_one_dirichlet() -> None:
    """With a large symmetric γ the three tiers are equally large, and who is in which is random."""
    duration = three_tier(gamma=1e6, split="population")
    with jax.enable_x64(True):
        _, tiers = prepared_for(300, duration, seed_key(3))
    tiers = np.asarray(tiers)
    assert np.abs(np.bincount(tiers, minlength=3) - 100).max() <= 2
    assert 100 < np.count_nonzero(np.diff(tiers)) < 290
