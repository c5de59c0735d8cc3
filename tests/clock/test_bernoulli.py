"""Ticks at which uploads and downloads may fail."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxafl.clock import bernoulli, trace
from jaxafl.clock import schedule as run_clock
from tests.problems_protocols import mean_and_error
from tests.variants import slow_but

CLIENTS, TICKS = 5, 20


def masks(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Uploads and downloads; client 0 never gets through, nobody at tick 3, client 1 downloads only at tick 12."""
    rng = np.random.default_rng(seed)
    uploads, downloads = rng.random((TICKS, CLIENTS)) < 0.5, rng.random((TICKS, CLIENTS)) < 0.6
    uploads[:, 0] = uploads[3] = False
    downloads[:, 1] = False
    uploads[12, 1] = downloads[12, 1] = True
    return uploads, downloads


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), failing=st.booleans())
def test_versions_follow_from_the_last_full_exchange(seed: int, failing: bool) -> None:
    uploads, downloads = masks(seed)
    recorded = {"uploads": uploads} | ({"downloads": downloads} if failing else {})
    schedule = run_clock(trace(bernoulli(0.5), **recorded), CLIENTS, 3, TICKS, 0)
    assert (schedule.of_arrivals("local_steps") == 3).all() and not schedule.of_arrivals("kind").any()
    np.testing.assert_array_equal(schedule.mask, uploads)
    np.testing.assert_array_equal(schedule.time, np.arange(1, TICKS + 1))
    full = uploads & (downloads if failing else True)
    for t, client in np.argwhere(uploads):
        exchanges = np.flatnonzero(full[:t, client])
        version = exchanges[-1] + 1 if len(exchanges) else 0
        assert schedule.run[t, client] == len(exchanges) and schedule.version[t, client] == version
        assert schedule.reference[t, client] == t - schedule.staleness[t, client] == version
    # every run that was started: N at first, one for every download
    assert schedule.runs_started == CLIENTS + full.sum()


@pytest.mark.parametrize("q", slow_but([1.0, 0.4], 0.4))
def test_staleness_is_geometric(q: float) -> None:
    """Mean 1/(pq) - 1 and variance (1 - pq)/(pq)², over 60 seeds, 600 ticks each after the start has been forgotten."""
    p = np.asarray([0.1, 0.25, 0.5, 0.9])
    means, variances = [], []
    for seed in range(60):
        schedule = run_clock(bernoulli(p, q), 4, 1, 900, seed)
        late = [column[column >= 0] for column in schedule.staleness[300:].T]
        means.append([values.mean() for values in late])
        variances.append([np.mean((values - (1 / (rate * q) - 1)) ** 2) for values, rate in zip(late, p, strict=True)])
    for estimates, exact in ((means, 1 / (p * q) - 1), (variances, (1 - p * q) / (p * q) ** 2)):
        mean, error = mean_and_error(estimates)
        assert (np.abs(mean - exact) < 4 * error).all(), (mean, exact, error)
        assert (error < 0.12 * exact).all()


def test_uploads_are_the_same_whether_downloads_fail() -> None:
    sure, lossy = (run_clock(bernoulli(0.3, q), 7, 1, 100, 5) for q in (1.0, 0.2))
    np.testing.assert_array_equal(sure.mask, lossy.mask)
    assert sure.staleness.max() < lossy.staleness.max()
