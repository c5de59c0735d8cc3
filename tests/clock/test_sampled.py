"""DeFedAvg-nIID's rounds: send and receive buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxafl.clock import constant, sampled, trace
from jaxafl.clock import schedule as run_clock
from tests.problems_protocols import KINDS, durations

CLIENTS, ROUNDS, DRAWN, RUNS = 6, 12, 3, 500


def replay(sets: np.ndarray, times: np.ndarray, receive: str, send: str) -> Any:
    protocol = sampled(drawn=sets.shape[1], durations=constant(0), receive_buffer=receive, send_buffer=send)
    return trace(protocol, sets=sets, durations=times)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(KINDS), send=st.sampled_from(["overwrite", "hold"]))
def test_rounds_of_keep_follow_from_the_ends_of_runs(seed: int, kind: str, send: str) -> None:
    """A client's runs are back to back whatever the server does."""
    rng = np.random.default_rng(seed)
    sets = rng.integers(0, CLIENTS - 1, (ROUNDS, DRAWN))  # client 5 is never drawn
    sets[2], sets[3], sets[4] = [1, 1, 1], [2, 1, 2], [2, 1, 2]
    times = durations(rng, CLIENTS, RUNS, kind)
    schedule = run_clock(replay(sets, times, "keep", send), CLIENTS, 1, ROUNDS, 0)
    ends, last_read, now = times.cumsum(axis=1), np.zeros(CLIENTS), 0.0
    for t, drawn in enumerate(sets):
        clients, counts = np.unique(drawn, return_counts=True)
        here = schedule.mask[t]
        assert schedule.client[t][here].tolist() == clients.tolist()
        assert schedule.multiplicity[t][here].tolist() == counts.tolist()
        first = np.array([np.searchsorted(ends[one], last_read[one], side="right") for one in clients])
        now = max(now, ends[clients, first].max())
        newest = np.array([np.searchsorted(ends[one], now, side="right") - 1 for one in clients])
        run = first if send == "hold" else newest
        assert schedule.run[t][here].tolist() == run.tolist()
        started = ends[clients, run] - times[clients, run]
        for name, values in {"arrived": ends[clients, run], "started": started}.items():
            np.testing.assert_allclose(getattr(schedule, name)[t][here], values, rtol=1e-9)
        made = (schedule.time <= schedule.started[t][here][:, None]).sum(axis=1)
        assert schedule.time[t] == pytest.approx(now) and schedule.version[t][here].tolist() == made.tolist()
        last_read[clients] = now


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(KINDS), send=st.sampled_from(["overwrite", "hold"]))
def test_consume_uses_each_version_once(seed: int, kind: str, send: str) -> None:
    rng = np.random.default_rng(seed)
    sets, times = rng.integers(0, CLIENTS, (ROUNDS, DRAWN)), durations(rng, CLIENTS, RUNS, kind)
    schedule = run_clock(replay(sets, times, "consume", send), CLIENTS, 1, ROUNDS, 0)
    columns = ("client", "version", "started", "arrived")
    client, version, started, arrived = (schedule.of_arrivals(name) for name in columns)
    assert len({*zip(client.tolist(), version.tolist(), strict=True)}) == len(client)
    np.testing.assert_array_equal(version, (schedule.time <= started[:, None]).sum(axis=1))
    assert (arrived <= np.repeat(schedule.time, schedule.taken)).all()
