"""DeFedAvg's reference clock: rounds worked by hand, its definition without a queue, and its published times."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .clock_sampled import sampled
from .small_cases import DRAWN, per_client, rows

FIELDS = ("client", "run", "dispatch", "start_version", "staleness", "arrival_time", "multiplicity")


def test_sampled_by_hand():
    # 1 s: c0. 2 s: c0 (overwrites) and c1: step 0. 3 s: c0 from v1: step 1, counted twice. 4 s: c0 from v2, c1 from v1.
    # 5 s: c0 again (from v2) and c2 (from v0): step 2 reads c1 and c2, and step 3 finds c0's buffer full at once.
    steps = sampled(**DRAWN)
    assert [step.time for step in steps] == [2, 3, 5, 5]
    assert rows(steps, *FIELDS) == [
        [(0, 1, 3, 0, 0, 2.0, 1), (1, 0, 1, 0, 0, 2.0, 1)],
        [(0, 2, 4, 1, 0, 3.0, 2)],
        [(1, 1, 5, 1, 1, 4.0, 1), (2, 0, 2, 0, 2, 5.0, 1)],
        [(0, 4, 7, 2, 1, 5.0, 1)],
    ]


def test_sampled_hold_by_hand():
    # The first of client 0's two results stays in the buffer each time: run 0 of 1 s, and run 3 of 4 s.
    steps = sampled(**DRAWN, send_buffer="hold")
    assert [step.time for step in steps] == [2, 3, 5, 5]
    assert rows(steps, *FIELDS) == [
        [(0, 0, 0, 0, 0, 1.0, 1), (1, 0, 1, 0, 0, 2.0, 1)],
        [(0, 2, 4, 1, 0, 3.0, 2)],
        [(1, 1, 5, 1, 1, 4.0, 1), (2, 0, 2, 0, 2, 5.0, 1)],
        [(0, 3, 6, 2, 1, 4.0, 1)],
    ]


def test_sampled_consume_by_hand():
    # Client 0 idles from 1 s to 2 s and from 4 s on. Client 1, arrived at 4 s, may start: it has not used v2.
    steps = sampled(**DRAWN, receive_buffer="consume")
    assert [step.time for step in steps] == [2, 3, 5, 5]
    assert rows(steps, *FIELDS) == [
        [(0, 0, 0, 0, 0, 1.0, 1), (1, 0, 1, 0, 0, 2.0, 1)],
        [(0, 1, 3, 1, 0, 3.0, 2)],
        [(1, 1, 4, 1, 1, 4.0, 1), (2, 0, 2, 0, 2, 5.0, 1)],
        [(0, 2, 5, 2, 1, 4.0, 1)],
    ]


def test_a_newer_result_of_the_instant_of_a_step_is_the_one_read():
    # 2 s: client 1 completes round 0 and client 2 renews its buffer: the renewed result is read, although client 1
    # comes first.
    steps = sampled([[1, 2]], per_client([9.0, 2.0, 1.0]), num_clients=3)
    assert rows(steps, "client", "run") == [[(1, 0), (2, 1)]]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_schedules_of_keep_match_a_computation_from_the_ends_of_runs(data):
    # Under "keep" a client's runs are back to back whatever the server does, so everything follows from their ends.
    num_clients = data.draw(st.integers(1, 5))
    sets = data.draw(
        st.lists(st.lists(st.integers(0, num_clients - 1), min_size=1, max_size=5), min_size=1, max_size=8)
    )
    seconds = data.draw(st.lists(st.integers(1, 5), min_size=num_clients, max_size=num_clients))
    hold = data.draw(st.booleans())

    def duration(client: int, run: int) -> float:
        return seconds[client] + run % 2

    steps = sampled(
        sets, duration, num_clients=num_clients, send_buffer="hold" if hold else "overwrite", receive_buffer="keep"
    )
    ends = [list(accumulate(duration(client, run) for run in range(200))) for client in range(num_clients)]
    last_read, time = [0.0] * num_clients, 0.0
    times = [step.time for step in steps]
    for t, (drawn, step) in enumerate(zip(sets, steps, strict=True)):
        first = {i: next(run for run, end in enumerate(ends[i]) if end > last_read[i]) for i in drawn}
        time = max(time, *(ends[i][run] for i, run in first.items()))
        assert step.time == time
        assert {arrival.client: arrival.multiplicity for arrival in step.arrivals} == Counter(drawn)
        for arrival in step.arrivals:
            newest = sum(end <= time for end in ends[arrival.client]) - 1
            assert arrival.run == (first[arrival.client] if hold else newest)
            assert arrival.arrival_time == ends[arrival.client][arrival.run]
            assert arrival.start_version == sum(other <= arrival.start_time for other in times)
            assert arrival.staleness == t - arrival.start_version
            last_read[arrival.client] = time


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_consume_uses_each_version_once(data):
    num_clients = data.draw(st.integers(1, 5))
    sets = data.draw(
        st.lists(st.lists(st.integers(0, num_clients - 1), min_size=1, max_size=4), min_size=1, max_size=8)
    )
    seconds = data.draw(st.lists(st.integers(1, 5), min_size=num_clients, max_size=num_clients))
    steps = sampled(sets, per_client(seconds), num_clients=num_clients, receive_buffer="consume", send_buffer="hold")
    times = [step.time for step in steps]
    used: set[tuple[int, int]] = set()
    for step in steps:
        for arrival in step.arrivals:
            assert arrival.arrival_time <= step.time
            assert arrival.start_version == sum(time <= arrival.start_time for time in times)
            assert (arrival.client, arrival.start_version) not in used
            used.add((arrival.client, arrival.start_version))


def test_drawing_everybody_and_consuming_is_synchronous():
    steps = sampled([range(3)] * 4, per_client([1.0, 2.0, 5.0]), num_clients=3, receive_buffer="consume")
    assert [step.time for step in steps] == [5, 10, 15, 20]
    assert all(arrival.staleness == 0 for step in steps for arrival in step.arrivals)


@pytest.mark.parametrize(("n", "published"), [(10, 0.226), (20, 0.328), (40, 0.409)])
def test_published_defedavg_round_times(n, published):
    # DeFedAvg section 4.1.3, FashionMNIST: 100 clients, 50 steps of 17 MFLOP at 10 GFLOP/s times c_i ~ U(1, 5); a round
    # costs its waiting time plus two transfers of 2.2 MB at 400 Mbit/s.
    seconds = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        compute = 0.085 * rng.uniform(1, 5, 100)
        steps = sampled(rng.integers(100, size=(150, n)).tolist(), per_client(compute.tolist()), num_clients=100)
        seconds.append(steps[-1].time / len(steps) + 2 * 0.044)
    assert np.mean(seconds) == pytest.approx(published, rel=0.06)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sets": [[0], []]}, "set 1 has no clients"),
        ({"sets": [[3]]}, "client 3"),
        ({"receive_buffer": "drop"}, "receive_buffer"),
        ({"send_buffer": "drop"}, "send_buffer"),
        ({"duration": per_client([0.0] * 3)}, "positive"),
    ],
)
def test_sampled_rejects(change, message):
    with pytest.raises(ValueError, match=message):
        sampled(**{**DRAWN, **change})
