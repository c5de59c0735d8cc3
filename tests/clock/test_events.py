"""Protocols that refuse, stop, wait or lose runs, in windows and rounds, against slow event loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxafl import clock
from jaxafl.clock import Schedule
from jaxafl.clock import schedule as run_clock
from jaxafl.device.keys import Purpose
from tests.oracle import clock_events as oracle
from tests.problems_protocols import KINDS, durations, lookup, losses, openings, picks
from tests.variants import slow_but

CLIENTS, STEPS = 4, 30
COLUMNS = ("client", "run", "run_id", "version", "started", "arrived")


def assert_log(schedule: Schedule, log: oracle.Log, columns: tuple[str, ...] = COLUMNS, tolerance: float = 0.0) -> None:
    """All fields of all arrivals, the times of the steps, and the counts; times within a relative tolerance."""
    np.testing.assert_allclose(schedule.time, [time for time, _, _ in log.steps], rtol=tolerance, atol=0)
    for t, (_, arrivals, kind) in enumerate(log.steps):
        mask = schedule.mask[t]
        for name in columns:
            theirs = [one[COLUMNS.index(name)] for one in arrivals]
            rtol = tolerance if name in ("started", "arrived") else 0
            found = getattr(schedule, name)[t][mask]
            np.testing.assert_allclose(found, theirs, rtol=rtol, atol=0, err_msg=f"server step {t}, {name}")
        assert (schedule.kind[t][mask] == kind).all()
    counted = ("runs_begun", "runs_refused", "runs_stopped", "runs_lost")
    np.testing.assert_array_equal(
        np.stack([getattr(schedule, name) for name in counted], 1), np.array(log.counts)[:, :4]
    )


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ringmaster": ({"max_staleness": 3}, {"bound": 3}),
    "ringmaster with stops": ({"max_staleness": 2, "on_bound": "stop"}, {"bound": 2, "how": "stop"}),
    "adaptive": ({"max_staleness": "sqrt"}, {"bound": lambda version: math.isqrt(version + 1)}),
    "adaptive, with stops": (
        {"max_staleness": "sqrt", "on_bound": "stop"},
        {"bound": lambda version: math.isqrt(version + 1), "how": "stop"},
    ),
    "rennala": ({"max_staleness": 1, "on_bound": "stop", "buffer": 3}, {"bound": 1, "how": "stop", "buffer": 3}),
    "rennala without stops": ({"max_staleness": 1, "buffer": 3}, {"bound": 1, "buffer": 3}),
    "wait": (
        {"max_staleness": 2, "on_bound": "wait", "buffer": 2, "max_arrivals": 60},
        {"bound": 2, "how": "wait", "buffer": 2},
    ),
    "windows": ({"period": 1.5, "max_arrivals": 60}, {"buffer": None, "period": 1.5}),
    "windows and a buffer": ({"period": 1.5, "buffer": 3}, {"buffer": 3, "period": 1.5}),
    "lost": ({"lost": 0.3, "buffer": 2}, {"buffer": 2, "odds": 0.3}),
    "lost, in windows, bounded": (
        {"lost": 0.3, "period": 0.5, "max_arrivals": 60, "max_staleness": 4},
        {"odds": 0.3, "buffer": None, "period": 0.5, "bound": 4},
    ),
    "lost while the server waits": (
        {"lost": 0.4, "max_staleness": 1, "on_bound": "wait", "buffer": 2, "max_arrivals": 60},
        {"odds": 0.4, "bound": 1, "how": "wait", "buffer": 2},
    ),
    "restarts at steps, bounded": (
        {"dispatch": "step", "buffer": 2, "max_staleness": 1},
        {"dispatch": "step", "buffer": 2, "bound": 1},
    ),
    "restarts at steps, lost": (
        {"dispatch": "step", "buffer": 2, "lost": 0.3},
        {"dispatch": "step", "buffer": 2, "odds": 0.3},
    ),
    "restarts at steps, with stops, lost": (
        {"dispatch": "step", "buffer": 2, "lost": 0.3, "max_staleness": 2, "on_bound": "stop"},
        {"dispatch": "step", "buffer": 2, "odds": 0.3, "bound": 2, "how": "stop"},
    ),
}
WEIGHTS: dict[str, Any] = {"weights": np.array([4.0, 0, 1, 2])}
DRAWN_CASES = CASES | {
    "weighted": (WEIGHTS, {}),
    "weighted, with stops": ({**WEIGHTS, "on_bound": "stop", "max_staleness": 2}, {"bound": 2, "how": "stop"}),
}
AT_A_RATE = {
    "poisson": {"rate": 1.4},
    "poisson, in windows of exponential length, lost": {
        "rate": 1.4, "period": 1.5, "windows": "poisson", "lost": 0.3, "max_arrivals": 60,
    },
    "constant, in windows, lost": {"rate": 1.0, "interval": "constant", "period": 1.5, "lost": 0.3, "max_arrivals": 60},
    "weighted, wait": {
        "rate": 2.5, "interval": "constant", "buffer": 2, "max_staleness": 1, "on_bound": "wait", "max_arrivals": 60,
        **WEIGHTS,
    },
}  # fmt: skip
DRAWN = (
    "weighted",
    "weighted, with stops",
    "ringmaster with stops",
    "wait",
    "windows and a buffer",
    "restarts at steps, with stops, lost",
)


def check_case(name: str, kind: str, seed: int, concurrency: int = CLIENTS) -> None:
    mine, theirs = DRAWN_CASES[name]
    times = durations(np.random.default_rng(seed), CLIENTS, 400, kind)
    options = {"concurrency": concurrency, "durations": clock.recorded(times), **mine}
    found = run_clock(clock.free_running(**options), CLIENTS, 1, STEPS, seed)
    odds = theirs.get("odds", 0.0)
    told = {name: value for name, value in theirs.items() if name != "odds"} | {"is_lost": losses(seed, odds)}
    if concurrency < CLIENTS:
        told |= {"in_flight": concurrency, "pick": picks(seed, mine.get("weights"))}
    starts_at_steps = "dispatch" in mine  # the clients that start at one instant are in another order
    columns = tuple(one for one in COLUMNS if one != "run_id" or not starts_at_steps)
    assert_log(found, oracle.bounded(CLIENTS, lookup(times), STEPS, **told), columns)


@pytest.mark.parametrize("name", slow_but(DRAWN, "wait", "restarts at steps, with stops, lost"))
def test_idle_clients_are_drawn_and_stopped_ones_restart_themselves(name: str) -> None:
    check_case(name, "ties", 3, concurrency=3)


def check_rate(name: str, kind: str, seed: int) -> None:
    """An idle client starts at each opening, which is skipped if all are busy."""
    options, concurrency = AT_A_RATE[name], None if "lost" in name else 3
    times = durations(np.random.default_rng(seed), CLIENTS, 400, kind)
    made = clock.free_running(concurrency=concurrency, durations=clock.recorded(times), **options)
    found = run_clock(made, CLIENTS, 1, STEPS, seed)
    ends = openings(seed, 1 / 1.5, made.windows, purpose=Purpose.WINDOW) if "exponential" in name else made.period
    log = oracle.bounded(
        CLIENTS, lookup(times), STEPS, in_flight=concurrency, buffer=made.buffer, bound=made.max_staleness,
        how=made.on_bound, period=ends, is_lost=losses(seed, options.get("lost", 0.0)),
        pick=picks(seed, options.get("weights")), openings=openings(seed, options["rate"], made.interval),
    )  # fmt: skip
    assert_log(found, log, tolerance=1e-12)  # the logarithms of the intervals differ in their last bits
    np.testing.assert_array_equal(found.starts_skipped, [counts[-1] for counts in log.counts])


@pytest.mark.parametrize("name", slow_but(AT_A_RATE, "weighted, wait"))
def test_clients_start_at_a_rate(name: str) -> None:
    check_rate(name, "ties", 3)


@pytest.mark.slow
def test_draws_of_many_clients_follow_the_weights() -> None:
    """A tree of three levels, emptied and filled again while nothing is in flight."""
    times = durations(np.random.default_rng(1), 70, 40, "real")
    weights = np.random.default_rng(2).integers(0, 5, 70)
    made = clock.free_running(rate=0.5, durations=clock.recorded(times), weights=weights, concurrency=30)
    log = oracle.bounded(70, lookup(times), 30, in_flight=30, pick=picks(0, weights), openings=openings(0, 0.5, ""))
    assert run_clock(made, 70, 1, 30).client.ravel().tolist() == [runs[0][0] for _, runs, _ in log.steps]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(list(AT_A_RATE)), kind=st.sampled_from(KINDS), seed=st.integers(0, 2**32 - 1))
def test_they_start_at_a_rate_with_all_kinds_of_durations(name: str, kind: str, seed: int) -> None:
    check_rate(name, kind, seed)


@pytest.mark.parametrize("name", slow_but(CASES, "lost, in windows, bounded"))
def test_bounds_windows_and_losses_follow_the_event_loop(name: str) -> None:
    check_case(name, "ties", 3)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(list(CASES)), kind=st.sampled_from(KINDS), seed=st.integers(0, 2**32 - 1))
def test_they_follow_it_on_all_kinds_of_durations(name: str, kind: str, seed: int) -> None:
    check_case(name, kind, seed)


@pytest.mark.parametrize(
    ("batch", "stop"), [(0.0, True), (9.0, True), pytest.param(9.0, False, marks=pytest.mark.slow)]
)
def test_harmonic_steps_when_every_client_has_sent_enough(batch: float, stop: bool) -> None:
    for kind in KINDS:
        times = durations(np.random.default_rng(5), CLIENTS, 2000, kind)
        made = clock.harmonic(batch=batch, stop=stop, durations=clock.recorded(times), max_arrivals=600)
        assert_log(run_clock(made, CLIENTS, 1, 12, 0), oracle.harmonic(CLIENTS, lookup(times), 12, batch, stop))


def test_steps_when_every_buffer_has_an_update() -> None:
    for kind in KINDS:
        times = durations(np.random.default_rng(5), CLIENTS, 2000, kind)
        made = clock.every_buffer(buffers=3, durations=clock.recorded(times), max_arrivals=600)
        assert_log(run_clock(made, CLIENTS, 1, 12, 0), oracle.every_buffer(CLIENTS, lookup(times), 12, 3))
    with pytest.raises(ValueError, match="buffers=5 exceeds the 4 clients"):
        run_clock(clock.every_buffer(buffers=5, durations=clock.constant(1)), CLIENTS, 1, 2, 0)


def test_rounds_end_when_every_client_has_come() -> None:
    for kind in KINDS:
        times = durations(np.random.default_rng(6), CLIENTS, 400, kind)
        made = clock.rounds_until_all(durations=clock.recorded(times))
        assert_log(run_clock(made, CLIENTS, 1, 60, 0), oracle.rounds_until_all(CLIENTS, lookup(times), 60))


@pytest.mark.parametrize("restart", slow_but(["held", "newest"], "held"))
def test_ringleader_steps_once_for_every_client(restart: Any) -> None:
    """A client that takes ten times as long as the others lets them send many updates in between."""
    for kind in KINDS:
        times = durations(np.random.default_rng(7), CLIENTS, 2000, kind)
        made = clock.ringleader(durations=clock.recorded(times), restart=restart, max_arrivals=90)
        found = run_clock(made, CLIENTS, 1, 40, 0)
        assert_log(found, oracle.ringleader(CLIENTS, lookup(times), 40, restart))
        steps = found.client[(found.kind == 1) & found.mask].reshape(-1, CLIENTS)
        assert (np.sort(steps) == np.arange(CLIENTS)).all()  # one step for each client in every round
        assert (found.mask.sum(axis=1) > 1).any() and found.staleness.max() <= 2 * CLIENTS - 2


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
    options = {
        "concurrency": 3,
        "durations": clock.recorded(times),
        "buffer": 10,
        "max_staleness": 1,
        "on_bound": "stop",
    }
    assert run_clock(clock.free_running(**options), 3, 1, 3).time.tolist() == [7, 14, 21]
    malenia = clock.harmonic(durations=clock.recorded(times), batch=6, max_arrivals=20)
    assert run_clock(malenia, 3, 1, 2).time.tolist() == [10, 20]


@pytest.mark.slow
def test_throttle_restarts_everybody_at_the_end_of_a_round() -> None:
    found = run_clock(clock.rounds_until_all(durations=two(1, 2.5)), 2, 1, 6)
    assert found.time.tolist() == [1, 2, 2.5, 3.5, 4.5, 5]
    assert found.client.ravel().tolist() == [0, 0, 1, 0, 0, 1]
    assert [found.kinds[kind] for kind in found.kind.ravel()] == ["first", "again", "last"] * 2
    assert found.version.ravel().tolist() == [0, 1, 0, 3, 4, 3]
    assert found.runs_stopped.tolist() == [0, 0, 0, 1, 1, 1]


# ---- invariants


@pytest.mark.slow
@pytest.mark.parametrize(("bound", "stop", "concurrency"), [(1, True, 6), (2, True, 4), (3, False, 6), (2, False, 4)])
def test_no_update_is_older_than_the_bound(bound: int, stop: bool, concurrency: int) -> None:
    made = clock.free_running(
        concurrency=concurrency,
        durations=clock.uniform(0.1, 3.0),
        max_staleness=bound,
        on_bound="stop" if stop else "refuse",
    )
    found = run_clock(made, 6, 1, 60, 7)
    assert found.staleness.max() <= bound - 1
    if stop:
        assert not found.runs_refused.any()  # stopped before they could arrive too late
    for client in range(6):  # no two runs of a client overlap
        mine = found.client[found.mask] == client
        begun, ended = found.started[found.mask][mine], found.arrived[found.mask][mine]
        assert (begun[1:] >= ended[:-1]).all()


@pytest.mark.slow
def test_staleness_sums_to_the_identity_without_refusals() -> None:
    """Σ τ of T steps plus Σ (T - s) of the runs in flight is T (N - 1), all clients training."""
    found = run_clock(clock.free_running(concurrency=5, durations=clock.lognormal(0.0, 1.0)), 5, 1, 200, 1)
    last = {
        int(c): int(t) + 1 for t, c in enumerate(found.client.ravel())
    }  # version that the client's next run starts from
    flying = sum(200 - last.get(client, 0) for client in range(5))
    assert found.staleness.sum() + flying == 200 * 4


# ---- errors


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_staleness": 0}, "max_staleness"),
        ({"on_bound": "stop"}, "give max_staleness=R"),
        ({"max_arrivals": 5}, "give buffer=M"),
        ({"period": 0.0}, "period"),
        ({"lost": 1.0}, "lost"),
        ({"period": 1.0, "buffer": 1}, "give buffer=None"),
        ({"lost": np.full(3, 0.1)}, "4"),
        ({"period": 1.0, "dispatch": "step"}, "give dispatch='arrival'"),
        ({"period": 1.0, "max_staleness": 2, "on_bound": "wait"}, "give buffer=M instead of the period"),
        ({"before_step": True, "max_staleness": 2, "on_bound": "stop"}, "give on_bound='refuse'"),
        ({"concurrency": None}, "give concurrency=M_c"),
        ({"rate": 0.0}, "rate must be > 0"),
        ({"windows": "poisson"}, "windows='poisson' needs their mean length: give period=P"),
        ({"interval": "constant"}, "interval='constant' needs starts at a rate: give rate=r"),
        ({"rate": 1.0, "dispatch": "step"}, "leave these out, or the rate"),
        ({"max_staleness": "root"}, "max_staleness must be one of None, 'sqrt' or a whole number"),
        ({"max_staleness": 0}, "max_staleness must be at least 1"),
        ({"dispatch": "step", "start_skew": True, "max_staleness": 2, "on_bound": "stop"}, "give on_bound='refuse'"),
    ],
)
def test_what_cannot_be_is_said_before(options: dict[str, Any], text: str) -> None:
    made = clock.free_running(**{"concurrency": 4, "durations": clock.uniform(1, 2)} | options)
    with pytest.raises(ValueError, match=text):
        run_clock(made, 4, 1, 3)


@pytest.mark.parametrize(
    ("make", "room", "least"),
    [
        (lambda **given: clock.harmonic(batch=20.0, **given), 16, 21),
        (lambda **given: clock.harmonic(max_arrivals=3, **given), 3, 4),
        (lambda **given: clock.ringleader(max_arrivals=3, **given), 3, 4),
        (lambda **given: clock.every_buffer(buffers=3, max_arrivals=2, **given), 2, 3),
        (lambda **given: clock.free_running(concurrency=4, period=2.0, buffer=3, max_arrivals=2, **given), 2, 3),
    ],
)
def test_a_step_without_room_for_the_arrivals_that_close_it_is_refused(make: Any, room: int, least: int) -> None:
    with pytest.raises(ValueError, match=f"room for {room} arrivals, and needs {least} to close"):
        make(durations=clock.constant(1.0)).check(4)


def test_too_many_arrivals_are_an_error() -> None:
    made = clock.free_running(concurrency=4, durations=clock.constant(1.0), period=10.0)
    with pytest.raises(ValueError, match="than the clock's capacity, at 2 s; give a max_arrivals above"):
        run_clock(made, 4, 1, 3)


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(one, marks=pytest.mark.slow)
        for one in (
            clock.free_running(rate=1.0, durations=clock.recorded(np.full((2, 99), np.inf))),
            clock.harmonic(durations=clock.recorded(np.array([[1.0] * 99, [np.inf] * 99]))),
        )
    ]
    + [
        clock.free_running(concurrency=2, durations=clock.constant(0.0), period=1.0),
    ],
)
def test_a_step_that_would_never_end_is_an_error(made: Any) -> None:
    """A client that never comes back, and runs that take no time."""
    with pytest.raises(ValueError, match=r"than the clock's capacity|all clients that are at work are gone"):
        run_clock(made, 2, 1, 3)
