"""Protocols that refuse, stop, wait or lose runs, in windows and rounds, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxafl import clock
from jaxafl.clock import schedule as run_clock

# ---- expected values, worked out by hand


def two(first: float, second: float, runs: int = 40) -> Any:
    return clock.recorded(np.tile([[first], [second]], (1, runs)))


@pytest.mark.slow
def test_ringmaster_ignores_what_is_too_old() -> None:
    made = clock.free_running(concurrency=2, durations=two(1, 2.5), max_staleness=2)
    found = run_clock(made, 2, 1, 6)
    assert found.time.tolist() == [1, 2, 3, 4, 5, 6] and (found.client == 0).all()
    assert found.runs_refused.tolist() == [0, 0, 1, 1, 1, 2]  # at 2.5, and at 5 after client 0
    stopped = run_clock(
        clock.free_running(concurrency=2, durations=two(1, 2.5), max_staleness=2, on_bound="stop"), 2, 1, 6
    )
    assert (stopped.client == 0).all() and stopped.runs_stopped[-1] == 2 and stopped.runs_refused[-1] == 0
    loose = run_clock(clock.free_running(concurrency=2, durations=two(1, 2.5), max_staleness=3), 2, 1, 6)
    assert loose.client.ravel().tolist() == [0, 0, 1, 0, 0, 0] and loose.time.tolist() == [1, 2, 2.5, 3, 4, 5]


@pytest.mark.slow
def test_rennala_and_malenia_close_at_their_times() -> None:
    rennala = {"concurrency": 2, "durations": two(1, 2.5), "buffer": 3, "max_staleness": 1}
    stops = run_clock(clock.free_running(**rennala, on_bound="stop"), 2, 1, 2)
    assert stops.arrived.tolist() == [[1, 2, 2.5], [3.5, 4.5, 5]]
    ignores = run_clock(clock.free_running(**rennala), 2, 1, 2)
    assert ignores.arrived.tolist() == [[1, 2, 2.5], [4, 5, 5]] and ignores.runs_refused.tolist() == [0, 1]
    malenia = run_clock(clock.harmonic(durations=two(1, 2.5), batch=2), 2, 1, 1)
    assert malenia.time.tolist() == [2.5] and malenia.client[malenia.mask].tolist() == [0, 0, 1]


@pytest.mark.slow
def test_round_times_are_those_of_the_theory() -> None:
    """min{t: Σ⌊t/τ_i⌋ >= B} is 7 s for τ = (1, 2, 10), B = 10; Malenia's S = 6 takes 10 s."""
    times = np.tile([[1.0], [2.0], [10.0]], (1, 100))
    rennala = clock.free_running(
        concurrency=3, durations=clock.recorded(times), buffer=10, max_staleness=1, on_bound="stop"
    )
    assert run_clock(rennala, 3, 1, 3).time.tolist() == [7, 14, 21]
    malenia = clock.harmonic(durations=clock.recorded(times), batch=6)
    assert run_clock(malenia, 3, 1, 2).time.tolist() == [10, 20]


@pytest.mark.slow
def test_throttle_restarts_everybody_at_the_end_of_a_round() -> None:
    found = run_clock(clock.rounds_until_all(durations=two(1, 2.5)), 2, 1, 6)
    assert found.time.tolist() == [1, 2, 2.5, 3.5, 4.5, 5]
    assert found.client.ravel().tolist() == [0, 0, 1, 0, 0, 1]
    assert [found.kinds[kind] for kind in found.kind.ravel()] == ["first", "again", "last"] * 2
    assert found.version.ravel().tolist() == [0, 1, 0, 3, 4, 3]
    assert found.runs_stopped.tolist() == [0, 0, 0, 1, 1, 1]


# ---- errors


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(clock.free_running(rate=1.0, durations=two(np.inf, np.inf, 99)), marks=pytest.mark.slow),
        clock.free_running(concurrency=2, durations=clock.constant(0.0), period=1.0),
    ],
)
def test_a_step_that_would_never_end_is_an_error(made: Any) -> None:
    """A client that never comes back, and runs that take no time."""
    with pytest.raises(ValueError, match=r"has not come after|all clients that are at work are gone|durations run out"):
        run_clock(made, 2, 1, 3)
