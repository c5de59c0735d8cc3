"""SAFA's reference clock: rounds worked by hand, and what its definition promises."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .clock import synchronous
from .clock_semi_async import semi_async
from .small_cases import DEPRECATING, FILLING, per_client, rows


def test_semi_async_stragglers_and_deprecated_by_hand():
    # Quota 1, lag 1. Round 0 picks c0 at 1 s. Round 1: c0 and c1 arrive at 2 s; c0 was picked before, so c1 is picked.
    # Round 2, from 2 s: c2 and c3 still train on v0, two behind: abandoned; c0 arrives at 3 s. Round 3: c1, c2, c3 go
    # on from v2; c0 and c1 arrive at 4 s. Round 4: c2 and c3 are abandoned again.
    steps = semi_async(**DEPRECATING, rounds=5)
    assert [step.time for step in steps] == [1, 2, 3, 4, 5]
    assert rows(steps, "kind", "client", "run", "dispatch", "start_version", "staleness", "arrival_time") == [
        [("picked", 0, 0, 0, 0, 0, 1.0)],
        [("undrafted", 0, 1, 4, 1, 0, 2.0), ("picked", 1, 0, 1, 0, 1, 2.0)],
        [("deprecated", 2, 0, 2, 0, 2, 2.0), ("deprecated", 3, 0, 3, 0, 2, 2.0), ("picked", 0, 2, 5, 2, 0, 3.0)],
        [("undrafted", 0, 3, 9, 3, 0, 4.0), ("picked", 1, 1, 6, 2, 1, 4.0)],
        [("deprecated", 2, 1, 7, 2, 2, 4.0), ("deprecated", 3, 1, 8, 2, 2, 4.0), ("picked", 0, 4, 10, 4, 0, 5.0)],
    ]


def test_semi_async_filling_up_by_hand():
    # Quota 2 of 3: from round 1 on only one client was not picked before, so the round lasts until nobody trains (4 s:
    # c0 3 s, c1 and c2 4 s; 8 s: c0 5 s, c1 6 s, c2 8 s) and the earliest other, c0, fills up.
    steps = semi_async(**FILLING, rounds=3)
    assert [step.time for step in steps] == [2, 4, 8]
    assert rows(steps, "kind", "client", "start_version", "staleness", "arrival_time") == [
        [("picked", 0, 0, 0, 1.0), ("picked", 1, 0, 0, 2.0)],
        [("picked", 0, 1, 0, 3.0), ("undrafted", 1, 1, 0, 4.0), ("picked", 2, 0, 1, 4.0)],
        [("picked", 0, 2, 0, 5.0), ("picked", 1, 2, 0, 6.0), ("undrafted", 2, 2, 0, 8.0)],
    ]


def test_whoever_arrives_at_the_instant_of_the_close_is_undrafted():
    # All four at 1 s, quota 1: c0, then the others compensate: c1 (first of 1, 2, 3), then c0 again.
    steps = semi_async(num_clients=4, fraction=0.25, lag=1, duration=per_client([1.0] * 4), rounds=3)
    assert [step.time for step in steps] == [1, 2, 3]
    assert [[a.client for a in step.arrivals if a.kind == "picked"] for step in steps] == [[0], [1], [0]]
    assert all(len(step.arrivals) == 4 for step in steps)


@pytest.mark.parametrize(
    ("num_clients", "fraction", "quota"), [(100, 0.29, 29), (10, 0.17, 2), (10, 0.25, 3), (10, 0.01, 1), (30, 0.1, 3)]
)
def test_the_quota_is_rounded_up_and_at_least_one(num_clients, fraction, quota):
    # In floating point .29 times 100 is 28.999...96, and .1 times 30 is 3.000...04.
    duration = per_client([1.0] * num_clients)
    (step,) = semi_async(num_clients=num_clients, fraction=fraction, lag=1, duration=duration, rounds=1)
    assert sum(arrival.kind == "picked" for arrival in step.arrivals) == quota


@settings(max_examples=20, deadline=None)
@given(seconds=st.lists(st.integers(1, 9), min_size=1, max_size=5), lag=st.integers(0, 2))
def test_a_quota_of_everybody_is_synchronous(seconds, lag):
    duration = per_client([float(value) for value in seconds])
    steps = semi_async(num_clients=len(seconds), fraction=1.0, lag=lag, duration=duration, rounds=4)
    rounds = synchronous([range(len(seconds))] * 4, duration)
    assert steps == [
        replace(step, arrivals=tuple(replace(arrival, kind="picked") for arrival in step.arrivals)) for step in rounds
    ]


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_semi_async_keeps_its_promises(data):
    num_clients, lag = data.draw(st.integers(1, 6)), data.draw(st.integers(0, 3))
    quota = data.draw(st.integers(1, num_clients))
    seconds = data.draw(st.lists(st.integers(1, 12), min_size=num_clients, max_size=num_clients))

    def duration(client: int, run: int) -> float:
        return seconds[client] + run % 3

    steps = semi_async(num_clients=num_clients, fraction=quota / num_clients, lag=lag, duration=duration, rounds=10)
    times = [step.time for step in steps]
    version, runs = [0] * num_clients, [0] * num_clients  # of the run that each client makes in a round
    picked_before: set[int] = set()
    for t, step in enumerate(steps):
        start = times[t - 1] if t else 0.0
        by_kind = {kind: [a for a in step.arrivals if a.kind == kind] for kind in ("deprecated", "picked", "undrafted")}
        assert [a.client for a in by_kind["deprecated"]] == [i for i in range(num_clients) if t - version[i] > lag]
        for arrival in by_kind["deprecated"]:
            assert (arrival.run, arrival.start_version) == (runs[arrival.client], version[arrival.client])
            version[arrival.client], runs[arrival.client] = t, runs[arrival.client] + 1
        finished = by_kind["picked"] + by_kind["undrafted"]
        assert step.time == max(arrival.arrival_time for arrival in finished) > start
        for arrival in finished:
            assert (arrival.run, arrival.start_version) == (runs[arrival.client], version[arrival.client])
            assert arrival.start_time == (times[arrival.start_version - 1] if arrival.start_version else 0.0)
            assert start < arrival.arrival_time == arrival.start_time + duration(arrival.client, arrival.run)
            assert arrival.staleness <= lag
        _check_collection(by_kind["picked"], by_kind["undrafted"], picked_before, quota, num_clients, step.time)
        arrived = {arrival.client for arrival in finished}
        for client in set(range(num_clients)) - arrived:
            begun = times[version[client] - 1] if version[client] else 0.0
            assert begun + duration(client, runs[client]) > step.time
        for client in arrived:
            version[client], runs[client] = t + 1, runs[client] + 1
        picked_before = {arrival.client for arrival in by_kind["picked"]}


def _check_collection(picked, undrafted, picked_before, quota, num_clients, close):
    """Who was picked is who ranks first: not picked before, then earlier, then the lower client number."""

    def rank(arrival):
        return (arrival.client in picked_before, arrival.arrival_time, arrival.client)

    assert len(picked) == quota
    ranked = sorted(picked + undrafted, key=rank)
    assert {arrival.client for arrival in ranked[:quota]} == {arrival.client for arrival in picked}
    if any(arrival.client in picked_before for arrival in picked):
        assert len(ranked) == num_clients  # nobody trains any more
    else:
        assert ranked[quota - 1].arrival_time == close


@pytest.mark.parametrize(
    ("change", "message"),
    [({"fraction": 0.0}, "fraction"), ({"fraction": 1.5}, "fraction"), ({"lag": -1}, "lag")],
)
def test_semi_async_rejects(change, message):
    with pytest.raises(ValueError, match=message):
        semi_async(**{**FILLING, "rounds": 1, **change})
