"""The reference clock of lossy links, worked by hand and against its distribution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .clock import synchronous
from .clock_bernoulli import bernoulli
from .small_cases import LOSSY, per_client, rows


def test_bernoulli_by_hand():
    # Tick 0: client 0 gets through, but not its download: run 0 again at tick 1, then run 1 from v2. Client 1 arrives
    # first at tick 1. Tick 2 is empty. Tick 3: both arrive; client 1's download fails, so its run 1 comes again.
    steps = bernoulli(**LOSSY)
    assert [step.time for step in steps] == [1, 2, 3, 4, 5]
    assert rows(steps, "client", "run", "dispatch", "start_version", "staleness", "start_time", "arrival_time") == [
        [(0, 0, 0, 0, 0, 0.0, 1.0)],
        [(0, 0, 0, 0, 1, 0.0, 2.0), (1, 0, 1, 0, 1, 0.0, 2.0)],
        [],
        [(0, 1, 2, 2, 1, 2.0, 4.0), (1, 1, 3, 2, 1, 2.0, 4.0)],
        [(0, 2, 4, 4, 0, 4.0, 5.0), (1, 1, 3, 2, 2, 2.0, 5.0)],
    ]


def test_no_losses_are_synchronous_rounds():
    assert bernoulli([[True] * 3] * 4) == synchronous([range(3)] * 4, per_client([1.0] * 3))


@pytest.mark.parametrize(("p", "q"), [(0.3, 1.0), (0.5, 0.6)])
def test_staleness_is_geometric(p, q):
    # t - s = k if the last upload followed by its download lies k + 1 ticks back: mean 1/(pq) - 1,
    # variance (1 - pq) / (pq)^2.
    rng = np.random.default_rng(0)
    steps = bernoulli((rng.random((1500, 40)) < p).tolist(), (rng.random((1500, 40)) < q).tolist())
    staleness = [arrival.staleness for step in steps for arrival in step.arrivals]
    assert np.mean(staleness) == pytest.approx(1 / (p * q) - 1, rel=0.04)
    assert np.var(staleness) == pytest.approx((1 - p * q) / (p * q) ** 2, rel=0.08)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_versions_follow_from_the_last_full_exchange(data):
    num_clients, ticks = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 12))
    table = st.lists(
        st.lists(st.booleans(), min_size=num_clients, max_size=num_clients), min_size=ticks, max_size=ticks
    )
    uploads, downloads = data.draw(table), data.draw(table)
    for t, step in enumerate(bernoulli(uploads, downloads)):
        assert [arrival.client for arrival in step.arrivals] == [i for i in range(num_clients) if uploads[t][i]]
        for arrival in step.arrivals:
            exchanges = [u for u in range(t) if uploads[u][arrival.client] and downloads[u][arrival.client]]
            assert arrival.run == len(exchanges)
            assert arrival.start_version == (exchanges[-1] + 1 if exchanges else 0)


def test_bernoulli_rejects_other_shapes():
    with pytest.raises(ValueError, match="downloads must be"):
        bernoulli([[True, True]], [[True]])
