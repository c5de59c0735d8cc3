"""The free-running clock: what holds in every schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxafl.clock import constant, free_running, trace, uniform
from jaxafl.clock import schedule as run_clock
from tests.problems import record

CLIENTS, STEPS = 6, 14
OPTIONS: dict[str, dict[str, Any]] = {
    "arrival": {"concurrency": 3, "buffer": 2},
    "arrival, everyone": {"concurrency": 6, "buffer": 4},
    "step": {"concurrency": 5, "buffer": 2, "dispatch": "step"},
    "step, everyone": {"concurrency": 6, "buffer": 6, "dispatch": "step"},
    "before_step": {"concurrency": 4, "buffer": 3, "before_step": True},
    "start_skew": {"concurrency": 5, "buffer": 3, "dispatch": "step", "start_skew": True},
}


@pytest.mark.parametrize("name", OPTIONS)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(["real", "ties", "late"]))
def test_runs_start_from_the_versions_of_their_start_times(name: str, seed: int, kind: str) -> None:
    """The newest version at a start is the number of steps taken up to that instant."""
    options = OPTIONS[name]
    recorded = record(seed, CLIENTS, STEPS, kind, **options)
    found = run_clock(recorded.clock(), CLIENTS, 1, STEPS, seed % 7)
    lasted = recorded.durations[found.client, found.run]
    np.testing.assert_allclose(found.arrived - found.started, lasted, rtol=1e-9)
    np.testing.assert_array_equal(found.time, found.arrived.max(axis=1))
    assert (np.diff(found.time) >= 0).all() and found.taken.tolist() == [options["buffer"]] * STEPS
    assert len({*found.run_id.ravel().tolist()}) == found.run_id.size
    newest = (found.time <= found.started[..., None]).sum(axis=2)
    before = (found.time < found.started[..., None]).sum(axis=2)
    if "before_step" in options:
        assert ((before <= found.reference) & (found.reference <= newest)).all()
    else:
        np.testing.assert_array_equal(found.reference, newest)
    np.testing.assert_array_equal(found.staleness, np.arange(STEPS)[:, None] - found.reference)
    late = found.reference - found.version
    assert set(np.unique(late)) <= {0, int("start_skew" in options)} and (late[found.reference == 0] == 0).all()
    for client in range(CLIENTS):
        order = np.argsort(found.run_id[found.client == client])
        begun, ended = (getattr(found, of)[found.client == client][order] for of in ("started", "arrived"))
        assert (begun[1:] >= ended[:-1]).all()  # no two runs of a client overlap


@pytest.mark.parametrize("dispatch", ["arrival", pytest.param("step", marks=pytest.mark.slow)])
def test_clients_start_uniformly(dispatch: str) -> None:
    """Equal speeds, few in flight: chi-square of starts per client, 30 clients, against its 99.9 % quantile."""
    clock = free_running(concurrency=2, buffer=2, dispatch=dispatch, durations=uniform(1, 2))
    schedule = run_clock(clock, 30, 1, 3000, 5)
    counts = np.bincount(schedule.client.ravel(), minlength=30)
    expected = counts.sum() / 30
    assert ((counts - expected) ** 2 / expected).sum() < 58.3  # 29 degrees of freedom


def test_time_is_float64() -> None:
    """A million seconds in, a tenth of a microsecond still counts."""
    durations = np.full((2, 2000), 1000.0)
    durations[1] += 1e-7
    clock = trace(free_running(concurrency=2, durations=constant(0)), durations=durations)
    schedule = run_clock(clock, 2, 1, 3000, 0)
    assert schedule.time.dtype == np.float64
    last = schedule.time[schedule.client[:, 0] == 1][-1]
    np.testing.assert_allclose(last, 1500 * (1000 + 1e-7), rtol=1e-13)
