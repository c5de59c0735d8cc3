"""How many lanes a run has on an accelerator."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl.engine import validate, width
from jaxafl.engine.planned import plan_of
from tests.variants import slow_but


@pytest.fixture(autouse=True)
def accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")


def simulation(concurrency: int = 64, batch_size: int | None = 10) -> afl.Simulation:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2000, 30)).astype(np.float32), rng.integers(0, 10, 2000)
    data = afl.data.from_arrays(x, y, np.arange(2000) % 100, x_test=x[:10], y_test=y[:10])
    client = afl.Client(optax.sgd, learning_rate=0.1, steps=2, batch_size=batch_size)
    clock = afl.clock.free_running(concurrency=concurrency, buffer=4, durations=afl.clock.exponential(1.0))
    return afl.Simulation(data, afl.models.mlp(10, hidden=(20,)), client, afl.server.fedbuff(), clock)


def test_the_memory_of_a_lane_is_read_off_the_model() -> None:
    sim = simulation()
    weights = 4 * (30 * 20 + 20 + 20 * 10 + 10)
    ten, twenty, forty = (width.lane_bytes(sim.model, size, sim.data.form) for size in (10, 20, 40))
    assert ten > 3 * weights
    assert forty - twenty == pytest.approx(2 * (twenty - ten), rel=0.01)


@pytest.mark.parametrize("concurrency", slow_but([1, 5, 64], 5))
def test_the_width_takes_the_least_time_if_each_doubling_computes_more_by_15_percent(concurrency: int) -> None:
    sim = simulation(concurrency)
    schedule = sim.schedule(200)
    widths = [lanes for lanes in (1, 2, 4, 8, 16, 32, 64) if lanes < 2 * concurrency]
    plans = [plan_of(schedule, sim.server, lanes) for lanes in widths]
    seconds = [plan.executed(plan.lanes) / 1.15**power for power, plan in enumerate(plans)]
    found = plan_of(schedule, sim.server, None).lanes
    assert found == widths[int(np.argmin(seconds))] and (found > 1 or concurrency == 1)


@pytest.mark.slow
def test_masked_local_steps_narrow_the_width() -> None:
    """Clients of 1 to 400 batches: wide lanes wait for the longest run, so that few are used."""
    sim = simulation(25)
    steps = np.round(np.geomspace(1, 400, 100)).astype(int)[:, None]
    schedule = afl.clock.schedule(sim.clock, 100, steps, 200, 0)
    found = plan_of(schedule, sim.server, None)
    assert 1 < found.lanes <= 8 and found.executed(found.lanes) < 1.2 * found.needed


def test_lanes_that_advance_together_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = simulation().problem(0)
    monkeypatch.setattr(width, "lane_bytes", lambda *given: 100.0)
    monkeypatch.setattr(width, "available_bytes", lambda: 2000)
    assert [width.lanes_in_memory(problem, members) for members in (1, 2, 3, 100)] == [10, 5, 3, 1]
    room = lambda: width.lanes_in_memory(problem)  # noqa: E731
    assert [validate.chunk_of(lanes, None, room) for lanes in (1, 8, 16, 12, 11)] == [1, 8, 8, 6, 1]
    assert validate.chunk_of(16, 16, room) == 16  # asked for
    monkeypatch.setattr(width, "available_bytes", lambda: None)
    assert validate.chunk_of(64, None, room) == 64


@pytest.mark.slow
def test_a_wide_fleet_has_a_wide_plan() -> None:
    """1,000 clients in flight that take about as long: nearly all lanes are busy."""
    clock = afl.clock.free_running(concurrency=1000, buffer=100, durations=afl.clock.uniform(4, 5))
    schedule = afl.clock.schedule(clock, 2000, np.full(2000, 2), 100, 0)
    plan = plan_of(schedule, afl.server.fedbuff(), None)
    assert plan.lanes >= 512 and plan.mean_width > 400
