"""Sessions of devices, against a walk from session to session."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxafl import clock
from jaxafl.clock import Run
from jaxafl.clock import schedule as run_clock
from jaxafl.clock.durations.duration import draw_of, prepared_for
from jaxafl.device.keys import seed_key

CLIENTS, COUNT = 5, 6


def walk(on: np.ndarray, off: np.ndarray, now: float, work: float, cut: str, most: int = 10_000) -> tuple[float, int]:
    """The end of a run that starts at `now`, and the index of its session."""
    begin = 0.0
    left = work
    for index in range(most):
        end = begin + on[index % COUNT]
        start = max(now, begin)
        if start < end or (start == end and left == 0):
            if start + left <= end:
                return start + left, index
            left = left - (end - start) if cut == "pause" else work
        begin = end + off[index % COUNT]
    return np.inf, most


def drawn(duration: Any, runs: Run, num_clients: int = CLIENTS) -> tuple[np.ndarray, Any]:

    @jax.jit
    def draws(runs: Run) -> tuple[Any, Any]:
        prepared = prepared_for(num_clients, duration, seed_key(0))
        draw = jax.vmap(lambda run: draw_of(duration, prepared, run))(runs)
        return draw.work + draw.hang, prepared

    with jax.enable_x64(True):
        return draws(jax.tree.map(jnp.asarray, runs))


def check(seed: int, cut: Any, groups: int | None, leave: float) -> None:
    rng = np.random.default_rng(seed)
    on, off = rng.integers(1, 9, (2, CLIENTS, COUNT)) / 2
    work = rng.integers(1, 24, (CLIENTS, 40)) / 4
    made = clock.sessions(
        clock.recorded(work), clock.recorded(on), off=clock.recorded(off), cut=cut, groups=groups, count=COUNT,
        leave=leave,
    )  # fmt: skip
    client, run = (axis.ravel().astype(np.int32) for axis in np.mgrid[0:CLIENTS, 0:40])
    now = rng.integers(0, 400, client.size) / 4
    seconds, known = drawn(made, Run(client, run, np.ones_like(client), 0 * now, now))
    for c, r, start, found in zip(client, run, now, seconds, strict=True):
        group = c % (groups or CLIENTS)
        end, session = walk(on[group], off[group], start, work[c, r], cut, 400)
        expected = np.inf if session >= known.last[c] else end - start
        assert found == pytest.approx(expected, abs=1e-9), (c, r)


@pytest.mark.parametrize(
    ("cut", "groups", "leave"), [pytest.param("pause", None, 0.1, marks=pytest.mark.slow), ("restart", 2, 0.0)]
)
def test_runs_end_as_in_a_walk_through_the_sessions(cut: str, groups: int | None, leave: float) -> None:
    check(1, cut, groups, leave)


@pytest.mark.parametrize(("cut", "hang"), [("pause", 1.0), ("restart", 2.5)])
def test_a_cycle_begins_at_its_time_despite_rounding(cut: Any, hang: float) -> None:
    """now / period rounds up to 9 for the last number below 9 periods; sessions of 1.5 and 3 s, breaks of 1 s."""
    on, off = (clock.recorded([[first, second]]) for first, second in ((1.5, 3.1), (1.0, 1.0)))
    made = clock.sessions(clock.constant(3.0), on, off=off, cut=cut, count=2)
    now = np.nextafter(9 * 6.6, 0)
    assert np.floor(now / 6.6) == 9 and now < 9 * 6.6
    one = np.zeros(1, np.int32)
    seconds, _ = drawn(made, Run(one, one, one + 1, 0.0 * one, np.full(1, now)), 1)
    np.testing.assert_allclose(seconds, 3 + hang)


@pytest.mark.slow
def test_a_client_works_only_in_its_sessions() -> None:
    """3 s of work in sessions of 2 s with breaks of 1 s: [0, 2] + [3, 4], [4, 5] + [6, 8], ..."""
    made = clock.sessions(clock.constant(3.0), clock.constant(2.0), off=clock.constant(1.0))
    found = run_clock(clock.free_running(concurrency=1, durations=made), 1, 1, 4)
    assert found.time.tolist() == pytest.approx([4, 8, 13, 17])
    short = clock.sessions(clock.constant(1.5), clock.constant(2.0), off=clock.constant(1.0), cut="restart")
    found = run_clock(clock.free_running(concurrency=1, durations=short), 1, 1, 3)
    assert found.time.tolist() == pytest.approx([1.5, 4.5, 7.5])


def test_the_first_session_begins_at_0_despite_rounding() -> None:
    """0.3 + 0.1 - 0.3 - 0.1 is above 0. 0.36 s of work in a session of 0.3 s go on after the break of 0.1 s."""
    made = clock.sessions(clock.constant(0.36), clock.constant(0.3), off=clock.constant(0.1))
    assert run_clock(clock.free_running(1, durations=made), 1, 1, 1).time[0] == pytest.approx(0.46)
