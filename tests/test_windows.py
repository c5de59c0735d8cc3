"""Long runs: they end, go on and are made longer anywhere, and are those of their schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jaxafl as afl
from tests.callbacks.conftest import assert_same, broken
from tests.problems import descent, observe_w

CLOCKS = {
    "buffer": afl.clock.free_running(concurrency=5, buffer=3, durations=afl.clock.exponential(2.0)),
    "skew": afl.clock.free_running(
        concurrency=5, buffer=2, dispatch="step", start_skew=True, durations=afl.clock.uniform(1, 5)
    ),
    # its first server step takes more updates than any later one
    "warm_up": afl.clock.warm_up(
        afl.clock.free_running(concurrency=6, durations=afl.clock.uniform(1, 5, per="client")), first="next"
    ),
}
STEPS = 1_500  # several thousand arrivals


def simulation(clock: Any) -> afl.Simulation:
    return descent(server=afl.server.fedbuff(0.5), clock=clock)


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize("name", CLOCKS)
def test_a_run_goes_on_anywhere_and_is_made_longer(name: str, tmp_path: Any) -> None:
    sim = simulation(CLOCKS[name])
    options: dict[str, Any] = {"eval_every": 100, "seed": 3, "observe": observe_w}
    kept: dict[str, Any] = {"folder": tmp_path, "checkpoint_every": 70}
    whole = {steps: sim.run(steps, **options) for steps in (STEPS, STEPS + 130)}
    for at in (300, 700):  # the second one breaks what was resumed
        broken(sim, STEPS, at, **options, **kept)
    assert_same(sim.run(STEPS, **options, **kept), whole[STEPS])
    assert_same(sim.run(STEPS + 130, **options, **kept), whole[STEPS + 130])


@pytest.mark.slow
@pytest.mark.parametrize("name", CLOCKS)
def test_a_long_run_is_that_of_its_schedule(name: str) -> None:
    sim = simulation(CLOCKS[name])
    schedule, result = sim.schedule(STEPS, seed=2), sim.run(STEPS, eval_every=STEPS, seed=2)
    arrived = result.client_id.values >= 0
    np.testing.assert_array_equal(arrived.sum(axis=1), schedule.taken)
    for name_, column in (("client_id", "client"), ("run_index", "run"), ("started_at", "started")):
        np.testing.assert_array_equal(result[name_].values[arrived], schedule.of_arrivals(column))
    np.testing.assert_array_equal(result.time, schedule.time)
    assert np.isfinite(result.delta_norm.values[arrived]).all()


@pytest.mark.slow
def test_later_steps_may_need_more_room() -> None:
    """One run lasts while the others make some hundred server steps: the ring must keep its version."""
    durations = np.full((6, 1_000), 0.01) + np.arange(6)[:, None] / 1000
    durations[0, 50] = 3.0
    clock = afl.clock.trace(afl.clock.free_running, concurrency=6, buffer=2, durations=durations)
    sim = simulation(clock)
    whole = sim.run(1_500, eval_every=1_500, observe=observe_w)
    assert whole.staleness[:400].max() < 20 and whole.staleness.max() > 300
    short = sim.run(400, eval_every=400, observe=observe_w)
    np.testing.assert_allclose(short.observe_w, whole.observe_w[:401], rtol=1e-5, atol=1e-6)
