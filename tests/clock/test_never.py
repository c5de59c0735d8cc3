"""Durations that are infinite (a client that never comes back), NaN or negative: a schedule or an error, in time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxafl import clock as clocks
from jaxafl.clock import schedule as run_clock

NEVER = np.asarray([1.0, 1.5, np.inf, 2.0])
GONE = clocks.constant(NEVER)


@pytest.mark.parametrize(
    "clock",
    [
        clocks.free_running(concurrency=2, durations=clocks.recorded(np.repeat(NEVER[:, None], 90, axis=1))),
        clocks.interrupting(period=2.0, contacted=2, durations=clocks.constant(NEVER, per="step")),
        clocks.semi_async(fraction=1.0, lag=2, durations=GONE),
        clocks.synchronous(cohort=1, deadline=2.0, durations=GONE),
    ],
    ids=repr,
)
def test_others_go_on_where_a_client_never_comes_back(clock: Any) -> None:
    made = run_clock(clock, 4, 3, 40)
    assert np.isfinite(made.time).all()
    took_part = made.mask & (made.local_steps > 0)
    if clock.name == "interrupting":
        assert (made.local_steps[made.client == 2] == 0).all()
    else:
        assert not (made.client[took_part] == 2).any() and np.isfinite(made.arrived[took_part]).all()
    assert set(np.unique(made.client[took_part])) >= {0, 1, 3} - ({2} if clock.name != "interrupting" else set())


@pytest.mark.parametrize(
    ("clock", "words"),
    [
        (clocks.synchronous(durations=GONE), "synchronous .* server step 0 waits for run 0 of client 2 for ever"),
        (clocks.stale_rounds(participants=4, max_staleness=1, durations=GONE), "waits for run 0 of client 2 for ever"),
        (clocks.sampled(drawn=8, durations=GONE), r"server step \d+ has not come .* run 0 of client 2 never arrives"),
    ],
    ids=["synchronous", "stale_rounds", "sampled"],
)
def test_a_server_that_waits_for_a_client_that_is_gone_says_so(clock: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        run_clock(clock, 4, 1, 20)


LAST = clocks.recorded([[np.inf], [1.0, 1.0, np.inf]])  # the newest run of client 1 never arrives either


@pytest.mark.parametrize(
    ("clock", "seconds"),
    [
        (clocks.synchronous(deadline=2.0, durations=clocks.constant(np.inf)), "0"),
        (clocks.free_running(concurrency=2, max_staleness=1, durations=LAST), "2"),
        (clocks.free_running(concurrency=2, period=1.0, durations=LAST), "3"),
        (clocks.free_running(concurrency=2, lost=0.999, durations=clocks.constant(np.inf)), "0"),
        (clocks.harmonic(stop=False, durations=clocks.recorded([[3.0, np.inf], [1.0] * 3 + [np.inf]])), "3"),
    ],
    ids=repr,
)
def test_a_step_that_no_client_can_complete_is_an_error_and_not_an_endless_loop(clock: Any, seconds: str) -> None:
    with pytest.raises(ValueError, match=rf"are gone .* at {seconds} simulated seconds, .* finite durations"):
        run_clock(clock, 2, 1, 9)


def test_recorded_cohorts_of_clients_that_are_gone_run_out() -> None:
    clock = clocks.synchronous(cohort=1, deadline=2.0, durations=GONE, sets=[[0], [2], [2]])
    with pytest.raises(ValueError, match="the recorded sets end at 3"):
        run_clock(clock, 4, 1, 2)


@pytest.mark.slow
def test_clients_that_never_come_back_keep_their_tasks() -> None:
    times = np.tile([[1.0], [np.inf]], (1, 60))
    made = clocks.routed(tasks=3, durations=clocks.recorded(times), probabilities=np.array([0.9, 0.1]))
    assert (run_clock(made, 2, 1, 8, seed=1).client == 0).all()
    with pytest.raises(ValueError, match="all clients that are at work are gone"):
        run_clock(made, 2, 1, 55, seed=1)
