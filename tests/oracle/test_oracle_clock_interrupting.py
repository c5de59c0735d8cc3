"""The reference clock of interrupting servers, worked by hand and against FAVANO's expectations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .clock_interrupting import interrupting
from .small_cases import per_client, rows


def test_interrupting_by_hand():
    # Steps of .5, 1 and 3 s, contacts at 2, 4, 6, 8 s. Client 1 at 4 s: its fourth step ends exactly then. Client 2
    # makes nothing in 2 s, and one step in the 4 s up to the last contact. Client 0 has 4 s before 6 s: K = 5 of 8.
    steps = interrupting(
        [[2, 0], [1, 2], [0, 1], [2]], per_client([0.5, 1.0, 3.0]), num_clients=3, period=2.0, max_steps=5
    )
    assert [step.time for step in steps] == [2, 4, 6, 8]
    fields = ("client", "run", "dispatch", "start_version", "staleness", "start_time", "local_steps")
    assert rows(steps, *fields) == [
        [(0, 0, 0, 0, 0, 0.0, 4), (2, 0, 2, 0, 0, 0.0, 0)],
        [(1, 0, 1, 0, 1, 0.0, 4), (2, 1, 4, 1, 0, 2.0, 0)],
        [(0, 1, 3, 1, 1, 2.0, 5), (1, 1, 5, 2, 0, 4.0, 2)],
        [(2, 2, 6, 2, 1, 4.0, 1)],
    ]


def test_steps_that_fill_the_period_count_at_every_contact():
    # In rounded decimals the contacts at .1, .2, .3, ... are not all .1 apart.
    steps = interrupting([[0]] * 40, per_client([0.1]), num_clients=1, period=0.1, max_steps=9)
    assert {arrival.local_steps for step in steps for arrival in step.arrivals} == {1}


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_local_steps_by_counting(data):
    num_clients, max_steps = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    period, seconds = data.draw(st.integers(1, 7)), data.draw(st.lists(st.integers(1, 9), min_size=4, max_size=4))
    chosen = st.lists(st.integers(0, num_clients - 1), min_size=1, max_size=num_clients, unique=True)
    sets = data.draw(st.lists(chosen, min_size=1, max_size=10))

    def step_duration(client: int, run: int) -> float:
        return seconds[client] + run % 3

    steps = interrupting(sets, step_duration, num_clients=num_clients, period=period, max_steps=max_steps)
    restarted, runs = [0] * num_clients, [0] * num_clients
    for t, (contacted, step) in enumerate(zip(sets, steps, strict=True)):
        assert [arrival.client for arrival in step.arrivals] == sorted(contacted)
        for arrival in step.arrivals:
            clock, made = restarted[arrival.client] * period, 0
            seconds_per_step = step_duration(arrival.client, runs[arrival.client])
            while made < max_steps and clock + seconds_per_step <= (t + 1) * period:
                clock, made = clock + seconds_per_step, made + 1
            assert (arrival.run, arrival.local_steps) == (runs[arrival.client], made)
            assert arrival.start_version == restarted[arrival.client]
            restarted[arrival.client], runs[arrival.client] = t + 1, runs[arrival.client] + 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sets": [[0, 0]]}, "twice"),
        ({"sets": [[]]}, "no clients"),
        ({"period": 0.0}, "period"),
        ({"max_steps": 0}, "max_steps"),
        ({"step_duration": per_client([0.0, 1.0])}, "positive"),
    ],
)
def test_interrupting_rejects(change, message):
    options: dict[str, Any] = {
        "sets": [[0]],
        "step_duration": per_client([1.0, 1.0]),
        "num_clients": 2,
        "period": 1.0,
        "max_steps": 1,
    }
    with pytest.raises(ValueError, match=message):
        interrupting(**{**options, **change})
