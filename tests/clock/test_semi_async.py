"""SAFA's rounds: a quota of arrivals, stragglers tolerated up to a lag."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxafl.clock import Schedule, constant, semi_async, suspension, trace, uniform
from jaxafl.clock import schedule as run_clock
from jaxafl.clock.protocols.rounds import PICKED, RESYNCHRONISED, UNDRAFTED
from tests.oracle.clock import ServerStep
from tests.oracle.clock_semi_async import semi_async as reference
from tests.problems_protocols import KINDS, assert_schedule, durations, lookup

CLIENTS, ROUNDS = 6, 20


def assert_kinds(schedule: Schedule, steps: list[ServerStep]) -> None:
    """Picked, undrafted and deprecated clients are the reference's; entry i is client i."""
    np.testing.assert_array_equal(schedule.client, np.tile(np.arange(schedule.num_clients), (len(steps), 1)))
    for t, step in enumerate(steps):
        kind, mask = schedule.kind[t], schedule.mask[t]
        mine = {
            "picked": np.flatnonzero(mask & (kind % 2 == PICKED)).tolist(),
            "undrafted": np.flatnonzero(mask & (kind % 2 == UNDRAFTED)).tolist(),
            "deprecated": np.flatnonzero(kind >= RESYNCHRONISED).tolist(),
        }
        theirs = {name: sorted(a.client for a in step.arrivals if a.kind == name) for name in mine}
        assert mine == theirs, f"round {t}"


def without_abandoned(steps: list[ServerStep]) -> list[ServerStep]:
    return [ServerStep(s.step, s.time, tuple(a for a in s.arrivals if a.kind != "deprecated")) for s in steps]


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(KINDS),
    fraction=st.sampled_from([0.05, 0.25, 1 / 3, 0.5, 0.75, 1.0]),
    lag=st.integers(0, 3),
)
def test_recorded_rounds_are_those_of_the_reference(seed: int, kind: str, fraction: float, lag: int) -> None:
    times = durations(np.random.default_rng(seed), CLIENTS, ROUNDS + 1, kind)
    clock = trace(semi_async(fraction=fraction, lag=lag, durations=constant(0)), durations=times)
    schedule = run_clock(clock, CLIENTS, 1, ROUNDS, 0)
    options = {"num_clients": CLIENTS, "fraction": fraction, "lag": lag, "rounds": ROUNDS}
    steps = reference(duration=lookup(times), **options)
    assert_schedule(schedule, without_abandoned(steps))
    assert_kinds(schedule, steps)


def test_someone_is_picked_undrafted_and_deprecated() -> None:
    """A slow client never arrives under lag 1; its work is abandoned every other round."""
    times = np.tile(np.asarray([[1.0], [1.0], [1.2], [1.2], [1.5], [100.0]]), (1, 40))
    clock = trace(semi_async(fraction=0.3, lag=1, durations=constant(0)), durations=times)
    schedule = run_clock(clock, 6, 1, 13, 0)
    assert not schedule.mask[:, 5].any()
    assert np.flatnonzero(schedule.kind[:, 5] >= RESYNCHRONISED).tolist() == [2, 4, 6, 8, 10, 12]
    assert (schedule.mask & (schedule.kind == UNDRAFTED)).any() and (schedule.mask & (schedule.kind == PICKED)).any()


@pytest.mark.slow
def test_an_infinite_lag_abandons_nothing_and_everybody_counts_in_turn() -> None:
    schedule = run_clock(semi_async(fraction=0.4, lag=10**6, durations=uniform(1, 5)), 5, 1, 200, 0)
    assert (schedule.kind < RESYNCHRONISED).all()
    picked = schedule.mask & (schedule.kind == PICKED)
    assert (picked.sum(axis=1) == 2).all()
    # who was picked last round comes after the others: at this quota never again at once
    assert not (picked[1:] & picked[:-1]).any()


@pytest.mark.parametrize(("fraction", "quota"), [(0.5, 3), (0.7, 4), (0.01, 1), (1.0, 5), (0.3, 2), (0.2, 1), (0.6, 3)])
def test_the_quota_is_rounded_up(fraction: float, quota: int) -> None:
    schedule = run_clock(semi_async(fraction=fraction, lag=2, durations=uniform(1, 5)), 5, 1, 30, 0)
    assert ((schedule.mask & (schedule.kind % 2 == PICKED)).sum(axis=1) == quota).all()


@pytest.mark.parametrize(
    ("clients", "fraction", "quota"),
    [
        (30, 0.1, 3),
        pytest.param(10, 0.25, 3, marks=pytest.mark.slow),
        pytest.param(49, 1 / 49, 1, marks=pytest.mark.slow),
        pytest.param(100, 0.29, 29, marks=pytest.mark.slow),
    ],
)
def test_rounding_errors_add_nobody_to_the_quota(clients: int, fraction: float, quota: int) -> None:
    """0.1 · 30 is above 3 in float64."""
    schedule = run_clock(semi_async(fraction=fraction, lag=2, durations=uniform(1, 5)), clients, 1, 5, 0)
    assert ((schedule.mask & (schedule.kind % 2 == PICKED)).sum(axis=1) == quota).all()


def test_kinds_of_arrivals_have_names() -> None:
    schedule = run_clock(semi_async(fraction=0.5, lag=0, durations=uniform(1, 5)), 9, 1, 30, 0)
    assert schedule.kinds[PICKED] == "picked" and schedule.kinds[UNDRAFTED] == "undrafted"
    assert schedule.kinds[UNDRAFTED + RESYNCHRONISED] == "undrafted, resynchronised"
    assert schedule.kind.max() < len(schedule.kinds)


@pytest.mark.slow
def test_hangs_do_not_outlast_the_longest_run_so_far() -> None:
    schedule = run_clock(semi_async(fraction=0.4, lag=3, durations=constant(2.0) + suspension(0.5)), 5, 1, 100, 0)
    lasted = (schedule.arrived - schedule.started)[schedule.mask]
    assert lasted.min() >= 2 - 1e-9 and lasted.max() <= 4 + 1e-9
    assert (lasted > 2.5).any() and (lasted == 2).any()
